package nvmerdma

import (
	"bytes"
	"errors"
	"os"
	"testing"

	"softiser/internal/await"
	"softiser/internal/handover/handovertest"
	"softiser/internal/nvme"
	"softiser/internal/nvme/queuetest"
	"softiser/rdma"
)

func always() bool { return true }

// crossed goes on with a parked connection as another process does, which begins with mem. The
// old one stays as it is until the end of the test.
func (h *host) crossed(mem []byte) {
	t := h.t
	t.Helper()
	k, nc := handovertest.Crossed(t, h.c.Carry)
	old := h.c
	t.Cleanup(func() {
		old.Terminate(errors.New("end of the test"))
		<-old.Ended()
	})
	c, err := device(t, Config{}).Restore(nc, rdma.ConnParams{}, &k)
	if err != nil {
		t.Fatal(err)
	}
	h.serve(c, mem)
	c.Start(h.disk)
}

// answered waits for the response to a command.
func (h *host) answered(cid uint16) {
	h.t.Helper()
	if e, _ := h.recv(); e.CID() != cid || !e.Status().OK() {
		h.t.Fatalf("% x, want the answer to %d", e, cid)
	}
}

// inCapsule sends a short write.
func (h *host) inCapsule(at int, data []byte) (cid uint16) {
	s := h.command(nvme.OpWrite, at)
	s.SGL().SetBlock(nvme.SGLInCapsule, 0, uint32(len(data)))
	h.send(append(s[:], data...), rdma.OpSend, 0)
	return s.CID()
}

// TestPark: while the data of a command is fetched a parked connection reads on, and keeps the
// commands that come; they begin here when it goes on, or in the next process, in their order.
func TestPark(t *testing.T) {
	for _, next := range []bool{false, true} {
		mem := make([]byte, 1<<20)
		h := start(t, Config{}, mem)
		held := make(chan *nvme.Command, 1)
		h.disk.Hold(func(k *nvme.Command) bool {
			if k.SQE.SGL().Keyed() {
				held <- k
				return true
			}
			return false
		})
		data := queuetest.Pattern(100_000, 3)
		_, stag, at := h.window(data, rdma.AccessRemoteRead)
		s := h.command(nvme.OpWrite, 0)
		s.SGL().SetKeyed(nvme.SGLKeyedInvalidate, at, uint32(len(data)), stag)
		h.send(s[:], rdma.OpSend, 0)
		write := <-held
		if !h.c.Park(always) || h.c.Park(always) {
			t.Fatal("it is parked twice, or not at all")
		}
		await.True(t, "it stands", h.c.Stands)
		short := [][]byte{queuetest.Pattern(512, 4), queuetest.Pattern(512, 5)}
		first := h.inCapsule(200_000, short[0])
		second := h.inCapsule(200_000, short[1])
		h.disk.Execute(write)
		h.c.Push()
		h.answered(s.CID())
		await.True(t, "it stands still", h.c.Still)
		if n, _ := h.disk.Commands(); n != 1 {
			t.Fatalf("%d commands have begun", n)
		}
		if !bytes.Equal(mem[:len(data)], data) {
			t.Fatal("wrong data")
		}
		if next {
			h.crossed(mem)
		} else {
			h.c.Unpark()
		}
		h.answered(first)
		h.answered(second)
		h.disk.Fence()
		if !bytes.Equal(mem[200_000:200_512], short[1]) {
			t.Fatal("the commands that were kept have begun in another order")
		}
		h.answered(h.inCapsule(0, short[0]))
		h.close()
	}
}

// TestOutstandingBound: a queue has no more commands of another process than entries.
func TestOutstandingBound(t *testing.T) {
	h := start(t, Config{}, nil)
	h.c.mu.Lock()
	was := h.c.open
	h.c.open = h.c.entries
	h.c.mu.Unlock()
	if h.c.Outstanding(new(nvme.SQE)) != nil {
		t.Error("one more than the queue has entries")
	}
	h.c.mu.Lock()
	h.c.open = was
	h.c.mu.Unlock()
	h.close()
}

// TestParkEnds: a connection with commands that were kept ends, and lets go of them.
func TestParkEnds(t *testing.T) {
	h := start(t, Config{}, make([]byte, 1<<20))
	busy := make(chan *nvme.Command, 1)
	h.disk.Hold(func(k *nvme.Command) bool { busy <- k; return true })
	data := make([]byte, 4096)
	_, stag, at := h.window(data, rdma.AccessRemoteRead)
	s := h.command(nvme.OpWrite, 0)
	s.SGL().SetKeyed(nvme.SGLKeyed, at, uint32(len(data)), stag)
	h.send(s[:], rdma.OpSend, 0)
	write := <-busy
	h.c.Park(always)
	await.True(t, "it stands", h.c.Stands)
	h.inCapsule(0, data)
	h.disk.Execute(write)
	h.c.Push()
	h.answered(s.CID())
	await.True(t, "it stands still", h.c.Still)
	if _, fd, err := h.c.Carry(); err != nil {
		t.Fatal(err)
	} else if err := os.NewFile(uintptr(fd), "").Close(); err != nil {
		t.Fatal(err)
	}
	h.c.Terminate(errors.New("over"))
	if err := h.disk.Over(); err == nil {
		t.Error("it has ended without a reason")
	}
	if h.c.Park(always) {
		t.Error("it can be parked at its end")
	}
	h.c.Unpark()
}

// TestRestoreRefuses: what no process of ours carries is refused.
func TestRestoreRefuses(t *testing.T) {
	d := device(t, Config{})
	good := Carried{QP: rdma.Carried{Rev: 2, IRD: 1, ORD: 8, FPDUSize: 1500}, Entries: 2, Kept: []Kept{{SQE: make([]byte, nvme.SQELen)}}}
	if err := good.Check(); err != nil {
		t.Fatal(err)
	}
	for name, spoil := range map[string]func(*Carried){
		"initiator": func(k *Carried) { k.QP.Initiator = true },
		"entries":   func(k *Carried) { k.Entries = 0 },
		"many":      func(k *Carried) { k.Kept = make([]Kept, 3) },
		"command":   func(k *Carried) { k.Kept = []Kept{{SQE: make([]byte, 63)}} },
		"capsule":   func(k *Carried) { k.Kept = []Kept{{SQE: make([]byte, 64), Data: make([]byte, InCapsule+1)}} },
		"unread":    func(k *Carried) { k.QP.Unread = make([]byte, 1<<20) },
	} {
		k := good
		spoil(&k)
		if k.Check() == nil {
			t.Errorf("%s: taken", name)
		}
		if _, err := d.Restore(nil, rdma.ConnParams{}, &k); err == nil {
			t.Errorf("%s: restored", name)
		}
	}
}
