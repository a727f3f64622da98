package volume

import (
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"softiser/blockdev"
)

// told is a device that is told of reads, and has those in memory that are said to be.
type told struct {
	blockdev.Device
	mu     sync.Mutex
	events []int // 100+n: told of block n; n: the step of the command of block n; -n: its push
	here   map[int]bool
	hung   chan struct{} // when set, the announcement of block 1 waits for it
}

func (d *told) note(n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.events = append(d.events, n)
}

// noted returns what has happened since it was called last.
func (d *told) noted() []int {
	d.mu.Lock()
	defer d.mu.Unlock()
	e := d.events
	d.events = nil
	return e
}

func (d *told) Announces() bool { return true }

func (d *told) Announce(off int64, _ int) {
	if d.note(100 + int(off/512)); off == 512 && d.hung != nil {
		<-d.hung
	}
}

func (d *told) LeaseCached(l *blockdev.Lease, off int64, n int) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.here[int(off/512)] {
		return d.Device.LeaseRead(l, off, n, blockdev.NoWait)
	}
	return blockdev.ErrWouldBlock
}

// reading is a read of block n, whose step waits for its gate.
type reading struct {
	*req
	d    *told
	n    int
	gate chan struct{}

	lease blockdev.Lease
	lent  bool // to its step
}

func (r *reading) Via() Port { return pushReading{r.d, r.n} }

type pushReading struct {
	d *told
	n int
}

func (p pushReading) Push() { p.d.note(-p.n) }

// readers is a volume with so many workers, and one usual reader.
type readers struct {
	*bench
	d *told
}

func newReaders(t *testing.T, workers int) *readers {
	d := &told{Device: newDevice(t, "v"), here: map[int]bool{}}
	r := &readers{serve(t, new(Registry), Config{Device: d, Workers: workers}, "v"), d}
	r.v.pool.reads.usual = 1
	return r
}

// start has a command queued by to.
func (b *readers) start(n int, to func(*reading)) *reading {
	b.t.Helper()
	r := &reading{req: &req{v: b.v, steps: make(chan Cause, 1)}, d: b.d, n: n, gate: make(chan struct{})}
	r.more = func(r2 *req) {
		r.lent = r.op.Lent()
		if r.lent != (r.lease.Owner != nil) {
			b.t.Errorf("block %d is lent: %v, the lease has an owner: %v", n, r.lent, r.lease.Owner != nil)
		}
		r.lease.Release()
		b.d.note(n)
		<-r.gate
		r2.Step(Proceed)
	}
	r.op.Init(r)
	r.op.Cover(uint64(n), uint64(n)+1, HoldRead)
	if !b.v.Admit(&r.op) {
		b.t.Fatal("a request beside others has to wait")
	}
	to(r)
	return r
}

func (b *readers) read(n int) *reading {
	return b.start(n, func(r *reading) { b.v.ToReader(&r.op, &r.lease, int64(n)*512, 512) })
}

func (b *readers) expect(what string, want ...int) {
	b.t.Helper()
	synctest.Wait()
	if got := b.d.noted(); !slices.Equal(got, want) {
		b.t.Errorf("%s: %v, want %v", what, got, want)
	}
}

// Reads are announced as they come, while one worker waits for the first of them; those that are in memory
// when it looks are answered together, and before it waits again.
func TestReadsAnnounced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newReaders(t, 16)
		var all []*reading
		for n := range 6 {
			all = append(all, b.read(n+1))
			if n == 0 {
				b.expect("the first", 101, 1)
			} else {
				b.expect("another", 101+n)
			}
		}
		for _, n := range []int{2, 3, 5} {
			b.d.here[n] = true
		}
		for _, n := range []int{2, 3, 5, 6} {
			close(all[n-1].gate)
		}
		close(all[0].gate)
		b.expect("those that are there", 2, 3, -1, -2, -3, 4)
		close(all[3].gate)
		b.expect("the rest", 5, -4, -5, 6, -6)
		for i, r := range all {
			if want := b.d.here[i+1]; r.lent != want {
				t.Errorf("block %d was lent to its step: %v, want %v", i+1, r.lent, want)
			}
		}
	})
}

// Of marked blocks nothing is lent ahead of the step, which finds the mark.
func TestMarkedNotLent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newReaders(t, 16)
		b.v.badBlocks.publishMarks(marks{{3 * 512, 4 * 512}})
		one := b.read(1)
		b.expect("the first", 101, 1)
		three := b.read(3)
		b.expect("a marked one", 103)
		b.d.here[3] = true
		close(one.gate)
		close(three.gate)
		b.expect("that", -1, 3, -3)
		if three.lent {
			t.Error("lent without a look at the marks")
		}
	})
}

// A read that is stuck holds the others up for a moment only, and an aborted one not at all.
func TestReadStuck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newReaders(t, 4)
		var all []*reading
		for n := range 5 {
			all = append(all, b.read(n+1))
			synctest.Wait()
		}
		b.expect("announced", 101, 1, 102, 103, 104, 105)
		b.v.AbortWhere(func(o *Op) AbortReason {
			if o == &all[1].op {
				return AbortedByOwner
			}
			return NotAborted
		}, nil)
		b.expect("aborted", -2)
		began := time.Now()
		for _, n := range []int{2, 3, 4} {
			close(all[n].gate)
			<-all[n].steps
		}
		if took := time.Since(began); took > 2*readStuck {
			t.Errorf("those behind a stuck read waited %v", took)
		}
		synctest.Wait()
		b.d.noted()
		other := b.read(6)
		close(other.gate)
		<-other.steps
		if took := time.Since(began); took > 2*readStuck {
			t.Errorf("one that came later waited until %v", took)
		}
		close(all[0].gate)
		<-all[0].steps
		synctest.Wait()
		b.v.mu.Lock()
		defer b.v.mu.Unlock()
		if r := &b.v.pool.reads; r.readers != 0 || r.fresh.head != nil || r.waiting.head != nil {
			t.Errorf("%d readers are left", r.readers)
		}
	})
}

// Where even an announcement is stuck, the reads that it was made for get workers as well.
func TestAnnouncementStuck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newReaders(t, 4)
		b.d.hung = make(chan struct{})
		b.d.here[2] = true
		var all []*reading
		for n := range 2 {
			all = append(all, b.start(n+1, func(*reading) {}))
			close(all[n].gate)
		}
		began := time.Now()
		b.v.mu.Lock()
		b.queueLocked(all[0])
		b.queueLocked(all[1])
		b.v.mu.Unlock()
		<-all[0].steps
		<-all[1].steps
		if took := time.Since(began); took > 2*readStuck {
			t.Errorf("both waited %v", took)
		}
		close(b.d.hung)
	})
}

// What is no short read has its turn among reads without end, whatever the number of workers.
func TestReadsAndOthers(t *testing.T) {
	for _, workers := range []int{1, 4} {
		synctest.Test(t, func(t *testing.T) {
			b := newReaders(t, workers)
			first := b.read(1)
			synctest.Wait()
			second, third := b.read(2), b.read(3)
			other := b.start(50, func(r *reading) { b.v.ToWorker(&r.op) })
			long := b.start(60, func(r *reading) { b.v.ToReader(&r.op, &r.lease, 0, shortRead+512) })
			for _, r := range []*reading{second, third, other, long} {
				close(r.gate)
			}
			close(first.gate)
			for _, r := range []*reading{first, second, third, other, long} {
				<-r.steps
			}
			synctest.Wait()
			steps := slices.DeleteFunc(b.d.noted(), func(n int) bool { return n < 0 || n > 100 })
			if i := slices.Index(steps, 50); workers == 1 && i > 2 {
				t.Errorf("steps %v: the other command came last", steps)
			}
		})
	}
}

// queueLocked has a read of the medium queued. Preconditions: v.mu is held.
func (b *readers) queueLocked(r *reading) {
	r.op.read = read{from: b.v.announcer, blocks: &b.v.badBlocks, lease: &r.lease, off: int64(r.n) * 512, n: 512}
	b.v.pool.enqueueLocked(&r.op)
}

// Reads that are aborted before the worker that has been called for them comes hold up no other.
func TestCalledInVain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newReaders(t, 4)
		gone := b.start(1, func(*reading) {})
		b.v.mu.Lock()
		b.queueLocked(gone)
		set := b.v.markLocked(func(o *Op) AbortReason { return AbortedByOwner }, nil)
		b.v.mu.Unlock() // now the worker comes
		set.Finish()
		synctest.Wait()
		later := b.read(2)
		close(later.gate)
		b.expect("the later one", -1, 102, 2, -2)
		if len(later.steps) == 0 {
			b.v.mu.Lock() // so that the test ends
			b.v.pool.hireLocked(&later.op)
			b.v.mu.Unlock()
		}
	})
}

// A worker that was to come for a write in turn and takes a read leaves the write to another one.
func TestReadBesideWriteInTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first := make(chan struct{})
		made := make(chan int64, 2)
		d := &told{here: map[int]bool{}, hung: make(chan struct{}), Device: slow{newDevice(t, "v"), true, func(off int64) {
			if made <- off / 512; off == 10*512 {
				<-first
			}
		}}}
		b := &readers{serve(t, new(Registry), Config{Device: d, Workers: 16}, "v"), d}
		b.v.pool.reads.usual = 2
		b.v.pool.short = stepsSure
		var block [512]byte
		write := func(n int64) *req {
			r := &req{steps: make(chan Cause, 1)}
			b.bench.start(r, &Client{}, Simple, uint64(n), uint64(n)+1, HoldWrite)
			b.v.ToWriter(&r.op, block[:], n*512)
			synctest.Wait()
			return r
		}
		write10 := write(10)
		<-made
		one := b.read(1) // its announcement hangs
		synctest.Wait()
		two := b.read(2) // whose worker waits for the first
		synctest.Wait()
		write11 := write(11) // is left to the worker of the other write
		b.v.mu.Lock()
		if b.v.pool.queue.head() == nil || b.v.pool.reads.waiting.head == nil {
			t.Error("there is no write and no read to choose from")
		}
		b.v.mu.Unlock()
		close(first)
		synctest.Wait()
		select {
		case <-made:
		default:
			t.Error("the second write waits for somebody who is with a read")
		}
		close(one.gate)
		close(two.gate)
		close(d.hung)
		for _, r := range []*req{one.req, two.req, write10, write11} {
			<-r.steps
		}
	})
}

// More workers come for reads that wait, too.
func TestMoreWorkersForReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newReaders(t, 1)
		b.v.pool.reads.usual = 3
		var all []*reading
		for n := range 3 {
			all = append(all, b.read(n+1))
			synctest.Wait()
		}
		b.expect("one worker", 101, 1)
		b.v.SetWorkers(3)
		synctest.Wait()
		got := b.d.noted()
		slices.Sort(got)
		if want := []int{2, 3, 102, 103}; !slices.Equal(got, want) {
			t.Errorf("three workers: %v, want %v", got, want)
		}
		for _, r := range all {
			close(r.gate)
			<-r.steps
		}
	})
}
