package nvmerdma

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"softiser/internal/loopback"
	"softiser/internal/nvme"
	"softiser/rdma"
)

const patience = 20 * time.Second

// disk is a controller that reads and writes memory: the address of a command's data is
// its first LBA, in bytes.
type disk struct {
	c   *Controller
	mem []byte

	mu       sync.Mutex
	arrived  map[int]func(error)
	open     int // commands without Sent
	commands int
	ended    chan error
	hold     func(*nvme.Command) bool // takes a command away from the disk
}

func (d *disk) Command(k *nvme.Command) {
	d.mu.Lock()
	d.open++
	d.commands++
	hold := d.hold
	d.mu.Unlock()
	if hold != nil && hold(k) {
		return
	}
	n, at := int(k.SQE.SGL().Length()), int(k.SQE.ReadWrite().SLBA())
	switch {
	case k.NoRoom:
		d.respond(k, nvme.CommandInterrupted)
	case n == 0 || at+n > len(d.mem):
		d.respond(k, nvme.Success)
	case k.SQE.Opcode() == nvme.OpRead:
		half := n / 2
		d.c.PutData(k, 0, [][]byte{d.mem[at : at+half]}, false)
		d.c.PutData(k, uint32(half), [][]byte{d.mem[at+half : at+half], d.mem[at+half : at+n]}, true)
		d.respond(k, nvme.Success)
	case k.SQE.SGL().Kind() == nvme.SGLInCapsule:
		copy(d.mem[at:], k.Data)
		d.respond(k, nvme.Success)
	default:
		d.get(k, [][]byte{d.mem[at : at+1], d.mem[at+1 : at+n]}, func(err error) {
			s := nvme.Success
			if err != nil {
				s = nvme.DataTransferError
			}
			d.respond(k, s)
		})
	}
}

func (d *disk) get(k *nvme.Command, list [][]byte, then func(error)) {
	d.mu.Lock()
	d.arrived[k.Slot] = then
	d.mu.Unlock()
	if err := d.c.GetData(k, 0, list); err != nil {
		d.DataArrived(k, err)
	}
}

func (d *disk) respond(k *nvme.Command, s nvme.Status) {
	var e nvme.CQE
	e.SetCID(k.SQE.CID())
	e.SetStatus(s)
	d.c.Respond(k, &e)
}

func (d *disk) DataArrived(k *nvme.Command, err error) {
	d.mu.Lock()
	f := d.arrived[k.Slot]
	delete(d.arrived, k.Slot)
	d.mu.Unlock()
	f(err)
}

func (d *disk) Sent(*nvme.Command) {
	d.mu.Lock()
	d.open--
	d.mu.Unlock()
}

func (d *disk) Ended(err error) { d.ended <- err }

// host is a scripted host: a bare queue pair.
type host struct {
	t    *testing.T
	disk *disk
	dev  *rdma.Device
	pd   *rdma.PD
	qp   *rdma.QP
	cq   *rdma.CQ
	bufs [][]byte
	cid  uint16
}

const hostBuffers = 128

func newHost(t *testing.T) *host {
	t.Helper()
	return newHostWith(t, nvme.CQELen) // as Linux: a longer response ends the connection
}

// newHostWith makes one with receive buffers of n bytes.
func newHostWith(t *testing.T, n int) *host {
	t.Helper()
	h := &host{t: t}
	var err error
	if h.dev, err = rdma.Open(nil); err == nil {
		h.pd, err = h.dev.AllocPD()
	}
	if err == nil {
		h.cq, err = h.dev.CreateCQ(rdma.CQConfig{Depth: 1024})
	}
	if err == nil {
		h.qp, err = h.pd.CreateQP(rdma.QPConfig{SendCQ: h.cq, RecvCQ: h.cq, MaxSend: 512, MaxRecv: hostBuffers})
	}
	if err != nil {
		t.Fatal(err)
	}
	for i := range hostBuffers {
		h.bufs = append(h.bufs, make([]byte, n))
		h.post(i)
	}
	t.Cleanup(func() {
		_ = h.qp.Close()
		_ = h.cq.Close()
	})
	return h
}

func (h *host) post(i int) {
	if err := h.qp.PostRecv(rdma.RecvWR{ID: uint64(i), SGL: []rdma.SGE{{Mem: h.bufs[i], LKey: h.pd.LocalDMAKey()}}}); err != nil {
		h.t.Error(err)
	}
}

func device(t testing.TB, cfg Config) *Device {
	t.Helper()
	d, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if n := d.ReceivesOut(); n != 0 {
			t.Errorf("%d receive buffers were not given back", n)
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

// connect makes the connection of a host, with private data as it is.
func connect(h *host, d *Device, private []byte, p rdma.ConnParams) (c *Controller, acceptErr, connectErr error) {
	h.t.Helper()
	a, b := loopback.Pair(h.t)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		c, acceptErr = d.Accept(ctx, b, AcceptConfig{Queues: 4, Entries: 32})
		if acceptErr != nil {
			_ = b.Close()
		}
	}()
	p.PrivateData = private
	_, connectErr = rdma.Client(ctx, a, h.qp, &p)
	<-done
	return c, acceptErr, connectErr
}

// start connects a host to a disk of 32 entries.
func start(t *testing.T, cfg Config, mem []byte) *host {
	t.Helper()
	d := device(t, cfg)
	h := newHost(t)
	c, err, err2 := connect(h, d, (&Request{QID: 1, HostRecv: 32, HostSend: 31}).AppendTo(nil), rdma.ConnParams{IRD: 16})
	if err != nil || err2 != nil {
		t.Fatal(err, err2)
	}
	if n, err := parseAccept(h.qp.Info().PrivateData); err != nil || n != 32 {
		t.Fatalf("accepted with %d, %v", n, err)
	}
	h.disk = &disk{c: c, mem: mem, arrived: map[int]func(error){}, ended: make(chan error, 1)}
	c.SetEntries(32)
	c.Start(h.disk)
	return h
}

// over waits until the connection has ended and nothing of it is left.
func (h *host) over() error {
	h.t.Helper()
	var err error
	select {
	case err = <-h.disk.ended:
	case <-time.After(patience):
		h.t.Fatal("the connection does not end")
	}
	<-h.disk.c.Ended()
	h.disk.mu.Lock()
	defer h.disk.mu.Unlock()
	if h.disk.open != 0 || len(h.disk.arrived) != 0 {
		h.t.Errorf("%d commands and %d transfers are left", h.disk.open, len(h.disk.arrived))
	}
	return err
}

// close ends the host's side and checks that the controller's ends well.
func (h *host) close() {
	h.t.Helper()
	h.qp.Disconnect()
	if err := h.over(); err != nil {
		h.t.Errorf("the connection ended with %v", err)
	}
}

// send sends raw bytes.
func (h *host) send(msg []byte, op rdma.Opcode, inv uint32) {
	h.t.Helper()
	if err := h.qp.PostSend(rdma.SendWR{ID: 999, Op: op, InvSTag: inv, SGL: []rdma.SGE{{Mem: msg, LKey: h.pd.LocalDMAKey()}}}); err != nil {
		h.t.Fatal(err)
	}
}

// recv waits for the next response.
func (h *host) recv() (e nvme.CQE, wc rdma.WC) {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for {
		var wcs [1]rdma.WC
		if h.cq.Poll(wcs[:]) == 0 {
			if err := h.cq.Wait(ctx); err != nil {
				h.t.Fatal(err)
			}
			continue
		}
		if wc = wcs[0]; wc.Opcode != rdma.WCRecv {
			continue
		}
		if wc.Status != rdma.StatusSuccess || wc.ByteLen != nvme.CQELen {
			h.t.Fatalf("receive: %v, %d bytes; %v", wc.Status, wc.ByteLen, h.qp.Err())
		}
		copy(e[:], h.bufs[wc.ID])
		h.post(int(wc.ID))
		return e, wc
	}
}

// command makes a capsule without data; its SGL is empty.
func (h *host) command(op nvme.Opcode, at int) *nvme.SQE {
	h.cid++
	s := new(nvme.SQE)
	s.Init(op, 1)
	s.SetCID(h.cid)
	s.ReadWrite().SetRange(uint64(at), 1)
	s.SGL().SetKeyed(nvme.SGLKeyed, 0, 0, 0)
	return s
}

// window opens memory for the controller.
func (h *host) window(mem []byte, a rdma.Access) (w *rdma.Window, stag uint32, at uint64) {
	h.t.Helper()
	w, err := h.pd.AllocWindow()
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { _ = w.Close() })
	stag, at, err = w.Bind(h.qp, [][]byte{mem}, a|rdma.AccessLocalWrite)
	if err != nil {
		h.t.Fatal(err)
	}
	return w, stag, at
}

func pattern(n int, seed byte) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i) ^ byte(i>>8)*3 ^ seed
	}
	return b
}

// Data of all lengths goes both ways; the response closes the host's memory exactly when
// the descriptor says so.
func TestTransfers(t *testing.T) {
	mem := make([]byte, 3<<20)
	h := start(t, Config{}, mem)
	for _, kind := range []nvme.SGLKind{nvme.SGLKeyed, nvme.SGLKeyedInvalidate} {
		for _, n := range []int{1, 512, 4096, 1<<20 + 1, 3 << 20} {
			data := pattern(n, byte(n)+byte(kind))
			do := func(op nvme.Opcode, a rdma.Access) {
				t.Helper()
				w, stag, at := h.window(data, a)
				s := h.command(op, 0)
				s.SGL().SetKeyed(kind, at, uint32(n), stag)
				h.send(s[:], rdma.OpSend, 0)
				e, wc := h.recv()
				if e.CID() != h.cid || !e.Status().OK() {
					t.Fatalf("%v of %d bytes: % x", op, n, e)
				}
				inv := wc.Flags&rdma.WCWithInv != 0
				if inv != (kind == nvme.SGLKeyedInvalidate) || inv && wc.InvSTag != stag || w.Valid() == inv {
					t.Errorf("%v: invalidated: %v, %x", kind, inv, wc.InvSTag)
				}
			}
			do(nvme.OpWrite, rdma.AccessRemoteRead)
			h.disk.mu.Lock()
			if !bytes.Equal(mem[:n], data) {
				t.Errorf("a write of %d bytes has arrived damaged", n)
			}
			h.disk.mu.Unlock()
			clear(data)
			do(nvme.OpRead, rdma.AccessRemoteWrite)
			if !bytes.Equal(data, mem[:n]) {
				t.Errorf("a read of %d bytes has arrived damaged", n)
			}
		}
	}
	for _, n := range []int{1, 512, InCapsule} {
		data := pattern(n, 7)
		s := h.command(nvme.OpWrite, 100)
		s.SGL().SetBlock(nvme.SGLInCapsule, 0, uint32(n))
		h.send(append(s[:], data...), rdma.OpSend, 0)
		if e, wc := h.recv(); !e.Status().OK() || wc.Flags&rdma.WCWithInv != 0 || !bytes.Equal(mem[100:100+n], data) {
			t.Errorf("%d bytes in the capsule: % x", n, e)
		}
	}
	h.close()
}

// Requests that are refused, and what the host is told.
func TestRefusedConnections(t *testing.T) {
	d := device(t, Config{})
	good := Request{QID: 1, HostRecv: 32, HostSend: 31}
	private := func(f func(*Request)) []byte {
		q := good
		f(&q)
		return q.AppendTo(nil)
	}
	format := good.AppendTo(nil)
	format[0] = 1
	for name, c := range map[string]struct {
		private []byte
		p       rdma.ConnParams
		want    RejectStatus
	}{
		"absent":   {nil, rdma.ConnParams{}, RejectLength},
		"short":    {good.AppendTo(nil)[:31], rdma.ConnParams{}, RejectLength},
		"format":   {format, rdma.ConnParams{}, RejectFormat},
		"queue":    {private(func(q *Request) { q.QID = 5 }), rdma.ConnParams{}, RejectQID},
		"SQ size":  {private(func(q *Request) { q.HostSend = 0 }), rdma.ConnParams{}, RejectHostSend},
		"RQ size":  {private(func(q *Request) { q.HostRecv = 0 }), rdma.ConnParams{}, RejectHostRecv},
		"no reads": {good.AppendTo(nil), rdma.ConnParams{IRD: -1}, RejectIRD},
	} {
		_, err, err2 := connect(newHost(t), d, c.private, c.p)
		var here, there *RejectError
		if !errors.As(err, &here) || here.Status != c.want || !errors.As(rejected(err2), &there) || there.Status != c.want {
			t.Errorf("%s: the controller has %v, the host %v", name, err, rejected(err2))
		}
	}
	// A queue that is larger than the controller's is not: Connect tells the size.
	c, err, err2 := connect(newHost(t), d, private(func(q *Request) { q.HostSend = 1023 }), rdma.ConnParams{})
	if err != nil || err2 != nil {
		t.Fatal(err, err2)
	}
	c.Terminate(errors.New("end of the test"))
	<-c.Ended()
}

// What ends the connection, and that it ends whole.
func TestBreaches(t *testing.T) {
	for name, c := range map[string]struct {
		do     func(h *host)
		says   string
		breach bool
	}{
		"empty capsule": {func(h *host) { h.send(nil, rdma.OpSend, 0) }, "a capsule of 0 bytes", true},
		"short capsule": {func(h *host) { h.send(make([]byte, nvme.SQELen-1), rdma.OpSend, 0) }, "a capsule of 63 bytes", true},
		"long capsule": {func(h *host) {
			s := h.command(nvme.OpFlush, 0)
			h.send(append(s[:], make([]byte, InCapsule+1)...), rdma.OpSend, 0)
		}, "", true},
		"too many commands": {func(h *host) {
			h.disk.mu.Lock()
			h.disk.hold = func(k *nvme.Command) bool { return k.SQE.Opcode() != nvme.OpDatasetManagement }
			h.disk.mu.Unlock()
			for range 33 {
				h.send(h.command(nvme.OpFlush, 0)[:], rdma.OpSend, 0)
			}
		}, "more commands are outstanding than the 32", true},
		"a capsule that invalidates": {func(h *host) { h.send(h.command(nvme.OpFlush, 0)[:], rdma.OpSendInv, 0x1234500) }, "", true},
		"a key that is none, read": {func(h *host) {
			s := h.command(nvme.OpRead, 0)
			s.SGL().SetKeyed(nvme.SGLKeyed, 1<<40, 512, 0xabcdef00)
			h.send(s[:], rdma.OpSend, 0)
		}, "", true},
		"a key that is none, write": {func(h *host) {
			s := h.command(nvme.OpWrite, 0)
			s.SGL().SetKeyed(nvme.SGLKeyed, 1<<40, 512, 0xabcdef00)
			h.send(s[:], rdma.OpSend, 0)
		}, "", true},
		"memory that is shorter than the descriptor": {func(h *host) {
			_, stag, at := h.window(make([]byte, 511), rdma.AccessRemoteRead)
			s := h.command(nvme.OpWrite, 0)
			s.SGL().SetKeyed(nvme.SGLKeyed, at, 512, stag)
			h.send(s[:], rdma.OpSend, 0)
		}, "", true},
		"the longest descriptor": {func(h *host) {
			_, stag, at := h.window(make([]byte, 512), rdma.AccessRemoteRead)
			s := h.command(nvme.OpWrite, 0)
			s.SGL().SetKeyed(nvme.SGLKeyed, at, nvme.MaxKeyedLength, stag)
			h.send(s[:], rdma.OpSend, 0)
		}, "", true},
		"the end of the connection amid a write": {func(h *host) {
			h.disk.mu.Lock()
			h.disk.hold = func(*nvme.Command) bool {
				h.qp.Abort(nil)
				<-h.qp.Done()
				return false
			}
			h.disk.mu.Unlock()
			_, stag, at := h.window(make([]byte, 1<<20), rdma.AccessRemoteRead)
			s := h.command(nvme.OpWrite, 0)
			s.SGL().SetKeyed(nvme.SGLKeyed, at, 1<<20, stag)
			h.send(s[:], rdma.OpSend, 0)
		}, "", false},
	} {
		t.Run(name, func(t *testing.T) {
			h := start(t, Config{}, make([]byte, 16<<20))
			var held []*nvme.Command
			c.do(h)
			var err error
			select {
			case err = <-h.disk.ended:
			case <-time.After(patience):
				t.Fatal("the connection does not end")
			}
			if c.breach != errors.Is(err, nvme.ErrBreach) || c.says != "" && !strings.Contains(err.Error(), c.says) {
				t.Errorf("ended with %v", err)
			}
			// What was not answered is answered now, and comes to its end.
			h.disk.c.mu.Lock()
			for _, k := range h.disk.c.slots.all {
				if !k.answered {
					held = append(held, &k.Command)
				}
			}
			h.disk.c.mu.Unlock()
			for _, k := range held {
				h.disk.respond(k, nvme.Success)
			}
			h.disk.c.Push()
			h.disk.ended <- err
			h.over()
		})
	}
}

// The memory of a write that is aborted is free at once, and the response waits until the
// host has answered the Read: it may invalidate the memory then.
func TestCancel(t *testing.T) {
	mem := make([]byte, 1<<20)
	h := start(t, Config{}, mem)
	d := h.disk
	var fail string
	d.mu.Lock()
	d.hold = func(k *nvme.Command) bool {
		if k.SQE.Opcode() != nvme.OpWrite {
			return false
		}
		var got error
		d.get(k, [][]byte{mem}, func(err error) { got = err })
		if k.SQE.SGL().Kind() == nvme.SGLKeyedInvalidate {
			d.c.Push() // else it has not even been asked for
		}
		d.c.Cancel(k.Use + 1) // of another command
		if got != nil {
			fail = "the transfer of another command was cancelled"
		}
		d.c.Cancel(k.Use)
		if got != nvme.ErrCancelled {
			fail = "DataArrived did not come from inside Cancel"
		}
		d.c.Cancel(k.Use) // again
		clear(mem)
		d.respond(k, nvme.AbortRequested)
		d.c.mu.Lock()
		c := d.c.slots.all[k.Slot]
		if waits := d.c.pump.Waiting() == 0; waits != c.reading {
			fail = "the response does not wait for what the host has still to send, and for that alone"
		}
		d.c.mu.Unlock()
		return true
	}
	d.mu.Unlock()
	for _, kind := range []nvme.SGLKind{nvme.SGLKeyed, nvme.SGLKeyedInvalidate} {
		w, stag, at := h.window(pattern(len(mem), 9), rdma.AccessRemoteRead)
		s := h.command(nvme.OpWrite, 0)
		s.SGL().SetKeyed(kind, at, uint32(len(mem)), stag)
		h.send(s[:], rdma.OpSend, 0)
		if e, _ := h.recv(); e.Status() != nvme.AbortRequested || w.Valid() == (kind == nvme.SGLKeyedInvalidate) {
			t.Errorf("%v: % x", kind, e)
		}
		h.send(h.command(nvme.OpFlush, 0)[:], rdma.OpSend, 0)
		h.recv()
		if fail != "" {
			t.Errorf("%v: %s", kind, fail)
		}
		if !bytes.Equal(mem, make([]byte, len(mem))) {
			t.Errorf("%v: the memory was written after Cancel", kind)
		}
	}
	h.close()
}

// Queues are filled again and again, with data outstanding meanwhile: slots are used for
// what is outstanding, however late its end is noticed.
func TestFullQueue(t *testing.T) {
	mem := make([]byte, 1<<20)
	h := start(t, Config{}, mem)
	_, stag, at := h.window(make([]byte, 4096), rdma.AccessRemoteRead|rdma.AccessRemoteWrite)
	const rounds = 2000
	for i := range rounds + 32 {
		if i >= 32 {
			if e, _ := h.recv(); !e.Status().OK() {
				t.Fatalf("% x", e)
			}
		}
		if i < rounds {
			s := h.command([]nvme.Opcode{nvme.OpRead, nvme.OpWrite, nvme.OpFlush}[i%3], i%16*4096)
			if i%3 < 2 {
				s.SGL().SetKeyed(nvme.SGLKeyed, at, 4096, stag)
			}
			h.send(s[:], rdma.OpSend, 0)
		}
	}
	st := h.disk.c.Stats()
	if st.CapsulesIn != rounds || st.CapsulesOut != rounds || st.PayloadIn == 0 || st.PayloadIn%4096 != 0 || st.PayloadOut < st.PayloadIn {
		t.Errorf("%+v", st)
	}
	if n := len(h.disk.c.slots.all); n > 32+rdmaDepth {
		t.Errorf("%d slots for a queue of 32", n)
	}
	h.close()
}

// rdmaDepth is room for the responses that have been sent and not been reaped.
const rdmaDepth = 126 + 128

// A connection that holds more than its share of the receive buffers has the data of its
// commands dropped, and keeps working.
func TestScarceBuffers(t *testing.T) {
	mem := make([]byte, 4096)
	h := start(t, Config{MaxReceives: 192}, mem)
	d := h.disk
	var held []*nvme.Command
	d.mu.Lock()
	d.hold = func(k *nvme.Command) bool {
		if k.NoRoom || k.SQE.Opcode() == nvme.OpFlush {
			return false
		}
		held = append(held, k)
		return true
	}
	d.mu.Unlock()
	d.c.SetEntries(200)
	refused := 0
	const n = 160
	for range n {
		s := h.command(nvme.OpWrite, 0)
		s.SGL().SetBlock(nvme.SGLInCapsule, 0, 8)
		h.send(append(s[:], "12345678"...), rdma.OpSend, 0)
	}
	h.send(h.command(nvme.OpFlush, 0)[:], rdma.OpSend, 0)
	for {
		e, _ := h.recv()
		if e.CID() == h.cid {
			break
		}
		if e.Status() != nvme.CommandInterrupted {
			t.Fatalf("% x", e)
		}
		refused++
	}
	if refused == 0 || len(held) == 0 || refused+len(held) != n {
		t.Errorf("%d commands were refused, %d are held", refused, len(held))
	}
	for _, k := range held {
		d.respond(k, nvme.Success)
	}
	d.c.Push()
	for range held {
		h.recv()
	}
	h.close()
}

// A host that speaks before it is looked at, and one that is closed before.
func TestBeforeStart(t *testing.T) {
	d := device(t, Config{})
	for _, started := range []bool{true, false} {
		h := newHost(t)
		c, err, err2 := connect(h, d, (&Request{HostRecv: 32, HostSend: 31}).AppendTo(nil), rdma.ConnParams{IRD: 16})
		if err != nil || err2 != nil {
			t.Fatal(err, err2)
		}
		h.disk = &disk{c: c, arrived: map[int]func(error){}, ended: make(chan error, 1)}
		h.send(h.command(nvme.OpFlush, 0)[:], rdma.OpSend, 0)
		if started {
			c.Start(h.disk)
			h.recv()
			// Until Connect has said more there is room for one command.
			h.disk.mu.Lock()
			var held *nvme.Command
			h.disk.hold = func(k *nvme.Command) bool { held = k; return true }
			h.disk.mu.Unlock()
			h.send(h.command(nvme.OpFlush, 0)[:], rdma.OpSend, 0)
			h.send(h.command(nvme.OpFlush, 0)[:], rdma.OpSend, 0)
			err := <-h.disk.ended
			if !errors.Is(err, nvme.ErrBreach) {
				t.Errorf("two commands at once: %v", err)
			}
			h.disk.respond(held, nvme.Success)
			c.Push()
			h.disk.ended <- err
			h.over()
		} else {
			c.Terminate(errors.New("closed"))
			<-c.Ended()
		}
	}
}

// An orderly end sends what is queued, and nothing behind it.
func TestOrderlyEnd(t *testing.T) {
	h := start(t, Config{}, make([]byte, 4096))
	d := h.disk
	held := make(chan *nvme.Command, 2)
	d.mu.Lock()
	d.hold = func(k *nvme.Command) bool { held <- k; return true }
	d.mu.Unlock()
	for range 2 {
		h.send(h.command(nvme.OpFlush, 0)[:], rdma.OpSend, 0)
	}
	first, second := <-held, <-held
	d.respond(first, nvme.Success)
	d.c.Terminate(nil)
	if e, _ := h.recv(); e.CID() != 1 {
		t.Errorf("% x", e)
	}
	d.respond(second, nvme.Success)
	d.c.PutData(second, 0, [][]byte{make([]byte, 1)}, true)
	d.c.Push()
	if err := h.over(); err != nil {
		t.Error(err)
	}
	if err := d.c.GetData(second, 0, [][]byte{make([]byte, 1)}); err == nil {
		t.Error("a transfer begins after the end")
	}
	if s := d.c.Describe(); !strings.Contains(s, "NVMe/RDMA, MPA revision 2") {
		t.Error(s)
	}
}
