package volume

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"softiser/blockdev"
)

// sharing are volumes with verified placement and 8 MiB of staging memory: 1 MiB for each of them,
// 2 MiB for each holder.
type sharing struct {
	t   testing.TB
	vol []*bench
}

func newSharing(t testing.TB, volumes int) *sharing {
	t.Helper()
	pool, err := blockdev.NewPool(8 << 20)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { pool.Close() })
	s, reg := &sharing{t: t}, new(Registry)
	for i := range volumes {
		name := fmt.Sprint("v", i)
		s.vol = append(s.vol, serve(t, reg, Config{Device: newDevice(t, name), Placement: PlacementVerified, Staging: pool, Workers: 2}, name))
	}
	t.Cleanup(func() {
		reg.shares.mu.Lock()
		defer reg.shares.mu.Unlock()
		for id, h := range reg.shares.holders {
			if h.held != 0 || len(h.rings) != 0 {
				t.Errorf("%v has %d bytes and %d rings in the end", id, h.held, len(h.rings))
			}
		}
	})
	return s
}

func writer(name string) *Client {
	return &Client{Holder: Holder{Origin: netip.MustParsePrefix("192.0.2.1/32"), Proved: name}}
}

// shareReq is a write that wants a share.
type shareReq struct {
	req
	n    int64
	has  bool          // without having waited
	went chan struct{} // closed when it goes on with its share
}

// write begins one of n bytes. Its steps end it, unless it goes on with its share.
func (s *sharing) write(vol int, c *Client, n int64) *shareReq {
	s.t.Helper()
	r := &shareReq{req: req{steps: make(chan Cause, 1)}, n: n, went: make(chan struct{})}
	r.more = func(*req) {
		if !r.v.Stage(&r.op, 0, n) {
			s.t.Error("a write that has its share waits for it")
		}
		close(r.went)
	}
	r.free = func() { r.v.Unstage(&r.op) }
	if _, runs := s.vol[vol].start(&r.req, c, Simple, 0, 0, HoldNone); !runs {
		s.t.Fatal("a command beside others has to wait")
	}
	if r.has = r.v.Stage(&r.op, 0, n); r.has {
		close(r.went)
	}
	return r
}

// waits reports whether it waits for its share.
func (r *shareReq) waits() bool {
	select {
	case <-r.went:
		return false
	default:
		return true
	}
}

// done ends a write that has its share.
func (r *shareReq) done() {
	r.v.Unstage(&r.op)
	r.end()
}

// A volume of which much is on the way leaves memory for others, and its writes go in order.
func TestVolumeShare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSharing(t, 2)
		c := writer("c")
		a, b := s.write(0, c, 512<<10), s.write(0, c, 512<<10)
		big, small := s.write(0, c, 1<<20), s.write(0, c, 4<<10)
		other := s.write(1, c, 1<<20)
		if !a.has || !b.has || !big.waits() || !small.waits() || !other.has {
			t.Fatalf("without waiting: %v %v %v %v, at the other volume %v", a.has, b.has, big.has, small.has, other.has)
		}
		a.done()
		synctest.Wait()
		if !big.waits() || !small.waits() {
			t.Error("a short write has gone before a long one that waited longer")
		}
		b.done()
		synctest.Wait()
		if big.waits() || !small.waits() {
			t.Errorf("after all was given back the long one waits: %v, the short one: %v", big.waits(), small.waits())
		}
		big.done()
		synctest.Wait()
		small.done()
		other.done()
		if n := s.vol[0].v.Stats().StagingWaits; n != 2 {
			t.Errorf("%d writes are said to have waited, not 2", n)
		}
	})
}

// Nobody's short writes keep a long one waiting, as it comes or later.
func TestShareIsNotOvertaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSharing(t, 1)
		a, b := s.write(0, writer("a"), 512<<10), s.write(0, writer("a"), 256<<10)
		long := s.write(0, writer("long"), 1<<20)
		short := s.write(0, writer("short"), 4<<10)
		a.done()
		synctest.Wait()
		shorter := s.write(0, writer("shorter"), 512)
		if long.has || short.has || !short.waits() || shorter.has {
			t.Fatalf("without waiting: %v %v %v, and one waits: %v", long.has, short.has, shorter.has, short.waits())
		}
		b.done()
		for _, r := range []*shareReq{long, short, shorter} {
			synctest.Wait()
			if r.waits() {
				t.Fatalf("one of %d bytes has no share when it is its turn", r.n)
			}
			r.done()
		}
	})
}

// Holders take turns at a volume.
func TestHoldersTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSharing(t, 1)
		many, few := writer("many"), writer("few")
		now := s.write(0, many, 1<<20)
		var queue []*shareReq
		for range 4 {
			queue = append(queue, s.write(0, many, 1<<20))
		}
		queue = append(queue, s.write(0, few, 1<<20))
		for _, next := range []int{0, 4, 1, 2, 3} {
			now.done()
			synctest.Wait()
			now = queue[next]
			if now.waits() {
				t.Fatalf("write %d has no share when it is its turn", next)
			}
		}
		now.done()
	})
}

// Who has much of what is on the way to many volumes waits, others do not; and goes on wherever it waits.
func TestHolderShare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSharing(t, 3)
		gone, other := writer("gone"), writer("other")
		a, b := s.write(0, gone, 1<<20), s.write(1, gone, 1<<20)
		c := s.write(2, gone, 4<<10)
		if !a.has || !b.has || c.has {
			t.Fatalf("without waiting: %v %v %v", a.has, b.has, c.has)
		}
		d := s.write(2, other, 1<<20)
		if !d.has {
			t.Error("another holder waits with it")
		}
		d.done()
		synctest.Wait()
		if !c.waits() {
			t.Error("a holder has more than its share")
		}
		a.done() // at another volume
		synctest.Wait()
		if c.waits() {
			t.Error("it does not go on with what it has given back at another volume")
		}
		b.done()
		c.done()
	})
}

// One who waits for memory of his own keeps nobody else waiting who waits for room of the volume.
func TestHolderWaitsAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSharing(t, 3)
		gone, other := writer("gone"), writer("other")
		a, b := s.write(0, gone, 1<<20), s.write(1, gone, 1<<20)
		c := s.write(2, gone, 4<<10)
		d, e := s.write(2, other, 1<<20), s.write(2, other, 1<<20)
		d.done()
		synctest.Wait()
		if e.waits() || !c.waits() {
			t.Errorf("the other holder waits: %v, the one who has his share already: %v", e.waits(), c.waits())
		}
		e.done()
		a.done()
		synctest.Wait()
		c.done()
		b.done()
	})
}

// So does one who waits for both.
func TestHolderWaitsAloneForBoth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSharing(t, 3)
		gone, other := writer("gone"), writer("other")
		a, b := s.write(0, gone, 1<<20), s.write(1, gone, 1<<20)
		c := s.write(2, other, 512<<10)
		d := s.write(2, gone, 1<<20)
		e := s.write(2, other, 4<<10)
		if d.has || !e.has {
			t.Fatalf("who has his share has one more: %v, a short write of another holder has its own: %v", d.has, e.has)
		}
		e.done()
		f, g := s.write(2, other, 1<<20), s.write(2, other, 4<<10)
		synctest.Wait()
		if !f.waits() || !g.waits() {
			t.Errorf("a long write waits for the volume: %v, a short one behind it: %v", f.waits(), g.waits())
		}
		c.done()
		synctest.Wait()
		if f.waits() || !d.waits() {
			t.Errorf("with all of the volume free the long write waits: %v, and the one beyond its holder's share: %v", f.waits(), d.waits())
		}
		a.done()
		f.done()
		for _, r := range []*shareReq{d, g} { // each needs most of the volume, or comes behind
			synctest.Wait()
			if r.waits() {
				t.Fatalf("one of %d bytes has no share when it is its turn", r.n)
			}
			r.done()
		}
		b.done()
	})
}

// A write that is aborted does not wait for its share, and keeps nobody waiting; also if it was
// aborted just before, or gets its share at that moment.
func TestShareAborted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSharing(t, 1)
		v := s.vol[0].v
		c := writer("c")
		now := s.write(0, c, 1<<20)
		abort := func(r *shareReq) Aborts {
			return v.Mark(func(o *Op) AbortReason {
				if o == &r.op {
					return AbortedByOwner
				}
				return NotAborted
			}, nil)
		}
		ended := func(r *shareReq) {
			t.Helper()
			if why := <-r.steps; why != Abort {
				t.Errorf("it goes on by %v", why)
			}
		}
		a, b := s.write(0, c, 1<<20), s.write(0, c, 1<<20)
		x := abort(a)
		x.Finish()
		ended(a)

		x = abort(b)
		now.done() // b gets its share between its abort and its end
		next := s.write(0, c, 1<<20)
		if next.has {
			t.Error("an aborted write that has not ended has no share")
		}
		x.Finish()
		ended(b)
		synctest.Wait()
		if next.waits() {
			t.Error("the share of an aborted write was not given back")
		}

		late := &shareReq{req: req{steps: make(chan Cause, 1)}}
		s.vol[0].start(&late.req, c, Simple, 0, 0, HoldNone)
		x = abort(late)
		x.Finish()
		if v.Stage(&late.op, 0, 4<<10) {
			t.Error("there is room beside a full share")
		}
		ended(late)
		next.done()
	})
}

// Memory volumes whose data is received into them need no share.
func TestNoShareInPlace(t *testing.T) {
	b := serve(t, new(Registry), Config{Device: newDevice(t, "v")}, "v")
	r, _ := b.start(nil, new(Client), Simple, 0, 0, HoldNone)
	if !b.v.Stage(&r.op, 0, 1<<20) || r.op.shared.vol != nil {
		t.Error("a write that is received into its volume has a share of staging memory")
	}
	b.v.Unstage(&r.op)
	r.end()
}

// Many writes of all sizes at once, some of them aborted: nobody has more than its share, and all end.
func TestSharesAtOnce(t *testing.T) {
	const volumes, holders, writers, each = 5, 4, 16, 40
	s := newSharing(t, volumes)
	var byVolume, byHolder [8]atomic.Int64
	most := func(at *[8]atomic.Int64, i int, n, limit int64) {
		if held := at[i].Add(n); held > limit {
			t.Errorf("%d bytes are held where %d may be", held, limit)
		}
	}
	stop := make(chan struct{})
	var aborting, all sync.WaitGroup
	for i := range volumes { // who aborts comes at any moment
		aborting.Go(func() {
			rng := rand.New(rand.NewPCG(2, uint64(i)))
			for {
				select {
				case <-stop:
					return
				default:
				}
				s.vol[i].v.AbortWhere(func(*Op) AbortReason {
					if rng.IntN(8) == 0 {
						return AbortedByOwner
					}
					return NotAborted
				}, nil)
			}
		})
	}
	for w := range writers {
		all.Go(func() {
			rng := rand.New(rand.NewPCG(1, uint64(w)))
			h := w % holders
			c := writer(fmt.Sprint(h))
			for range each {
				i, n := rng.IntN(volumes), rng.Int64N(1<<20)+1
				r := s.write(i, c, n)
				select {
				case <-r.went:
					most(&byVolume, i, n, 1<<20)
					most(&byHolder, h, n, 2<<20)
					byHolder[h].Add(-n)
					byVolume[i].Add(-n)
					r.done()
				case <-r.steps:
				}
			}
		})
	}
	all.Wait()
	close(stop)
	aborting.Wait()
}
