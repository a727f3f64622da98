package nvmetcp

import (
	"testing"
	"testing/synctest"

	"softiser/internal/nvme"
)

// arrivals notes what a controller tells of data.
type arrivals struct {
	nvme.QueueUpper
	errs []error
}

func (a *arrivals) DataArrived(_ *nvme.Command, err error) { a.errs = append(a.errs, err) }

// Memory that the receive goroutine fills is not given back meanwhile; of what was given back
// nothing is filled any more.
func TestCancelWaitsForPlacing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		up := &arrivals{}
		c := &Controller{up: up}
		c.cond.L = &c.mu
		k, other := &command{}, &command{}
		k.Use, other.Use = 5, 6
		g := c.gets.add(k, 0, 8, [][]byte{make([]byte, 8)})
		c.get = g
		if !c.claim() {
			t.Fatal("the memory of a transfer that is running is gone")
		}
		c.gets.add(other, 0, 8, [][]byte{make([]byte, 8)})
		c.Cancel(6) // nobody fills that
		back := make(chan struct{})
		go func() { defer close(back); c.Cancel(5) }()
		synctest.Wait()
		select {
		case <-back:
			t.Error("Cancel came back while the memory was filled")
		default:
		}
		c.release()
		synctest.Wait()
		select {
		case <-back:
		default:
			t.Fatal("Cancel does not come back")
		}
		if len(up.errs) != 2 || up.errs[0] != nvme.ErrCancelled || up.errs[1] != nvme.ErrCancelled {
			t.Errorf("told of %v", up.errs)
		}
		if c.claim() || c.placing != nil {
			t.Error("memory that was given back may be filled")
		}
	})
}

// A tag is taken until all has come that it was named for, cancelled or not; what is counted as
// cancelled is what a host keeps taken by sending nothing.
func TestTagsOfTransfers(t *testing.T) {
	var tab getTable
	cmds := []*command{{}, {}, {}}
	var gs []*get
	for i, k := range cmds {
		k.Use = uint64(10 + i)
		gs = append(gs, tab.add(k, 0, 8, [][]byte{make([]byte, 8)}))
	}
	is := func(what string, live, stale int) {
		t.Helper()
		if tab.live != live || tab.stale != stale {
			t.Errorf("%s: %d run and %d are cancelled, want %d and %d", what, tab.live, tab.stale, live, stale)
		}
	}
	is("three", 3, 0)
	tab.stop(gs[1])
	is("one of them cancelled", 2, 1)
	if tab.of(11) != nil || tab.find(1) != gs[1] || gs[1].segs != nil || gs[1].cmd != nil || tab.of(12) != gs[2] {
		t.Error("the cancelled transfer is still that of its command")
	}
	if g := tab.add(cmds[1], 0, 8, nil); g.tag != 3 {
		t.Errorf("tag %d is given again, which the host may still use", g.tag)
	}
	is("another", 3, 1)
	tab.remove(gs[1])
	tab.remove(gs[0])
	is("two have come", 2, 0)
	if tab.find(0) != nil || tab.find(1) != nil || tab.find(4) != nil {
		t.Error("a tag stands for what has come")
	}
	if g := tab.add(cmds[0], 0, 8, nil); g.tag != 0 || tab.of(10) != g {
		t.Errorf("the tag is %d", g.tag)
	}
	tab.stop(gs[2])
	if live := tab.purge(); len(live) != 2 {
		t.Errorf("somebody waits for %d transfers, want 2", len(live))
	}
	is("at the end", 0, 0)
}

// The end of a connection is told behind whatever is told of its transfers.
func TestEndWaitsForCancel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &Controller{up: &arrivals{}}
		c.cond.L = &c.mu
		k := &command{}
		k.Use = 5
		c.gets.add(k, 0, 8, nil)
		told, leave := make(chan struct{}), make(chan struct{})
		c.up = &telling{told: told, leave: leave}
		go c.Cancel(5)
		<-told
		c.mu.Lock()
		if c.cancelling != 1 {
			t.Errorf("%d are telling of a cancelled transfer", c.cancelling)
		}
		c.mu.Unlock()
		close(leave)
		synctest.Wait()
		if c.cancelling != 0 {
			t.Errorf("%d are telling of a cancelled transfer at the end", c.cancelling)
		}
	})
}

// telling stays in its up-call until it is told to leave.
type telling struct {
	nvme.QueueUpper
	told, leave chan struct{}
}

func (a *telling) DataArrived(*nvme.Command, error) { close(a.told); <-a.leave }
