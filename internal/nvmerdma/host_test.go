package nvmerdma

import (
	"bytes"
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"softiser/internal/loopback"
	"softiser/internal/nvme"
	"softiser/rdma"
)

// queue is the upper layer of a host's queue.
type queue struct {
	t         testing.TB
	h         *Host
	cmds      []*nvme.HostCommand
	completed chan *nvme.HostCommand
	ended     chan error
}

func (q *queue) Completed(c *nvme.HostCommand) { q.completed <- c }
func (q *queue) BatchEnd()                     {}
func (q *queue) Ended(err error)               { q.ended <- err }

const queueEntries = 32

// newQueue makes the host's side of a connection whose other side peer answers for.
func newQueue(t testing.TB, inCapsule int, peer func(context.Context, net.Conn) error) *queue {
	t.Helper()
	d := device(t, Config{Host: true})
	client, server := loopback.Pair(t)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- peer(ctx, server) }()
	h, err := NewHost(ctx, client, HostConfig{Device: d}, nvme.HostQueue{ID: 1, Entries: queueEntries, InCapsule: inCapsule})
	if err2 := <-done; err != nil || err2 != nil {
		t.Fatal(err, err2)
	}
	q := &queue{t: t, h: h, ended: make(chan error, 1), completed: make(chan *nvme.HostCommand, queueEntries)}
	for i := range queueEntries {
		q.cmds = append(q.cmds, &nvme.HostCommand{Slot: i})
	}
	h.Start(q)
	return q
}

// pair makes a host and the disk that it talks to.
func pair(t testing.TB, inCapsule int, mem []byte) (*queue, *disk) {
	t.Helper()
	var d *disk
	dev := device(t, Config{})
	q := newQueue(t, inCapsule, func(ctx context.Context, nc net.Conn) error {
		c, err := dev.Accept(ctx, nc, AcceptConfig{Queues: 4, Entries: queueEntries})
		if err != nil {
			return err
		}
		d = &disk{c: c, mem: mem, arrived: map[int]func(error){}, ended: make(chan error, 1)}
		c.SetEntries(queueEntries)
		c.Start(d)
		return nil
	})
	return q, d
}

// set makes command i of the queue one that reads or writes data at at.
func (q *queue) set(i int, op nvme.Opcode, at int, data ...[]byte) *nvme.HostCommand {
	c := q.cmds[i]
	c.SQE.Init(op, 1)
	c.SQE.ReadWrite().SetRange(uint64(at), 1)
	c.Data = data
	return c
}

func (q *queue) wait() *nvme.HostCommand {
	q.t.Helper()
	select {
	case c := <-q.completed:
		return c
	case err := <-q.ended:
		q.t.Fatalf("the connection ended: %v", err)
	case <-time.After(patience):
		q.t.Fatal("no completion")
	}
	return nil
}

// do runs one command.
func (q *queue) do(c *nvme.HostCommand) (nvme.Status, error) {
	q.t.Helper()
	q.h.Submit(c)
	q.h.Push()
	if got := q.wait(); got != c {
		q.t.Fatal("another command was completed")
	}
	return c.CQE.Status(), c.Err
}

func (q *queue) end() error {
	q.t.Helper()
	select {
	case err := <-q.ended:
		<-q.h.Ended()
		return err
	case <-time.After(patience):
		q.t.Fatal("the connection does not end")
		return nil
	}
}

func (q *queue) close(d *disk) {
	q.t.Helper()
	q.h.Terminate(nil)
	if err := q.end(); err != nil {
		q.t.Error(err)
	}
	if err := <-d.ended; err != nil {
		q.t.Error(err)
	}
	<-d.c.Ended()
}

// The host and the controller of this package: data of all lengths, in pieces, in the
// capsule and not.
func TestHostTransfers(t *testing.T) {
	mem := make([]byte, 3<<20)
	for _, inCapsule := range []int{0, 1024, 1 << 20} {
		q, d := pair(t, inCapsule, mem)
		for _, n := range []int{1, 512, 4096, 4097, 1<<20 + 1, 3 << 20} {
			data := pattern(n, byte(n))
			before := q.h.Stats().PayloadCopied
			if s, err := q.do(q.set(0, nvme.OpWrite, 0, data[:n/3], nil, data[n/3:])); !s.OK() || err != nil {
				t.Fatalf("write of %d bytes: %v, %v", n, s, err)
			}
			if in := q.h.Stats().PayloadCopied-before == uint64(n); n > copied && in != (n <= min(inCapsule, InCapsule)) {
				t.Errorf("in-capsule data to %d bytes, %d: %v", inCapsule, n, in)
			}
			got := make([]byte, n)
			c := q.set(1, nvme.OpRead, 0, got[:n/2], got[n/2:])
			if s, err := q.do(c); !s.OK() || err != nil || c.Received != uint32(n) || !bytes.Equal(got, data) {
				t.Fatalf("read of %d bytes: %v, %v, %d have come", n, s, err, c.Received)
			}
			q.h.mu.Lock()
			if q.h.table.Len() != 0 || q.h.ios[0].w != nil || q.h.ios[1].w != nil {
				t.Error("something of the commands is left")
			}
			q.h.mu.Unlock()
		}
		if s, err := q.do(q.set(2, nvme.OpFlush, 0)); !s.OK() || err != nil {
			t.Errorf("%v, %v", s, err)
		}
		if !strings.Contains(q.h.Describe(), "NVMe/RDMA") || q.h.MaxTransfer() < 8<<20 {
			t.Errorf("%s, %d", q.h.Describe(), q.h.MaxTransfer())
		}
		q.close(d)
	}
}

// copied is what the verbs copy of payload by themselves.
const copied = 256

// Many commands at once, filled again as they are answered.
func TestHostQueue(t *testing.T) {
	mem := pattern(1<<20, 1)
	q, d := pair(t, 4096, mem)
	bufs := make([][]byte, queueEntries)
	next := func(i, round int) {
		q.h.Submit(q.set(i, []nvme.Opcode{nvme.OpRead, nvme.OpWrite, nvme.OpRead}[(i+round)%3], i*8192, bufs[i]))
	}
	for i := range bufs {
		bufs[i] = bytes.Clone(mem[i*8192:][:8192])
		next(i, 0)
	}
	q.h.Push()
	const rounds = 3000
	for r := range rounds {
		c := q.wait()
		if !c.CQE.Status().OK() || c.Err != nil || !bytes.Equal(bufs[c.Slot], mem[c.Slot*8192:][:8192]) {
			t.Fatalf("round %d, slot %d: %v, %v", r, c.Slot, c.CQE.Status(), c.Err)
		}
		if r < rounds-queueEntries {
			next(c.Slot, r)
			q.h.Push()
		}
	}
	q.close(d)
}

// Nothing is allocated for a command, at either end.
func TestHostAllocations(t *testing.T) {
	if testing.Short() || raceEnabled {
		t.Skip("allocations are counted without the race detector, and take their time")
	}
	mem := make([]byte, 1<<20)
	q, d := pair(t, 4096, mem)
	buf := [][]byte{make([]byte, 4096), make([]byte, 65536)}
	for _, c := range []struct {
		name string
		op   nvme.Opcode
		data [][]byte
	}{{"read 4 KiB", nvme.OpRead, buf[:1]}, {"read 68 KiB", nvme.OpRead, buf}, {"write 4 KiB", nvme.OpWrite, buf[:1]}, {"write 64 KiB", nvme.OpWrite, buf[1:]}, {"flush", nvme.OpFlush, nil}} {
		k := q.set(0, c.op, 0)
		k.Data = c.data
		bad := false
		once := func() {
			q.h.Submit(k)
			q.h.Push()
			<-q.completed
			bad = bad || !k.CQE.Status().OK() || k.Err != nil
		}
		for range 50 {
			once()
		}
		// The disk of the test has a map and a function for each transfer that it waits for.
		want := 0.0
		if c.name == "write 64 KiB" {
			want = 4
		} else if c.op == nvme.OpRead {
			want = 2
		}
		if n := testing.AllocsPerRun(300, once); n > want || bad {
			t.Errorf("%s: %v allocations, %v are the disk's; failed: %v", c.name, n, want, bad)
		}
	}
	q.close(d)
}

// scripted makes a host whose controller is a bare queue pair.
func scripted(t *testing.T, h *host) *queue {
	return newQueue(t, 0, func(ctx context.Context, nc net.Conn) error {
		r, err := rdma.Server(ctx, nc, nil)
		if err != nil {
			return err
		}
		return r.Accept(ctx, h.qp, &rdma.ConnParams{PrivateData: appendAccept(nil, queueEntries), ORD: 16})
	})
}

// What a controller must not answer with; none of it is believed, and nothing of the
// command's memory is reached any more.
func TestHostBreaches(t *testing.T) {
	other := uint32(0)
	for name, c := range map[string]struct {
		answer func(e *nvme.CQE) ([]byte, rdma.Opcode, uint32)
		says   string
	}{
		"short": {func(e *nvme.CQE) ([]byte, rdma.Opcode, uint32) { return e[:15], rdma.OpSend, 0 }, "a response of 15 bytes"},
		"empty": {func(*nvme.CQE) ([]byte, rdma.Opcode, uint32) { return nil, rdma.OpSend, 0 }, "a response of 0 bytes"},
		"long":  {func(e *nvme.CQE) ([]byte, rdma.Opcode, uint32) { return append(e[:], 0), rdma.OpSend, 0 }, ""},
		"unknown command": {func(e *nvme.CQE) ([]byte, rdma.Opcode, uint32) {
			e.SetCID(e.CID() + 1<<12)
			return e[:], rdma.OpSend, 0
		}, "which is not outstanding"},
		"another key": {func(e *nvme.CQE) ([]byte, rdma.Opcode, uint32) { return e[:], rdma.OpSendInv, other }, "which is not the command's"},
		"no key":      {func(e *nvme.CQE) ([]byte, rdma.Opcode, uint32) { return e[:], rdma.OpSendInv, 0x77777700 }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHostWith(t, capsuleLen)
			q := scripted(t, h)
			q.h.Submit(q.set(0, nvme.OpRead, 0, make([]byte, 512)))
			q.h.Submit(q.set(1, nvme.OpRead, 0, make([]byte, 512)))
			other = q.cmds[1].SQE.SGL().Key()
			var e nvme.CQE
			e.SetCID(q.cmds[0].SQE.CID())
			msg, op, inv := c.answer(&e)
			q.h.Push()
			h.await(t)
			h.send(msg, op, inv)
			err := q.end()
			if !errors.Is(err, nvme.ErrBreach) || c.says != "" && !strings.Contains(err.Error(), c.says) {
				t.Errorf("ended with %v", err)
			}
			if len(q.completed) != 0 {
				t.Error("a command was completed")
			}
			q.h.Submit(q.set(2, nvme.OpFlush, 0)) // nothing happens
			q.h.Push()
		})
	}
}

// A controller reaches the memory of a command as its descriptor says and no further, and
// not any more when it has answered.
func TestHostMemory(t *testing.T) {
	for name, reach := range map[string]func(d *nvme.SGL) (op rdma.Opcode, at rdma.RemoteAddr){
		"beyond": func(d *nvme.SGL) (rdma.Opcode, rdma.RemoteAddr) {
			return rdma.OpWrite, rdma.RemoteAddr{STag: d.Key(), TO: d.Address() + 1}
		},
		"read what is to be written": func(d *nvme.SGL) (rdma.Opcode, rdma.RemoteAddr) {
			return rdma.OpRead, rdma.RemoteAddr{STag: d.Key(), TO: d.Address()}
		},
		"after the answer": nil,
	} {
		t.Run(name, func(t *testing.T) {
			h := newHostWith(t, capsuleLen)
			q := scripted(t, h)
			mem := make([]byte, 512)
			q.h.Submit(q.set(0, nvme.OpRead, 0, mem))
			q.h.Push()
			h.await(t)
			d := q.cmds[0].SQE.SGL()
			op, at := rdma.OpWrite, rdma.RemoteAddr{STag: d.Key(), TO: d.Address()}
			if reach != nil {
				op, at = reach(d)
			} else {
				var e nvme.CQE
				e.SetCID(q.cmds[0].SQE.CID())
				h.send(e[:], rdma.OpSend, 0)
				q.wait()
			}
			data := pattern(512, 3)
			if err := h.qp.PostSend(rdma.SendWR{ID: 5, Op: op, Remote: at, SGL: []rdma.SGE{{Mem: data, LKey: h.pd.LocalDMAKey()}}}); err != nil {
				t.Fatal(err)
			}
			if err := q.end(); err == nil {
				t.Error("the connection lives")
			}
			if mem[511] != 0 || name == "after the answer" && mem[0] != 0 {
				t.Error("the memory was reached")
			}
		})
	}
}

// await waits for a capsule.
func (h *host) await(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for {
		var wcs [1]rdma.WC
		if h.cq.Poll(wcs[:]) == 1 {
			if wcs[0].Opcode == rdma.WCRecv {
				return
			}
			continue
		}
		if err := h.cq.Wait(ctx); err != nil {
			t.Fatal(err)
		}
	}
}

// A controller that is not NVMe's, and one that refuses.
func TestHostRefused(t *testing.T) {
	d := device(t, Config{Host: true})
	for name, c := range map[string]struct {
		answer func(ctx context.Context, r *rdma.ConnRequest, h *host) error
		says   string
	}{
		"rejected": {func(_ context.Context, r *rdma.ConnRequest, _ *host) error {
			return r.Reject((&RejectError{Status: RejectQID}).appendTo(nil))
		}, "invalid queue identifier"},
		"rejected by MPA": {func(_ context.Context, r *rdma.ConnRequest, _ *host) error { return r.Reject(nil) }, "reject"},
		"iSER": {func(ctx context.Context, r *rdma.ConnRequest, h *host) error {
			return r.Accept(ctx, h.qp, &rdma.ConnParams{PrivateData: []byte{0x80, 0, 0, 0}})
		}, "is it one of NVMe?"},
	} {
		h := newHost(t)
		a, b := loopback.Pair(t)
		done := make(chan error, 1)
		go func() {
			r, err := rdma.Server(context.Background(), b, nil)
			if err == nil {
				err = c.answer(context.Background(), r, h)
			}
			done <- err
		}()
		_, err := NewHost(t.Context(), a, HostConfig{Device: d}, nvme.HostQueue{Entries: queueEntries})
		if err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", name, err)
		}
		if err := <-done; err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := (&HostDialer{HostConfig{Device: d, Address: loopback.FreeAddr(t)}}).Dial(t.Context(), nvme.HostQueue{Entries: 2}); err == nil {
		t.Error("connected to nobody")
	}
}

func FuzzResponse(f *testing.F) {
	f.Add(make([]byte, 16))
	f.Fuzz(func(t *testing.T, b []byte) {
		if e, err := parseResponse(b); (err == nil) != (len(b) == nvme.CQELen) || err == nil && !bytes.Equal(e[:], b) {
			t.Errorf("%v, %v", e, err)
		}
	})
}
