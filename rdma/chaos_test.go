package rdma_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"softiser/internal/await"
	"softiser/internal/race"
	"softiser/rdma"
	"softiser/rdma/rdmatest"
)

// Several goroutines post to both ends of a connection while it is ended at a
// random moment, in a random way. Every request that was accepted completes
// exactly once, and nothing is left behind.
func TestChaos(t *testing.T) {
	forEach(t, chaosRounds)
}

func chaosRounds(t *testing.T, o *rdmatest.Options) {
	rounds := 60
	if race.Enabled || testing.Short() {
		rounds = 20
	}
	for seed := range rounds {
		chaos(t, uint64(seed), *o)
	}
}

func chaos(t *testing.T, seed uint64, o rdmatest.Options) {
	rng := rand.New(rand.NewPCG(seed, 5))
	var mu sync.Mutex
	posted, completed := map[uint64]int{}, map[uint64]int{}
	handler := func() func(*rdma.CQ) {
		wcs := make([]rdma.WC, 16)
		return func(cq *rdma.CQ) {
			for n := cq.Poll(wcs); n > 0; n = cq.Poll(wcs) {
				mu.Lock()
				for _, wc := range wcs[:n] {
					completed[wc.ID]++
				}
				mu.Unlock()
			}
		}
	}
	p := rdma.ConnParams{Zerocopy: rdma.ZerocopyMode(rng.IntN(4)), MPA: rdma.MPAParams{P2P: rdma.P2PWrite}}
	o.Client, o.Server, o.Handlers = p, rdma.ConnParams{Zerocopy: p.Zerocopy}, [2]func(*rdma.CQ){handler(), handler()}
	a, b := rdmatest.NewPair(t, &o)
	ends := []*rdmatest.End{a, b}
	mem := [2][]byte{make([]byte, 256<<10), make([]byte, 256<<10)}
	var mrs [2]*rdma.MR
	for i, e := range ends {
		var err error
		if mrs[i], err = e.PD.RegMR(mem[i], rdma.AccessLocalWrite|rdma.AccessRemoteWrite|rdma.AccessRemoteRead); err != nil {
			t.Fatal(err)
		}
		defer mrs[i].Dereg()
	}
	var wg sync.WaitGroup
	stop := make(chan struct{})
	for i, e := range ends {
		for g := range 2 {
			base := uint64(i*2+g+1) << 32
			rng := rand.New(rand.NewPCG(seed, base))
			peer := mrs[1-i]
			wg.Go(func() {
				src := make([]byte, 128<<10)
				for id := base; ; id++ {
					select {
					case <-stop:
						return
					default:
					}
					n := rng.IntN(1 << (4 + rng.IntN(14)))
					var err error
					switch rng.IntN(4) {
					case 0:
						err = e.QP.PostRecv(rdma.RecvWR{ID: id, SGL: []rdma.SGE{e.SGE(make([]byte, 16))}})
					case 1:
						err = e.QP.PostSend(rdma.SendWR{ID: id, Op: rdma.OpWrite, Flags: rdma.FlagSignaled, SGL: []rdma.SGE{e.SGE(src[:n])}, Remote: rdma.RemoteAddr{TO: peer.Addr(), STag: peer.RKey()}})
					case 2:
						err = e.QP.PostSend(rdma.SendWR{ID: id, Op: rdma.OpRead, Flags: rdma.FlagSignaled, SGL: []rdma.SGE{e.SGE(make([]byte, n))}, Remote: rdma.RemoteAddr{TO: peer.Addr() + 128<<10, STag: peer.RKey()}})
					case 3:
						wr := rdma.SendWR{ID: id, Op: rdma.OpWrite, Flags: rdma.FlagSignaled | rdma.FlagInline, SGL: []rdma.SGE{e.SGE(src[:n%200])}, Remote: rdma.RemoteAddr{TO: peer.Addr(), STag: peer.RKey()}}
						err = e.QP.Enqueue(&wr)
						e.QP.Push()
					}
					switch {
					case err == nil:
						mu.Lock()
						posted[id]++
						mu.Unlock()
						if e.QP.State() == rdma.StateError {
							return // flushed at once from now on; more would overflow the queue
						}
					case errors.Is(err, rdma.ErrQueueFull):
						time.Sleep(20 * time.Microsecond) // until the peer has taken some
					case errors.Is(err, rdma.ErrState), errors.Is(err, rdma.ErrClosed):
						return
					default:
						t.Error(err)
						return
					}
				}
			})
		}
	}
	time.Sleep(time.Duration(rng.IntN(3000)) * time.Microsecond) // the end meets the work anywhere
	switch e := ends[rng.IntN(2)]; rng.IntN(4) {
	case 0:
		e.QP.Abort(nil)
	case 1:
		e.QP.Disconnect()
	case 2:
		_ = e.QP.Close()
	case 3: // a Terminate: the peer's memory is gone
		mrs[rng.IntN(2)].Invalidate()
	}
	for _, e := range ends {
		e.WaitDone(t)
	}
	close(stop)
	wg.Wait()
	for _, e := range ends {
		e.QP.Push() // hands over what was flushed when it was posted
	}
	await.True(t, fmt.Sprintf("every request of seed %d has completed", seed), func() bool {
		mu.Lock()
		defer mu.Unlock()
		for id := range posted {
			if completed[id] == 0 {
				return false
			}
		}
		return true
	})
	mu.Lock()
	defer mu.Unlock()
	for id, n := range completed {
		if n != 1 || posted[id] != 1 {
			t.Fatalf("seed %d: request %#x was posted %d times and completed %d times", seed, id, posted[id], n)
		}
	}
	for _, e := range ends {
		_ = e.QP.Close()
		if s := e.Dev.Stats(); s.MRs != 1 {
			t.Fatalf("seed %d: %d memory regions are left, want 1", seed, s.MRs)
		}
	}
}
