package nvmerdma

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"syscall"
	"testing"

	"softiser/internal/loopback"
	"softiser/internal/nvme"
	"softiser/internal/nvme/queuetest"
	"softiser/rdma"
)

const queueEntries = queuetest.Entries

// newQueue makes the host's side of a connection whose other side peer answers for.
func newQueue(t testing.TB, inCapsule int, peer func(context.Context, net.Conn) error) *queuetest.Queue {
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
	q := queuetest.NewQueue(t, h, queueEntries)
	h.Start(q)
	return q
}

// scripted makes a host whose controller is a bare queue pair.
func scripted(t *testing.T, h *host) *queuetest.Queue {
	return newQueue(t, 0, func(ctx context.Context, nc net.Conn) error {
		r, err := rdma.Server(ctx, nc, nil)
		if err != nil {
			return err
		}
		return r.Accept(ctx, h.qp, &rdma.ConnParams{PrivateData: acceptData(queueEntries), ORD: 16})
	})
}

// A queue has from two entries to as many as commands can be told apart; what is not asked for is closed.
func TestHostQueueBounds(t *testing.T) {
	d := device(t, Config{Host: true})
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // one that may be asked for ends by this
	for _, c := range []struct {
		entries, slots int
		ok             bool
	}{
		{0, 0, false}, {1, 0, false}, {1, 8, false}, {2, 0, true}, {nvme.MaxHostEntries, 0, true}, {nvme.MaxHostEntries + 1, 0, false},
		{2, nvme.MaxHostEntries, true}, {2, nvme.MaxHostEntries + 1, false},
	} {
		client, server := loopback.Pair(t)
		_, err := NewHost(ctx, client, HostConfig{Device: d}, nvme.HostQueue{ID: 1, Entries: c.entries, Slots: c.slots})
		if err == nil || errors.Is(err, context.Canceled) != c.ok || strings.Contains(err.Error(), "it has 2 to") == c.ok {
			t.Errorf("%+v: %v", c, err)
		}
		if n, err := server.Read(make([]byte, 1)); n != 0 || err == nil {
			t.Errorf("%+v: the controller reads %d bytes, %v", c, n, err)
		}
		server.Close()
	}
}

// A host that gives a connection up ends it by a reset: nothing of it is sent any more that waits in the
// socket, where it would arrive behind what the host repeats over the next one. One that is at its end
// has everything sent.
func TestHostLeavesNothing(t *testing.T) {
	for _, tt := range []struct {
		why  error
		want error
	}{{errors.New("mute"), syscall.ECONNRESET}, {nil, io.EOF}} {
		h := newHostWith(t, capsuleLen)
		q := scripted(t, h)
		q.H.Terminate(tt.why)
		if err := q.End(); !errors.Is(err, tt.why) {
			t.Errorf("ended with %v, given up for %v", err, tt.why)
		}
		<-h.qp.Done()
		if err := h.qp.Err(); !errors.Is(err, tt.want) {
			t.Errorf("given up for %v: the controller has met %v; want %v", tt.why, err, tt.want)
		}
	}
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
			q.H.Submit(q.Set(0, nvme.OpRead, 0, make([]byte, 512)))
			q.H.Submit(q.Set(1, nvme.OpRead, 0, make([]byte, 512)))
			other = q.Command(1).SQE.SGL().Key()
			var e nvme.CQE
			e.SetCID(q.Command(0).SQE.CID())
			msg, op, inv := c.answer(&e)
			q.H.Push()
			h.await(t)
			h.send(msg, op, inv)
			err := q.End()
			if !errors.Is(err, nvme.ErrBreach) || c.says != "" && !strings.Contains(err.Error(), c.says) {
				t.Errorf("ended with %v", err)
			}
			if q.Done() != 0 {
				t.Error("a command was completed")
			}
			q.H.Submit(q.Set(2, nvme.OpFlush, 0)) // nothing happens
			q.H.Push()
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
			q.H.Submit(q.Set(0, nvme.OpRead, 0, mem))
			q.H.Push()
			h.await(t)
			d := q.Command(0).SQE.SGL()
			op, at := rdma.OpWrite, rdma.RemoteAddr{STag: d.Key(), TO: d.Address()}
			if reach != nil {
				op, at = reach(d)
			} else {
				var e nvme.CQE
				e.SetCID(q.Command(0).SQE.CID())
				h.send(e[:], rdma.OpSend, 0)
				q.Wait()
			}
			data := queuetest.Pattern(512, 3)
			if err := h.qp.PostSend(rdma.SendWR{ID: 5, Op: op, Remote: at, SGL: []rdma.SGE{{Mem: data, LKey: h.pd.LocalDMAKey()}}}); err != nil {
				t.Fatal(err)
			}
			if err := q.End(); err == nil {
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
			return r.Reject((&RejectError{Status: RejectQID}).data())
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
