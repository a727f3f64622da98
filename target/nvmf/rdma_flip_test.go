package nvmf_test

import (
	"bytes"
	"context"
	"flag"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"softiser/internal/loopback"
	"softiser/internal/nvme"
	"softiser/internal/nvmerdma"
	"softiser/rdma"
	"softiser/target"
)

// everyByte is the long form of the campaigns that change one byte of an exchange:
//
//	go test ./target/nvmf -run 'TestCorrupted|TestFlipped' -timeout 30m -every-byte
var everyByte = flag.Bool("every-byte", false, "change each byte of the recorded exchanges instead of a sample")

// relay is between a host and the target, and changes one byte of what one of them sends.
type relay struct {
	toHost bool // whose byte: the target's
	at     int64
	by     byte // 0: nothing is changed
	passed [2]atomic.Int64
	wg     sync.WaitGroup
}

// dial connects through the relay.
func (f *relay) dial(ctx context.Context, addr string, t *testing.T) (net.Conn, error) {
	var d net.Dialer
	nc, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	far := nc.(*net.TCPConn)
	host, near := loopback.Pair(t)
	for i, way := range [2][2]*net.TCPConn{{near, far}, {far, near}} {
		f.wg.Go(func() { f.pass(i, way[0], way[1]) })
	}
	return host, nil
}

func (f *relay) pass(way int, from, to *net.TCPConn) {
	defer from.Close()
	defer to.Close() // no half of a connection outlives the other
	b := make([]byte, 32<<10)
	for {
		n, err := from.Read(b)
		at := f.at - f.passed[way].Load()
		if f.by != 0 && f.toHost == (way == 1) && at >= 0 && at < int64(n) {
			b[at] ^= f.by
		}
		f.passed[way].Add(int64(n))
		if _, werr := to.Write(b[:n]); err != nil || werr != nil {
			return
		}
	}
}

// hostRDMA is a host whose exchanges go through a relay. It goes on as long as it is answered.
type hostRDMA struct {
	*rdmaQueue
	silent nvme.HostCommand // whose answer nobody waits for
}

// unanswered is how long a host waits that may wait for ever, because what it sent was
// changed. Who gives up too early has only not seen the rest.
const unanswered = time.Second

// try carries a command out; false: it is not answered. The memory around data is the
// host's own.
func (h *hostRDMA) try(s nvme.SQE, data []byte) bool {
	const guard = 0xA5
	room := bytes.Repeat([]byte{guard}, len(data)+128)
	mem := room[64 : 64+len(data)]
	copy(mem, data)
	if h.cmd.SQE, h.cmd.Data = s, nil; data != nil {
		h.cmd.Data = [][]byte{mem}
	}
	h.tr.Submit(&h.cmd)
	h.tr.Push()
	select {
	case _, ok := <-h.done:
		if bytes.Count(room[:64], []byte{guard}) != 64 || bytes.Count(room[len(room)-64:], []byte{guard}) != 64 {
			h.t.Error("memory beside that of a command was written to")
		}
		return ok
	case <-time.After(unanswered):
		return false
	}
}

func connectSQE(id uint16) (s nvme.SQE) {
	c := s.NewConnect()
	c.SetQID(id)
	c.SetSQSize(31)
	c.SetKeepAlive(time.Minute)
	return s
}

// admin is an admin queue from Connect to shutdown; false: somewhere it was not answered.
func (h *hostRDMA) admin(d nvme.ConnectData) bool {
	h.silent.Slot = 1
	h.silent.SQE.Init(nvme.AdminAsyncEvent, 0)
	for i, s := range []struct {
		sqe  nvme.SQE
		data []byte
	}{
		{connectSQE(0), d.AppendTo(nil)},
		{sqe(func(s *nvme.SQE) {
			s.NewPropertySet(nvme.PropCC, uint64(nvme.NewConfig(nvme.CommandSetAll, true)))
		}), nil},
		{sqe(func(s *nvme.SQE) { s.NewPropertyGet(nvme.PropCAP) }), nil},
		{sqe(func(s *nvme.SQE) { s.NewIdentify(nvme.CNSController, 0) }), make([]byte, nvme.IdentifyLen)},
		{sqe(func(s *nvme.SQE) { s.NewGetLogPage(nvme.LogSMART, nvme.NSIDAll, 0, 512) }), make([]byte, 512)},
		{sqe(func(s *nvme.SQE) { s.Init(nvme.AdminKeepAlive, 0) }), nil},
		{sqe(func(s *nvme.SQE) { s.Init(nvme.AdminSetFeatures, 0); s.SetCDW(10, 7); s.SetCDW(11, 3|3<<16) }), nil},
		{sqe(func(s *nvme.SQE) { s.Init(nvme.AdminAbort, 0); s.SetCDW(10, 99<<16) }), nil},
		{sqe(func(s *nvme.SQE) { s.NewPropertySet(nvme.PropCC, 1<<14|1) }), nil}, // shutdown
	} {
		if i == 5 {
			h.tr.Submit(&h.silent)
		}
		if !h.try(s.sqe, s.data) {
			return false
		}
	}
	h.tr.Terminate(nil)
	return true
}

// io is an I/O queue with transfers of every kind: in the capsule, by RDMA Read, by RDMA
// Write.
func (h *hostRDMA) io(d nvme.ConnectData) bool {
	for _, s := range []struct {
		sqe  nvme.SQE
		data []byte
	}{
		{connectSQE(1), d.AppendTo(nil)},
		{rw(nvme.OpWrite, 8, 1), pattern(512, 1)},
		{rw(nvme.OpRead, 8, 1), make([]byte, 512)},
		{rw(nvme.OpWrite, 8, 16), pattern(8192, 2)},
		{rw(nvme.OpRead, 8, 16), make([]byte, 8192)},
		{rw(nvme.OpCompare, 8, 1), pattern(512, 2)},
		{rw(nvme.OpWriteZeroes, 8, 8), nil},
		{rw(nvme.OpVerify, 8, 8), nil},
		{sqe(func(s *nvme.SQE) { s.Init(nvme.OpFlush, 1) }), nil},
		{sqe(func(s *nvme.SQE) { s.Init(nvme.OpDatasetManagement, 1); s.SetCDW(11, 4) }), make([]byte, 16)},
	} {
		if !h.try(s.sqe, s.data) {
			return false
		}
	}
	h.tr.Terminate(nil)
	return true
}

// through makes one queue's exchange through a relay, as far as it gets; true: to its end.
func (r *rig) through(t *testing.T, f *relay, crc rdma.CRCMode, id uint16, exchange func(*hostRDMA) bool) bool {
	ctx, cancel := context.WithTimeout(context.Background(), 5*unanswered)
	defer cancel()
	d := nvmerdma.HostDialer{Config: nvmerdma.HostConfig{
		Address: r.addr, Device: hostDevice(), RDMA: rdma.ConnParams{CRC: crc},
		Dial: func(ctx context.Context, _, addr string) (net.Conn, error) { return f.dial(ctx, addr, t) },
	}}
	defer f.wg.Wait()
	tr, err := d.Dial(ctx, nvme.HostQueue{ID: id, Entries: 32, InCapsule: nvmerdma.InCapsule})
	if err != nil {
		return false // the start-up itself was changed
	}
	h := &hostRDMA{rdmaQueue: &rdmaQueue{t: t, tr: tr, done: make(chan struct{}, 1), over: make(chan error, 1)}}
	tr.Start(h.rdmaQueue)
	whole := exchange(h)
	tr.Terminate(io.EOF) // does nothing behind an end in order
	select {
	case <-tr.(*nvmerdma.Host).Ended():
	case <-time.After(ioTime):
		t.Error("the host's side does not end")
	}
	return whole
}

// A well-behaved host's admin and I/O queues over RDMA, with one byte changed of what the
// host or the target sends: start-up, headers, capsules, keyed descriptors, answered Reads.
// With a CRC over each segment nothing of it is believed.
func TestFlippedRDMA(t *testing.T) {
	r := hostileRig(t, func(c *target.Config) { c.Portals[0].CRC = target.CRCOff })
	checked := hostileRig(t, nil)
	by := r.bystander()
	clean := r.flipExchanges(t, rdma.CRCOff, 100)
	by.check(0)
	by = checked.bystander()
	checked.flipExchanges(t, rdma.CRCRequired, 20)
	by.check(0)
	t.Logf("the exchanges have %d bytes", clean)
}

// flipExchanges changes n bytes of each of both queues and ways, or all of them. It returns how
// many bytes there were.
func (r *rig) flipExchanges(t *testing.T, crc rdma.CRCMode, n int) (total int64) {
	if testing.Short() {
		n /= 5
	}
	rnd := rand.New(rand.NewPCG(uint64(n), 5))
	slots := make(chan struct{}, 16)
	var wg sync.WaitGroup
	var ids atomic.Uint32
	admin := func(f *relay) bool {
		return r.through(t, f, crc, 0, func(h *hostRDMA) bool {
			return h.admin(nvme.ConnectData{HostID: nvme.HostID{15: byte(ids.Add(1))}, CntlID: nvme.CntlIDDynamic, Subsystem: subNQN, Host: "nqn.flipped"})
		})
	}
	io := func(f *relay) bool { // a breach ends the controller, so that each has one of its own
		h := r.attach("nqn.flipped", byte(ids.Add(1)), 0)
		defer h.close()
		return r.through(t, f, crc, 1, func(q *hostRDMA) bool { return q.io(h.data) })
	}
	for _, exchange := range []func(*relay) bool{admin, io} {
		var whole relay
		if !exchange(&whole) {
			t.Fatal("a host that behaves is not answered")
		}
		for way := range 2 {
			size := whole.passed[way].Load()
			total += size
			step := max(size/int64(n), 1)
			if *everyByte && crc == rdma.CRCOff { // with a CRC one byte is as good as another
				step = 1
			}
			for at := int64(0); at < size; at += step {
				f := &relay{toHost: way == 1, at: min(at+rnd.Int64N(step), size-1), by: byte(1 + rnd.IntN(255))}
				slots <- struct{}{}
				wg.Go(func() {
					defer func() { <-slots }()
					exchange(f)
				})
			}
		}
	}
	wg.Wait()
	return total
}
