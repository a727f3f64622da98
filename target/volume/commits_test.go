package volume

import (
	"testing"
	"testing/synctest"

	"softiser/blockdev"
)

// Writes that wait for staging memory with all workers, and others behind them, do not keep those from their
// commits that have it.
func TestCommitsGoBeforeLeases(t *testing.T) {
	for _, syncs := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			const workers = 2
			pool, err := blockdev.NewPool(blockdev.MaxBuffer)
			if err != nil {
				t.Fatal(err)
			}
			defer pool.Close()
			b := serve(t, new(Registry), Config{Device: newDevice(t, "v"), Workers: workers}, "v")
			n := uint64(0)
			write := func(more func(*req)) *req {
				n++
				r := &req{steps: make(chan Cause, 1), more: more}
				if _, runs := b.start(r, &Client{}, Simple, n, n+1, HoldWrite); !runs {
					t.Fatal("a request beside others has to wait")
				}
				return r
			}
			get := func(m blockdev.Mode) [][]byte {
				bufs, err := pool.Get(nil, blockdev.MaxBuffer, m)
				if err != nil {
					t.Error(err)
				}
				return bufs
			}
			commit := func(bufs [][]byte) func(*req) {
				return func(r *req) {
					pool.Put(bufs)
					r.Step(Proceed)
				}
			}
			held := get(blockdev.NoWait)
			committing := write(commit(held))
			all := []*req{committing}
			for range 4 * workers {
				r := write(func(r *req) {
					r.more = commit(get(blockdev.Wait))
					b.v.ToCommitter(&r.op, syncs)
				})
				all = append(all, r)
				b.v.ToWorker(&r.op)
			}
			synctest.Wait()
			b.v.ToCommitter(&committing.op, syncs)
			for i, r := range all {
				if why := <-r.steps; why != Proceed {
					t.Errorf("write %d ended by %v", i, why)
				}
			}
		})
	}
}

// One that is aborted while it waits for a worker leaves the queue.
func TestCommitAbortedInTheQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := serve(t, new(Registry), Config{Device: newDevice(t, "v"), Workers: 1}, "v")
		gate := make(chan struct{})
		var all []*req
		for i := range uint64(3) {
			r := &req{steps: make(chan Cause, 1), more: func(r *req) { <-gate; r.Step(Proceed) }}
			if _, runs := b.start(r, &Client{}, Simple, i, i+1, HoldWrite); !runs {
				t.Fatal("a request beside others has to wait")
			}
			all = append(all, r)
			b.v.ToCommitter(&r.op, false)
		}
		synctest.Wait() // two of them have begun
		last := all[2]
		b.v.AbortWhere(func(o *Op) AbortReason {
			if o == &last.op {
				return AbortedByOwner
			}
			return NotAborted
		}, nil)
		if why := <-last.steps; why != Abort {
			t.Errorf("it ended by %v", why)
		}
		close(gate)
		for _, r := range all[:2] {
			<-r.steps
		}
	})
}
