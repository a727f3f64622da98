package nvmf_test

import (
	"bytes"
	"errors"
	"sync"
	"testing"
	"time"

	"softiser/internal/alloctest"
	"softiser/internal/await"
	"softiser/internal/nvme"
	"softiser/internal/nvmerdma"
	"softiser/internal/nvmetcp"
	"softiser/target"
	"softiser/target/nvmf"
)

// hostDevice is the RDMA side of all hosts of this package's tests.
var hostDevice = sync.OnceValue(func() *nvmerdma.Device {
	d, err := nvmerdma.Open(nvmerdma.Config{Host: true})
	if err != nil {
		panic(err)
	}
	return d
})

// rdmaQueue is a host's queue over RDMA. Commands go one at a time.
type rdmaQueue struct {
	t    *testing.T
	tr   nvme.HostTransport
	cmd  nvme.HostCommand
	done chan struct{}
	over chan error
}

// Completed is told of another command than the one at a time where an answer was
// changed on its way so that it looks like the other's.
func (q *rdmaQueue) Completed(c *nvme.HostCommand) {
	if c == &q.cmd {
		q.done <- struct{}{}
	}
}
func (q *rdmaQueue) BatchEnd()       {}
func (q *rdmaQueue) Ended(err error) { q.over <- err; close(q.done) }

func (r *rig) dialRDMA(t *testing.T, id uint16, inCapsule int) *rdmaQueue {
	t.Helper()
	d := nvmerdma.HostDialer{Config: nvmerdma.HostConfig{Address: r.addr, Device: hostDevice()}}
	tr, err := d.Dial(t.Context(), nvme.HostQueue{ID: id, Entries: 32, InCapsule: inCapsule})
	if err != nil {
		t.Fatal(err)
	}
	q := &rdmaQueue{t: t, tr: tr, done: make(chan struct{}, 1), over: make(chan error, 1)}
	tr.Start(q)
	t.Cleanup(func() {
		tr.Terminate(errors.New("end of the test"))
		<-tr.(*nvmerdma.Host).Ended()
	})
	return q
}

// do carries a command out; its status is the error, if it is none of success.
func (q *rdmaQueue) do(s nvme.SQE, data []byte) (*nvme.CQE, error) {
	q.cmd.SQE = s
	q.cmd.Data = nil
	if data != nil {
		q.cmd.Data = [][]byte{data}
	}
	q.tr.Submit(&q.cmd)
	q.tr.Push()
	if _, ok := <-q.done; !ok {
		return nil, errGone
	}
	if st := q.cmd.CQE.Status(); !st.OK() {
		return &q.cmd.CQE, st
	}
	return &q.cmd.CQE, q.cmd.Err
}

func (q *rdmaQueue) connect(id uint16, d nvme.ConnectData) (*nvme.CQE, error) {
	var s nvme.SQE
	c := s.NewConnect()
	c.SetQID(id)
	c.SetSQSize(31)
	c.SetKeepAlive(time.Minute)
	return q.do(s, d.AppendTo(nil))
}

// attachRDMA connects a host with one I/O queue.
func (r *rig) attachRDMA(t *testing.T, inCapsule int) (admin, io *rdmaQueue) {
	t.Helper()
	admin = r.dialRDMA(t, 0, 0)
	data := nvme.ConnectData{HostID: nvme.HostID{15: 77}, CntlID: nvme.CntlIDDynamic, Subsystem: subNQN, Host: hostNQN}
	e, err := admin.connect(0, data)
	if err != nil {
		t.Fatal(err)
	}
	data.CntlID = nvme.ConnectResult(e.DW0()).CntlID()
	var s nvme.SQE
	s.NewPropertySet(nvme.PropCC, uint64(nvme.NewConfig(nvme.CommandSetAll, true)))
	if _, err := admin.do(s, nil); err != nil {
		t.Fatal(err)
	}
	io = r.dialRDMA(t, 1, inCapsule)
	if _, err := io.connect(1, data); err != nil {
		t.Fatal(err)
	}
	return admin, io
}

// The error log says by which transport a command has come.
func TestErrorLogOverRDMA(t *testing.T) {
	r := open(t, nil)
	admin, io := r.attachRDMA(t, 0)
	if _, err := io.do(rw(nvme.OpRead, 1<<40, 1), make([]byte, 512)); err == nil {
		t.Fatal("a read behind the end")
	}
	var s nvme.SQE
	s.NewGetLogPage(nvme.LogError, nvme.NSIDAll, 0, nvme.ErrorEntryLen)
	b := make([]byte, nvme.ErrorEntryLen)
	if _, err := admin.do(s, b); err != nil {
		t.Fatal(err)
	}
	if e, err := nvme.ParseErrorEntry(b); err != nil || e.LBA != 1<<40 || e.Transport != uint8(nvme.TransportRDMA) {
		t.Errorf("%+v, %v", e, err)
	}
}

// One port, and one volume, over RDMA and TCP at once: what one writes the other reads.
func TestOverRDMA(t *testing.T) {
	for name, inCapsule := range map[string]int{"in the capsule": nvmerdma.InCapsule, "by RDMA Read": 0} {
		t.Run(name, func(t *testing.T) {
			r := open(t, nil)
			admin, io := r.attachRDMA(t, inCapsule)
			tcp := r.attach("nqn.other", 3, 1).io[0]
			var s nvme.SQE
			s.NewIdentify(nvme.CNSController, 0)
			b := make([]byte, nvme.IdentifyLen)
			if _, err := admin.do(s, b); err != nil {
				t.Fatal(err)
			}
			id, err := nvme.ParseController(b)
			if err != nil || id.SGLS != nvme.SGLSupported|nvme.SGLInCapsuleOffset|nvme.SGLKeyedSupported || id.IOCCSZ != (64+nvmerdma.InCapsule)/16 {
				t.Errorf("SGLS %x, IOCCSZ %d, %v", id.SGLS, id.IOCCSZ, err)
			}
			for i, n := range []int{512, 4096, 65536, 1 << 20} {
				want := pattern(n, byte(i))
				if _, err := io.do(rw(nvme.OpWrite, 8, uint32(n/512)), bytes.Clone(want)); err != nil {
					t.Fatal(err)
				}
				if got, err := tcp.readBlocks(8, n); err != nil || !bytes.Equal(got, want) {
					t.Errorf("%d bytes written over RDMA, read over TCP: %v", n, err)
				}
				if _, err := io.do(rw(nvme.OpCompare, 8, uint32(n/512)), bytes.Clone(want)); err != nil {
					t.Errorf("Compare of %d bytes: %v", n, err)
				}
				got := make([]byte, n)
				if err := tcp.write(8, pattern(n, 100)); err != nil {
					t.Fatal(err)
				}
				if _, err := io.do(rw(nvme.OpRead, 8, uint32(n/512)), got); err != nil || !bytes.Equal(got, pattern(n, 100)) {
					t.Errorf("%d bytes written over TCP, read over RDMA: %v", n, err)
				}
			}
			if _, err := io.do(rw(nvme.OpCompare, 8, 1), make([]byte, 512)); !errors.Is(err, nvme.CompareFailure|nvme.DoNotRetry) {
				t.Errorf("Compare: %v", err)
			}
			if _, err := io.do(rw(nvme.OpRead, 1<<40, 1), make([]byte, 512)); !errors.Is(err, nvme.LBAOutOfRange|nvme.DoNotRetry) {
				t.Errorf("beyond the end: %v", err)
			}
			if _, err := io.do(rw(nvme.OpRead, 0, 2), make([]byte, 512)); !errors.Is(err, nvme.SGLDataLengthInvalid|nvme.DoNotRetry) {
				t.Errorf("a descriptor that is too short: %v", err)
			}
			var flush nvme.SQE
			flush.Init(nvme.OpFlush, 1)
			if _, err := io.do(flush, nil); err != nil {
				t.Error(err)
			}
			if l := r.srv.Controllers(); len(l) != 2 {
				t.Errorf("%d controllers", len(l))
			}
			admin.tr.Terminate(nil)
			if err := <-admin.over; err != nil {
				t.Error(err)
			}
			<-io.over // its controller has gone
			await.True(t, "the controller's end", func() bool { return len(r.srv.Controllers()) == 1 })
		})
	}
}

// A Connect over RDMA is refused as one over TCP, queue by queue; a portal without
// NVMe/RDMA, and private data of nobody, end before that.
func TestRefusedOverRDMA(t *testing.T) {
	r := open(t, func(_ *target.Config, s *nvmf.SubsystemConfig) { s.Hosts = []nvmf.HostRule{{NQN: "nqn.else"}} })
	q := r.dialRDMA(t, 0, 0)
	d := nvme.ConnectData{HostID: nvme.HostID{15: 77}, CntlID: nvme.CntlIDDynamic, Subsystem: subNQN, Host: hostNQN}
	if _, err := q.connect(0, d); !errors.Is(err, nvme.ConnectInvalidHost|nvme.DoNotRetry) {
		t.Errorf("%v", err)
	}
	var no *nvmerdma.RejectError
	dialer := nvmerdma.HostDialer{Config: nvmerdma.HostConfig{Address: r.addr, Device: hostDevice()}}
	if _, err := dialer.Dial(t.Context(), nvme.HostQueue{ID: 129, Entries: 32}); !errors.As(err, &no) || no.Status != nvmerdma.RejectQID {
		t.Errorf("a queue that is not there: %v", err)
	}
	off := open(t, func(c *target.Config, _ *nvmf.SubsystemConfig) { c.Portals[0].NoNVMeRDMA = true })
	dialer.Config.Address = off.addr
	if _, err := dialer.Dial(t.Context(), nvme.HostQueue{Entries: 32}); err == nil {
		t.Error("connected where NVMe/RDMA is switched off")
	}
}

// Nothing is allocated for a command over RDMA, at either end.
func TestNoAllocationOverRDMA(t *testing.T) {
	r := open(t, nil)
	_, io := r.attachRDMA(t, nvmerdma.InCapsule)
	for _, c := range []struct {
		name string
		op   nvme.Opcode
		n    int
	}{{"read 4 KiB", nvme.OpRead, 4096}, {"read 1 MiB", nvme.OpRead, 1 << 20}, {"write 4 KiB in the capsule", nvme.OpWrite, 4096}, {"write 64 KiB", nvme.OpWrite, 64 << 10}} {
		s, segs := rw(c.op, 8, uint32(c.n/512)), [][]byte{make([]byte, c.n)}
		bad := false
		once := func() {
			io.cmd.SQE, io.cmd.Data = s, segs
			io.tr.Submit(&io.cmd)
			io.tr.Push()
			_, ok := <-io.done
			bad = bad || !ok || !io.cmd.CQE.Status().OK()
		}
		for range 50 {
			once()
		}
		if n := alloctest.PerRun(200, once); n != 0 || bad {
			t.Errorf("%s: %v allocations per command, failed: %v", c.name, n, bad)
		}
	}
}

// Data that came with a command whose descriptor names the host's memory is not the
// command's.
func TestUnannouncedData(t *testing.T) {
	r := open(t, nil)
	q := r.attach(hostNQN, 4, 1).io[0]
	want := pattern(4096, 5)
	c := &command{out: want, done: make(chan struct{})}
	var k nvmetcp.CapsuleCmd
	*k.SQE() = rw(nvme.OpWrite, 0, 8)
	k.SQE().SetCID(4711)
	k.SQE().SGL().SetBlock(nvme.SGLTransport, 0, 4096)
	k.SetHeader(0, 10, 0)
	q.mu.Lock()
	q.wait[4711] = c
	q.mu.Unlock()
	if err := q.send(k[:], make([]byte, 10)); err != nil {
		t.Fatal(err)
	}
	if e, err := q.result(c); err != nil || !e.Status().OK() {
		t.Fatalf("%v, %v", e, err)
	}
	if got, err := q.readBlocks(0, 4096); err != nil || !bytes.Equal(got, want) {
		t.Errorf("the volume has something else, %v", err)
	}
}
