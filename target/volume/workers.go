package volume

import (
	"sync"
	"time"

	"softiser/blockdev"
)

// pool is the workers of a volume, which run steps that may wait for storage, and the queue of
// the ops that wait for a worker. Workers are started on demand: at most Config.Workers, or
// twice as many while steps are queued that make data durable or give staging memory back
// (see mostFor). All but keepIdleWorkers end when there is nothing to do. The queue is bounded
// by the command windows of the sessions. The lock of the task set guards the pool.
type pool struct {
	mu     *sync.Mutex // of the Tasks; guards everything below
	work   sync.Cond   // on mu: a queue has grown, a worker has ended, closed
	queue  workQueue
	n      int // running workers
	most   int // the bound of n; see mostFor
	now    func() time.Time
	idle   int // of n: those that wait on work
	woken  int // of idle: those that have been signalled, and have not looked at the queue yet
	short  int // steps in a row that were short, see owed.go
	turns  turns
	reads  reads
	closed bool // idle workers end
}

const keepIdleWorkers = 2

// init makes a pool of at most most workers, guarded by mu.
func (p *pool) init(mu *sync.Mutex, most int) {
	p.mu, p.work.L, p.most, p.now = mu, mu, most, time.Now
	p.reads.init()
}

// ToWorker hands o, which is Running, to a worker, which calls its Step.
func (s *Tasks) ToWorker(o *Op) {
	s.mu.Lock()
	s.pool.takeLocked(o)
	s.mu.Unlock()
}

// takeLocked is ToWorker.
func (p *pool) takeLocked(o *Op) {
	o.syncs, o.commits = false, false
	p.enqueueLocked(o)
}

// ToSyncer is ToWorker for a step that makes data durable.
func (s *Tasks) ToSyncer(o *Op) {
	s.mu.Lock()
	o.syncs, o.commits = true, false
	s.pool.enqueueLocked(o)
	s.mu.Unlock()
}

// ToCommitter is ToWorker for a step that makes received data the content of its blocks, durably
// if fua says so. It gives staging memory back, for which every other worker may be waiting;
// so it is queued before other steps and may get a worker beyond the usual bound. The step
// itself must not wait for staging memory.
func (v *Volume) ToCommitter(o *Op, fua bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	o.syncs, o.commits = fua || !v.Geo().Info.WriteCache, true
	v.pool.enqueueLocked(o)
}

// ToWriter hands o, which is Running, to a worker, which writes p at off (bytes) and then calls
// its Step; Op.Written returns the error of the write there. p belongs to the volume until then.
func (v *Volume) ToWriter(o *Op, p []byte, off int64) {
	info := &v.Geo().Info
	v.mu.Lock()
	defer v.mu.Unlock()
	o.write = write{blocks: &v.badBlocks, p: p, off: off}
	o.inTurn, o.syncs, o.commits = info.InTurn, !info.WriteCache, false
	v.pool.enqueueLocked(o)
}

// ToReader hands o, which is Running, to a worker, which calls its Step for a read of
// [off, off+n), in bytes. l is a free lease of the caller. If the worker can fill it without
// waiting it does so before Step, and Op.Lent reports true; otherwise Step leases the range.
func (v *Volume) ToReader(o *Op, l *blockdev.Lease, off int64, n int) {
	if v.announcer == nil || n > shortRead {
		o.read = read{}
		v.ToWorker(o)
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	o.syncs, o.commits = false, false
	o.read = read{from: v.announcer, blocks: &v.badBlocks, lease: l, off: off, n: n}
	v.pool.enqueueLocked(o)
}

// SetWorkers changes how many goroutines may wait for the volume, at least one. What
// runs is left to end.
func (s *Tasks) SetWorkers(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := &s.pool
	p.most = max(n, 1)
	for o := p.queue.others.head; o != nil && p.n < p.most; o = o.qnext {
		p.startLocked()
	}
	for _, q := range [...]opQueue{p.queue.commits, p.reads.fresh, p.reads.waiting} {
		for o := q.head; o != nil; o = o.qnext {
			p.hireLocked(o)
		}
	}
}

// enqueueLocked puts o behind the others that wait for a worker.
func (p *pool) enqueueLocked(o *Op) {
	o.to(Queued)
	if o.read.from != nil {
		p.enqueueReadLocked(o)
		return
	}
	p.queue.of(o).push(o)
	if o.inTurn {
		p.turns.n++
		if p.turns.n > 1 && p.short == stepsSure {
			p.watchLocked()
			return // the worker that makes the write before it takes it next, see turns.go
		}
	}
	p.hireLocked(o)
}

// enqueueReadLocked puts o behind the others.
func (p *pool) enqueueReadLocked(o *Op) {
	r := &p.reads
	r.fresh.push(o)
	if !r.called {
		r.called = true
		p.hireLocked(o)
	}
}

// dropLocked takes an aborted command out of the queue.
func (p *pool) dropLocked(o *Op) {
	if o.read.from != nil {
		p.reads.drop(o)
		return
	}
	p.queue.of(o).remove(o)
	p.turns.end(o.takeTurn(), p.turns.round)
}

// mostFor is how many workers there may be for o. Twice as many for steps that make data durable:
// they wait for the disk, which serves many at once, and for each other where they share a
// file description (a sync that succeeds is believed only when every sync that overlapped it
// has ended, because one of those may have been given its error). And for steps that commit,
// see ToCommitter.
func (p *pool) mostFor(o *Op) int {
	if o.syncs || o.commits {
		return 2 * p.most
	}
	return p.most
}

// hireLocked wakes an idle worker for o, which is queued, or starts one if the bound allows it.
func (p *pool) hireLocked(o *Op) {
	switch {
	case p.idle > p.woken:
		p.woken++
		p.work.Signal()
	case p.n < p.mostFor(o):
		p.startLocked()
	}
}

// startLocked starts a worker.
func (p *pool) startLocked() {
	p.n++
	go func() {
		w := worker{pool: p}
		w.run()
	}()
}

// watchLocked has unstick called after stuckAfter.
func (p *pool) watchLocked() {
	w := &p.turns
	if w.watched {
		return
	}
	w.watched, w.seen = true, w.popped
	if w.watch == nil {
		w.watch = time.AfterFunc(stuckAfter, p.unstick)
	} else {
		w.watch.Reset(stuckAfter)
	}
}

// unstick starts workers for all queued writes if no op has been taken from the queue since
// watchLocked, because the worker that was to take them is stuck in its own write.
func (p *pool) unstick() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.turns.watched = false
	switch {
	case p.queue.head() == nil:
	case p.turns.popped != p.turns.seen:
		p.watchLocked()
	default:
		p.short = 0
		p.turns.n = 0 // nobody waits for those that are being made any more
		p.turns.round++
		for o := p.queue.others.head; o != nil; o = o.qnext {
			o.inTurn = false
			p.hireLocked(o)
		}
	}
}

// announceLocked moves fresh reads to the waiting ones and copies them to to, for the caller to
// announce to the device. It returns how many there are.
func (p *pool) announceLocked(to *[announceMost]read) (k int) {
	r := &p.reads
	for r.fresh.head != nil && k < len(to) {
		o := r.fresh.pop()
		to[k] = o.read
		r.waiting.push(o)
		k++
	}
	r.called = false
	if k > 1 || k > 0 && r.readers > 0 {
		p.watchReadsLocked()
	}
	return k
}

// popReadLocked takes the next waiting read, and counts the caller as a reader.
func (p *pool) popReadLocked() *Op {
	r := &p.reads
	o := r.waiting.pop()
	r.readers++
	r.taken++
	switch {
	case r.waiting.head != nil:
		p.watchReadsLocked()
	case r.fresh.head == nil && r.readers <= r.usual: // with more, one is stuck still
		r.stuck = false
	}
	return o
}

// watchReadsLocked has unstickReads called after readStuck.
func (p *pool) watchReadsLocked() {
	r := &p.reads
	if r.watched {
		return
	}
	r.watched, r.seen = true, r.taken
	if r.watch == nil {
		r.watch = time.AfterFunc(readStuck, p.unstickReads)
	} else {
		r.watch.Reset(readStuck)
	}
}

// unstickReads starts workers for all waiting reads if none was taken since watchReadsLocked.
func (p *pool) unstickReads() {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := &p.reads
	r.watched = false
	switch {
	case r.waiting.head == nil:
	case r.taken != r.seen:
		p.watchReadsLocked()
	default:
		r.stuck = true
		for o := r.waiting.head; o != nil; o = o.qnext {
			p.hireLocked(o)
		}
	}
}

// closeLocked has the workers end, and waits until they have. Preconditions: there are no
// commands, and none will come.
func (p *pool) closeLocked() {
	p.closed = true
	p.work.Broadcast()
	for p.n > 0 {
		p.work.Wait()
	}
}

// endLocked takes the calling worker out of the pool, and releases the lock.
func (p *pool) endLocked() {
	p.n--
	p.work.Broadcast()
	p.mu.Unlock()
}

// worker is a goroutine of a pool, and what it keeps from one command to the next. It owns
// the command that it has taken from the queue until that ends, waits for its initiator's
// data or is queued again.
type worker struct {
	*pool
	owes   owed
	news   [announceMost]read
	ended  time.Time // end of the last step, if the next one follows at once; else zero
	reader bool      // the last command was a read
}

// run works until there is nothing to do and enough other workers are idle, until there are more
// workers than there may be, or until the pool is closed and empty.
func (w *worker) run() {
	w.mu.Lock()
	for w.waitLocked() {
		if w.tellLocked() {
			continue
		}
		// Reads and what else there is go by turns.
		if w.reader = w.readableLocked() && (w.queue.head() == nil || !w.reader); w.reader {
			w.readLocked()
		} else {
			w.stepLocked()
		}
	}
	w.endLocked()
}

// waitLocked waits until there is something to do. False: the worker is to end.
func (w *worker) waitLocked() bool {
	if next := w.queue.head(); w.n > w.most && (next == nil || w.n > w.mostFor(next)) { // there are others for the queue
		return false
	}
	for w.queue.head() == nil && w.reads.fresh.head == nil && !w.readableLocked() {
		if w.closed || w.idle >= keepIdleWorkers {
			return false
		}
		w.idle++
		w.work.Wait()
		w.idle--
		w.woken = max(w.woken-1, 0)
	}
	return true
}

// tellLocked announces fresh reads to the device, and reports whether there were any. It releases
// the lock while it does so.
func (w *worker) tellLocked() bool {
	k := w.announceLocked(&w.news)
	if k == 0 {
		return false
	}
	w.mu.Unlock()
	for i := range w.news[:k] {
		r := &w.news[i]
		r.from.Announce(r.off, r.n)
	}
	w.mu.Lock()
	return true
}

// readLocked goes on with the next read. The lock is released meanwhile.
func (w *worker) readLocked() {
	if next := w.queue.head(); next != nil {
		w.hireLocked(next) // this worker may be the one that was woken for it
	}
	o := w.popReadLocked()
	r := o.read
	o.read = read{}
	o.to(Running)
	w.mu.Unlock()
	if w.owes.n > 0 && (o.Aborted() || !r.lend()) {
		w.owes.pay()
	}
	o.read.lent = r.lent
	answer := debt{port: o.req.Via()}
	if o.Aborted() {
		o.req.Step(Abort)
	} else {
		o.req.Step(Proceed)
	}
	now := w.now()
	w.owes.add(answer, now)
	w.mu.Lock()
	w.reads.readers--
	if !w.mayOweReadsLocked(&w.owes, now) {
		w.mu.Unlock()
		w.owes.pay()
		w.mu.Lock()
	}
}

// stepLocked goes on with the next command that is no read. The lock is released meanwhile.
func (w *worker) stepLocked() {
	if w.readableLocked() {
		w.hireLocked(w.reads.waiting.head)
	}
	o := w.queue.pop()
	w.turns.popped++
	if next := w.queue.head(); next != nil && w.n >= w.most && w.mostFor(next) > w.most {
		w.hireLocked(next) // the worker that was started for it ended if it found o first
	}
	inTurn, round := o.takeTurn(), w.turns.round
	o.to(Running)
	w.mu.Unlock()

	began := w.ended
	if began.IsZero() {
		began = w.now()
	}
	answer := debt{port: o.req.Via()} // after Step the slot may hold another command
	switch {
	case o.Aborted():
		o.req.Step(Abort)
	case o.makeWrite() && inTurn:
		answer.step = o.req
	default:
		o.req.Step(Proceed)
	}
	w.ended = w.now()
	w.owes.add(answer, w.ended)
	w.mu.Lock()
	if !w.mayOweLocked(&w.owes, w.ended, w.ended.Sub(began)) {
		w.mu.Unlock()
		w.owes.pay()
		w.ended = time.Time{}
		w.mu.Lock()
	}
	w.turns.end(inTurn, round)
}
