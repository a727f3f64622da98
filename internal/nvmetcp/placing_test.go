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
