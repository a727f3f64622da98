package verbs

import (
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
)

// TestDispatchLosesNothing: however two Adds and the runs of the handler meet, a run
// follows every completion, and there is never a second run beside it.
func TestDispatchLosesNothing(t *testing.T) {
	const rounds, adders = 20000, 2
	var cq CQ
	var inside atomic.Int32
	polled := 0 // the handler's own
	cq.Init(adders, func() {
		if inside.Add(1) != 1 {
			t.Error("the handler runs twice at once")
		}
		cq.Lock()
		for cq.NextLocked() != nil {
			polled++
		}
		cq.Unlock()
		cq.Dispatch() // from within: nothing, or this run is repeated
		inside.Add(-1)
	})
	// Two goroutines meet at every round and add one completion each.
	var round, end sync.WaitGroup
	gates := [adders]chan struct{}{}
	for i := range gates {
		gates[i] = make(chan struct{})
		end.Go(func() {
			for range gates[i] {
				cq.Add(&WC{})
				cq.Dispatch()
				round.Done()
			}
		})
	}
	for n := range rounds {
		round.Add(adders)
		for _, g := range gates {
			g <- struct{}{}
		}
		round.Wait()
		if polled != adders*(n+1) {
			t.Fatalf("%d of %d completions were handled, %d wait", polled, adders*(n+1), cq.Len())
		}
	}
	for _, g := range gates {
		close(g)
	}
	end.Wait()
}

// Of several who wait, one goes with each completion, and the others with those that come later, or
// had come at once; also when nobody waits anew.
func TestWaitOfSeveral(t *testing.T) {
	for _, batches := range [][]int{{1, 1, 1}, {3}, {2, 1}, {1, 2}} {
		synctest.Test(t, func(t *testing.T) {
			var cq CQ
			cq.Init(8, nil)
			returned := make(chan error, 3)
			for range cap(returned) {
				go func() {
					returned <- cq.Wait(t.Context())
					cq.Lock()
					cq.NextLocked()
					cq.Unlock()
				}()
			}
			synctest.Wait()
			sum := 0
			for _, n := range batches {
				cq.AddAll(make([]WC, n))
				synctest.Wait()
				if sum += n; len(returned) < sum {
					t.Errorf("%v: %d of %d have returned", batches, len(returned), sum)
				}
			}
			cq.Close()
			for range cap(returned) {
				<-returned
			}
		})
	}
}
