package nvmetcp_test

import (
	"errors"
	"testing"

	"softiser/internal/await"
	"softiser/internal/handover/handovertest"
	"softiser/internal/nvme"
	"softiser/internal/nvme/queuetest"
	. "softiser/internal/nvmetcp"
)

// A host's connection goes from process to process with a command outstanding, wherever the
// answer to that is cut.
func TestHostCarriedAtEveryByte(t *testing.T) {
	for _, dg := range []Digests{0, DigestHeader | DigestData} {
		var ends []*queuetest.Queue
		q, p := script(t, HostConfig{Digests: dg}, 2)
		for cut := 0; ; cut++ {
			c := q.Set(0, nvme.OpFlush, 0)
			q.H.Submit(c)
			q.H.Push()
			s, _ := p.command()
			out := p.resp(s.CID(), 0)
			if cut == len(out) {
				break
			}
			before := q.H.Stats().ReceiveCalls
			p.write(out[:cut])
			await.True(t, "what comes before the cut is received", func() bool { return cut == 0 || q.H.Stats().ReceiveCalls != before })
			h := q.H.(*Host)
			if !h.Park(func() bool { return true }) || h.Park(func() bool { return true }) {
				t.Fatal("it is parked twice, or not at all")
			}
			await.True(t, "it stands", func() bool { h.Nudge(); return h.Still() })
			next := crossedHost(t, h, c)
			ends = append(ends, q)
			q = next
			p.write(out[cut:])
			if c := q.Wait(); c.CQE.Status() != 0 || c.CQE.CID() != s.CID() {
				t.Fatalf("cut at %d: %v", cut, c.CQE)
			}
		}
		for _, q := range append(ends, q) {
			q.H.Terminate(errors.New("enough"))
			q.H.(*Host).Unpark()
			q.End()
		}
		p.nc.Close()
	}
}

// crossedHost goes on with a parked connection as another process does, c being outstanding.
func crossedHost(t *testing.T, h *Host, c *nvme.HostCommand) *queuetest.Queue {
	t.Helper()
	k, nc := handovertest.Crossed(t, h.Carry)
	n, err := RestoreHost(nc, HostConfig{}, &k)
	if err != nil {
		t.Fatal(err)
	}
	q := queuetest.NewQueue(t, n, k.Slots)
	o := q.Set(c.Slot, c.SQE.Opcode(), 0)
	o.SQE = c.SQE
	if err := n.Outstanding(o); err != nil || n.Outstanding(o) == nil {
		t.Fatalf("%v, or it is outstanding twice", err)
	}
	n.Start(q)
	return q
}

// A host that is parked says nothing, and goes on.
func TestHostParks(t *testing.T) {
	q, p := script(t, HostConfig{}, 2)
	h := q.H.(*Host)
	for range 3 {
		h.Park(func() bool { return true })
		await.True(t, "it stands", func() bool { h.Nudge(); return h.Still() })
		sent := h.Stats().SendCalls
		h.Submit(q.Set(0, nvme.OpFlush, 0))
		h.Push()
		if n := h.Stats().SendCalls; n != sent {
			t.Fatalf("it has sent %d times", n-sent)
		}
		if _, _, err := h.Carry(); err == nil {
			t.Fatal("it is carried with something to say")
		}
		h.Unpark()
		s, _ := p.command()
		p.write(p.resp(s.CID(), 0))
		q.Wait()
	}
	h.Terminate(errors.New("enough"))
	q.End()
	p.nc.Close()
	if h.Park(func() bool { return true }) {
		t.Error("one that has ended can be parked")
	}
}

// What no process of ours carries is refused.
func TestRestoreHostRefuses(t *testing.T) {
	good := CarriedHost{Align: 4, MaxH2CData: 8192, Slots: 2}
	if err := good.Check(); err != nil {
		t.Fatal(err)
	}
	for name, spoil := range map[string]func(*CarriedHost){
		"digests": func(k *CarriedHost) { k.Digests = 4 }, "alignment": func(k *CarriedHost) { k.Align = 6 },
		"HPDA": func(k *CarriedHost) { k.HPDA = 32 }, "data": func(k *CarriedHost) { k.MaxH2CData = 0 },
		"no slots": func(k *CarriedHost) { k.Slots = 0 }, "slots": func(k *CarriedHost) { k.Slots = nvme.MaxHostEntries + 1 },
		"unread": func(k *CarriedHost) { k.Unread = make([]byte, 1<<20) },
	} {
		k := good
		spoil(&k)
		if k.Check() == nil {
			t.Errorf("%s: taken", name)
		}
		if _, err := RestoreHost(nil, HostConfig{}, &k); err == nil {
			t.Errorf("%s: restored", name)
		}
	}
}
