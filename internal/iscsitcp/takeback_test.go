package iscsitcp

import (
	"testing"
	"testing/synctest"

	"softiser/internal/iscsi"
)

// waits runs f in a bubble and reports when it has come back, as often as it is asked.
func waits(f func()) (back func() bool) {
	done := make(chan struct{})
	go func() { defer close(done); f() }()
	return func() bool {
		synctest.Wait()
		select {
		case <-done:
			return true
		default:
			return false
		}
	}
}

// TestAbortWaitsForPlacing: while the receive goroutine fills memory, nobody who takes it away
// gets it back; and what was taken away is not filled any more.
func TestAbortWaitsForPlacing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := queueing(iscsi.RoleTarget, nil)
		c.rx.c = c
		x := transfer(5, make([]byte, 1024))
		if err := c.GetData(x); err != nil {
			t.Fatal(err)
		}
		g, q := c.gets.running.First(), c.gets.r2ts[0]
		c.rx.owner, c.rx.tag = g, q
		c.rx.bhs = dataOut(q.ttt, 5, 0, 0, true)
		if !c.rx.Claim() {
			t.Fatal("the memory of a transfer that is running is gone")
		}
		back := waits(func() { c.AbortTransfer(x) })
		if back() {
			t.Error("AbortTransfer came back while the memory was filled")
		}
		c.rx.Release()
		if !back() {
			t.Error("AbortTransfer does not come back")
		}
		if len(completed(c)) != 1 || x.Err != iscsi.ErrAborted {
			t.Errorf("%v", x.Err)
		}
		if c.rx.Claim() || c.placing != nil {
			t.Error("memory that was taken away may be filled")
		}

		i := queueing(iscsi.RoleInitiator, nil)
		i.rx.c = i
		p := iscsi.PDU{Bufs: &iscsi.TaskBuffers{In: [][]byte{make([]byte, 1024)}}}
		p.BHS.NewSCSICommand().SetITT(1)
		if err := i.SendControl(&p); err != nil {
			t.Fatal(err)
		}
		i.rx.owner = i.tasks.find(1)
		i.rx.bhs.NewDataIn().SetITT(1)
		if !i.rx.Claim() {
			t.Fatal("the memory of a task that is running is gone")
		}
		back = waits(func() { i.ReleaseTask(p.Bufs) })
		if back() {
			t.Error("ReleaseTask came back while the memory was filled")
		}
		i.rx.Release()
		if !back() {
			t.Error("ReleaseTask does not come back")
		}
		if i.rx.Claim() || i.placing != nil {
			t.Error("memory that was taken away may be filled")
		}
	})
}

// TestFaultOfTheOwner: a fault is that of the transfer whose memory it was, not of the next one
// in its place.
func TestFaultOfTheOwner(t *testing.T) {
	for _, aborted := range []bool{false, true} {
		c := queueing(iscsi.RoleTarget, nil)
		c.rx.c = c
		x := transfer(5, make([]byte, 1024))
		if err := c.GetData(x); err != nil {
			t.Fatal(err)
		}
		g, q := c.gets.running.First(), c.gets.r2ts[0]
		c.rx.owner, c.rx.tag = g, q
		c.rx.bhs = dataOut(q.ttt, 5, 0, 0, true)
		if aborted {
			c.AbortTransfer(x)
			if err := c.GetData(transfer(5, make([]byte, 1024))); err != nil {
				t.Fatal(err)
			}
			if c.gets.running.First() != g {
				t.Fatal("the next transfer has another place")
			}
		}
		if c.rx.Fault(); g.fault == aborted {
			t.Errorf("aborted %v: the transfer has a fault: %v", aborted, g.fault)
		}
	}
}

// TestEndWaitsForTheTransmitter: what a system call may still be sending is not given back by
// the end of the connection.
func TestEndWaitsForTheTransmitter(t *testing.T) {
	r := newPeer(t, iscsi.RoleTarget, nil)
	r.c.mu.Lock()
	r.c.tx.Seize()
	r.c.mu.Unlock()
	x := transfer(5, filled(100))
	if err := r.c.PutData(x); err != nil {
		t.Fatal(err)
	}
	r.nc.Close()
	r.c.mu.Lock()
	for r.c.st != iscsi.ConnDead {
		r.c.cond.Wait()
	}
	over := len(r.up.Done) > 0 || len(r.up.Ended) > 0 || r.c.tx.Empty()
	r.c.tx.Yield()
	r.c.mu.Unlock()
	if over {
		t.Error("the connection has given its memory back while somebody sends")
	}
	r.up.Completion(t)
	r.up.End(t)
}

// TestDetachWaits: a stream is not given up before all that was queued has been sent, nobody
// sends, and the receive goroutine has left it; but for the end of the connection it is.
func TestDetachWaits(t *testing.T) {
	upgrading := func() *Conn {
		c := queueing(iscsi.RoleTarget, func(p *iscsi.Params) { p.RDMAExtensions = true })
		c.cfg.Upgradable, c.paused = true, true
		c.ended = make(chan struct{})
		close(c.ended)
		c.rx.end = iscsi.ErrConnectionLost // instead of a socket
		return c
	}
	for name, k := range map[string]struct{ hold, let func(c *Conn) }{
		"queued": {func(c *Conn) {
			var b iscsi.BHS
			c.tx.push(c.tx.alloc(&b))
		}, func(c *Conn) { sendAll(c) }},
		"sending": {func(c *Conn) { c.tx.Seize() }, func(c *Conn) { c.tx.Yield() }},
		"reading": {func(c *Conn) { c.paused = false }, func(c *Conn) { c.paused = true }},
	} {
		synctest.Test(t, func(t *testing.T) {
			c := upgrading()
			k.hold(c)
			var err error
			back := waits(func() { _, err = c.Detach() })
			if back() {
				t.Fatalf("%s: it did not wait", name)
			}
			c.mu.Lock()
			if c.detached {
				t.Errorf("%s: the stream is given up", name)
			}
			k.let(c)
			c.cond.Broadcast()
			c.mu.Unlock()
			if !back() || err != iscsi.ErrConnectionLost {
				t.Fatalf("%s: %v", name, err)
			}

			c = upgrading()
			k.hold(c)
			back = waits(func() { _, err = c.Detach() })
			if back() {
				t.Fatalf("%s: it did not wait", name)
			}
			c.mu.Lock()
			c.st, c.cause = iscsi.ConnDead, iscsi.ErrShortData
			c.cond.Broadcast()
			c.mu.Unlock()
			if !back() || err == nil || err == iscsi.ErrConnectionLost || c.detached {
				t.Errorf("%s: after the end %v", name, err)
			}
		})
	}
}

// TestAbortQueuedData: what has not begun of an aborted transfer leaves the queue, and it ends
// once: with the last of what has begun, or at once, whatever of others is in the queue; with
// the reason that it has already, if it has one.
func TestAbortQueuedData(t *testing.T) {
	mem := filled(3000)
	put := func(c *Conn, itt uint32) *iscsi.Transfer {
		x := transfer(itt, mem)
		if err := c.PutData(x); err != nil {
			t.Fatal(err)
		}
		return x
	}
	over := func(what string, c *Conn, x *iscsi.Transfer, want error, left int) {
		t.Helper()
		if done := completed(c); len(done) != 1 || done[0] != x || x.Err != want {
			t.Errorf("%s: %d transfers are over, %v", what, len(done), x.Err)
		}
		if n := len(queued(t, c)); n != left {
			t.Errorf("%s: %d PDUs are left, want %d", what, n, left)
		}
	}
	c := queueing(iscsi.RoleTarget, nil)
	other := put(c, 4)
	c.tx.Collect()
	x, y := put(c, 5), put(c, 6)
	y.Err = iscsi.ErrMemoryFault
	c.AbortTransfer(x)
	c.tx.Collect()
	over("not begun", c, x, iscsi.ErrAborted, 6)
	x = put(c, 7)
	x.Err = iscsi.ErrMemoryFault
	c.AbortTransfer(x)
	c.tx.Collect()
	over("not begun, and failed", c, x, iscsi.ErrMemoryFault, 6)
	c.AbortTransfer(y)
	c.AbortTransfer(y)
	c.tx.Collect()
	if y.Err != iscsi.ErrMemoryFault || len(completed(c)) != 0 || len(queued(t, c)) != 6 {
		t.Errorf("begun: %v, %d PDUs are left", y.Err, len(queued(t, c)))
	}
	sendAll(c)
	if done := completed(c); len(done) != 2 || done[0] != other || other.Err != nil || done[1] != y || y.Err != iscsi.ErrMemoryFault {
		t.Errorf("%d transfers are over: %v, %v", len(done), other.Err, y.Err)
	}
	if n := c.Stats().PayloadOut; n != 6000 {
		t.Errorf("%d bytes count as sent", n)
	}

	// One call takes 2 MiB: the rest of a long transfer has not begun.
	c = queueing(iscsi.RoleTarget, func(p *iscsi.Params) {
		p.MaxXmitDataSegmentLength, p.MaxBurstLength = 1<<20, 8<<20
	})
	mem = make([]byte, 5<<20)
	x = put(c, 5)
	c.tx.Collect()
	c.AbortTransfer(x)
	sendAll(c)
	over("half of it", c, x, iscsi.ErrAborted, 0)
	if n := c.Stats().PayloadOut; n != 2<<20 {
		t.Errorf("%d bytes were sent of a transfer that was aborted behind two", n)
	}
}

// TestFoldOnlyStatus: no other PDU becomes part of a Data-In, whatever it looks like.
func TestFoldOnlyStatus(t *testing.T) {
	c := queueing(iscsi.RoleTarget, nil)
	if err := c.PutData(transfer(5, make([]byte, 100))); err != nil {
		t.Fatal(err)
	}
	var p iscsi.PDU
	p.BHS.NewNopIn().SetITT(5)
	if err := c.SendControl(&p); err != nil {
		t.Fatal(err)
	}
	if all := queued(t, c); len(all) != 2 || all[0].bhs().DataIn().HasStatus() {
		t.Errorf("%d PDUs are queued", len(all))
	}
}
