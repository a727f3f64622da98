package nvmerdma

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"softiser/internal/loopback"
	"softiser/internal/nvme"
	"softiser/internal/nvme/queuetest"
	"softiser/rdma"
)

const patience = time.Minute

// host is a scripted host: a bare queue pair.
type host struct {
	t    *testing.T
	disk *queuetest.Disk
	c    *Controller // below disk
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
	h.serve(c, mem)
	c.SetEntries(32)
	c.Start(h.disk)
	return h
}

// serve puts a disk on the controller's side.
func (h *host) serve(c *Controller, mem []byte) {
	h.c, h.disk = c, queuetest.NewDisk(h.t, c, mem)
}

// close ends the host's side and checks that the controller's ends well.
func (h *host) close() {
	h.t.Helper()
	h.qp.Disconnect()
	if err := h.disk.Over(); err != nil {
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

// Data of all lengths goes both ways; the response closes the host's memory exactly when
// the descriptor says so.
func TestTransfers(t *testing.T) {
	mem := make([]byte, 3<<20)
	h := start(t, Config{}, mem)
	for _, kind := range []nvme.SGLKind{nvme.SGLKeyed, nvme.SGLKeyedInvalidate} {
		for _, n := range []int{1, 512, 4096, 1<<20 + 1, 3 << 20} {
			data := queuetest.Pattern(n, byte(n)+byte(kind))
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
			h.disk.Fence()
			if !bytes.Equal(mem[:n], data) {
				t.Errorf("a write of %d bytes has arrived damaged", n)
			}
			clear(data)
			do(nvme.OpRead, rdma.AccessRemoteWrite)
			if !bytes.Equal(data, mem[:n]) {
				t.Errorf("a read of %d bytes has arrived damaged", n)
			}
		}
	}
	for _, n := range []int{1, 512, InCapsule} {
		data := queuetest.Pattern(n, 7)
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

// A host that has no RFC 6581, or revision 2 without the flag S, tells nothing of its Reads, and is
// served; one that tells that it serves none is not. Replies are of the request's kind (RFC 6581 §6).
func TestStartUps(t *testing.T) {
	const reply, accepted, refused = "MPA ID Rep Frame", "\x00\x00\x1f\x00", "\x00\x00\x07\x00" // an accept of a queue of 31, reject status 7
	for name, c := range map[string]struct {
		head string // of the request, behind the key
		want string // of the reply, to the fourth byte of the private data
	}{
		"revision 1":                      {"\x40\x01\x00\x20", "\x40\x01\x00\x20" + accepted},
		"revision 1, reserved bit set":    {"\x50\x01\x00\x20", "\x40\x01\x00\x20" + accepted},
		"revision 2 without S":            {"\x40\x02\x00\x20", "\x40\x02\x00\x20" + accepted},
		"revision 2":                      {"\x50\x02\x00\x24\x00\x10\x00\x00", "\x50\x02\x00\x24\x00\x01\x00\x10" + accepted},
		"revision 2, left to the ULP":     {"\x50\x02\x00\x24\x3f\xff\x3f\xff", "\x50\x02\x00\x24\x3f\xff\x3f\xff" + accepted},
		"revision 2, no Reads are served": {"\x50\x02\x00\x24\x00\x00\x00\x10", "\x30\x02\x00\x08\x00\x00\x00\x00" + refused},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := loopback.Pair(t)
			defer a.Close()
			_ = a.SetDeadline(time.Now().Add(patience))
			if _, err := a.Write((&Request{QID: 1, HostRecv: 32, HostSend: 30}).AppendTo([]byte("MPA ID Req Frame" + c.head))); err != nil {
				t.Fatal(err)
			}
			k, err := device(t, Config{}).Accept(t.Context(), b, AcceptConfig{Queues: 4, Entries: 32})
			if (err == nil) != strings.HasSuffix(c.want, accepted) {
				t.Error(err)
			}
			got := make([]byte, len(reply+c.want))
			if _, err := io.ReadFull(a, got); err != nil || string(got) != reply+c.want {
				t.Errorf("answered % x, %v; want % x", got[len(reply):], err, c.want)
			}
			if k != nil {
				if k.pump.ORD == 0 {
					t.Error("nothing will be read")
				}
				k.Terminate(errors.New("end of the test"))
				<-k.Ended()
			}
		})
	}
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
			h.disk.Hold(func(*nvme.Command) bool { return true })
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
			h.disk.Hold(func(*nvme.Command) bool {
				h.qp.Abort(nil)
				<-h.qp.Done()
				return false
			})
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
			err := h.disk.End()
			if c.breach != errors.Is(err, nvme.ErrBreach) || c.says != "" && !strings.Contains(err.Error(), c.says) {
				t.Errorf("ended with %v", err)
			}
			// What was not answered is answered now, and comes to its end.
			h.c.mu.Lock()
			for _, k := range h.c.slots.all {
				if !k.answered {
					held = append(held, &k.Command)
				}
			}
			h.c.mu.Unlock()
			for _, k := range held {
				h.disk.Respond(k, nvme.Success)
			}
			h.c.Push()
			h.disk.Empty()
		})
	}
}

// The response to a write that is aborted waits until the host has answered the Read, and
// for that alone: the host may invalidate the memory then.
func TestCancel(t *testing.T) {
	mem := make([]byte, 1<<20)
	h := start(t, Config{}, mem)
	var fail string
	h.disk.Hold(func(k *nvme.Command) bool {
		h.disk.Get(k, [][]byte{mem}, func(error) {})
		if k.SQE.SGL().Kind() == nvme.SGLKeyedInvalidate {
			h.c.Push() // else it has not even been asked for
		}
		h.c.Cancel(k.Use)
		h.disk.Respond(k, nvme.AbortRequested)
		h.c.mu.Lock()
		defer h.c.mu.Unlock()
		if waits := h.c.pump.Waiting() == 0; waits != h.c.slots.all[k.Slot].reading {
			fail = "the response does not wait for what the host has still to send, and for that alone"
		}
		return true
	})
	for _, kind := range []nvme.SGLKind{nvme.SGLKeyed, nvme.SGLKeyedInvalidate} {
		w, stag, at := h.window(queuetest.Pattern(len(mem), 9), rdma.AccessRemoteRead)
		s := h.command(nvme.OpWrite, 0)
		s.SGL().SetKeyed(kind, at, uint32(len(mem)), stag)
		h.send(s[:], rdma.OpSend, 0)
		if e, _ := h.recv(); e.Status() != nvme.AbortRequested || w.Valid() == (kind == nvme.SGLKeyedInvalidate) {
			t.Errorf("%v: % x", kind, e)
		}
		if fail != "" {
			t.Errorf("%v: %s", kind, fail)
		}
	}
	h.close()
}

// No more is read from a host's memory than its descriptor names.
func TestReadsWithinTheDescriptor(t *testing.T) {
	mem := make([]byte, 1024)
	h := start(t, Config{}, mem)
	var taken []string
	h.disk.Hold(func(k *nvme.Command) bool {
		for off, n := range map[uint32]int{0: 513, 1: 512, 512: 1, 1<<32 - 1: 1, 100: 0} {
			if h.c.GetData(k, off, [][]byte{mem[:n]}) == nil {
				taken = append(taken, fmt.Sprintf("%d bytes at %d", n, off))
			}
		}
		h.disk.Respond(k, nvme.InternalError)
		return true
	})
	_, stag, at := h.window(make([]byte, 512), rdma.AccessRemoteRead)
	s := h.command(nvme.OpWrite, 0)
	s.SGL().SetKeyed(nvme.SGLKeyed, at, 512, stag)
	h.send(s[:], rdma.OpSend, 0)
	if e, _ := h.recv(); e.Status() != nvme.InternalError || len(taken) > 0 {
		t.Errorf("% x; taken: %q", e, taken)
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
	st := h.c.Stats()
	if st.CapsulesIn != rounds || st.CapsulesOut != rounds || st.PayloadIn == 0 || st.PayloadIn%4096 != 0 || st.PayloadOut < st.PayloadIn {
		t.Errorf("%+v", st)
	}
	if n := len(h.c.slots.all); n > 32+rdmaDepth {
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
	d.Hold(func(k *nvme.Command) bool {
		if k.NoRoom || k.SQE.Opcode() == nvme.OpFlush {
			return false
		}
		held = append(held, k)
		return true
	})
	h.c.SetEntries(200)
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
		d.Respond(k, nvme.Success)
	}
	h.c.Push()
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
		h.serve(c, nil)
		h.send(h.command(nvme.OpFlush, 0)[:], rdma.OpSend, 0)
		if started {
			c.Start(h.disk)
			h.recv()
			h.close()
		} else {
			reason := errors.New("closed")
			c.Terminate(reason)
			<-c.Ended()
			c.Start(h.disk) // by somebody who has not seen it
			if err := h.disk.End(); err != reason {
				t.Errorf("started after its end: told %v", err)
			}
		}
	}
}
