package nvmf

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"softiser/blockdev"
	"softiser/initiator/blockio"
	"softiser/initiator/internal/syncio"
	"softiser/internal/nvme"
)

// Namespace is one namespace of a subsystem as a volume: asynchronous requests with real
// queue depth, and a blockdev.Device.
type Namespace struct {
	*calls

	a     *Association
	id    uint32
	owned bool // Close closes the association
	ids   nvme.Identifiers
	geo   atomic.Pointer[geometry]
	cache *blockio.Cache
	epoch atomic.Pointer[blockio.Epoch] // that the cache is in; changes under mu

	closed atomic.Bool
	hooks  blockdev.ResizeHooks
	// zeroless: the controller refuses Write Zeroes for this namespace.
	zeroless atomic.Bool

	mu sync.Mutex // guards changes of epoch, which is read without it; a leaf
}

// calls are the synchronous ones.
type calls = syncio.Calls

var (
	_ blockio.Volume  = (*Namespace)(nil)
	_ blockdev.Device = (*Namespace)(nil)
)

// Open connects to cfg.Subsystem and opens cfg.NSID. Closing the namespace closes the
// association.
func Open(ctx context.Context, cfg Config) (*Namespace, error) {
	cfg = cfg.withDefaults()
	a, err := Connect(ctx, cfg)
	if err != nil {
		return nil, err
	}
	n, err := a.Namespace(ctx, cfg.NSID)
	if err != nil {
		return nil, errors.Join(err, a.Close())
	}
	n.owned = true
	return n, nil
}

// Namespace looks at a namespace and returns it as a volume of this association.
func (a *Association) Namespace(ctx context.Context, id uint32) (*Namespace, error) {
	if len(a.io) == 0 {
		return nil, fmt.Errorf("nvmf: %s: namespace %d: %w: the controller is that of a discovery service", a.cfg.Subsystem, id, blockio.ErrNoLUN)
	}
	n := &Namespace{a: a, id: id, cache: a.cfg.Cache}
	if n.cache == nil {
		n.cache = new(blockio.Cache)
	}
	n.calls = syncio.New(n, syncio.Config{Pool: a.cfg.Pool, Closed: &n.closed, Short: ErrShort, Abort: n.abort})
	g, ids, epoch, err := n.inspect(ctx)
	if errors.Is(err, blockio.ErrNoLUN) {
		if all, lerr := a.Namespaces(ctx); lerr == nil { // what there is instead, where it is told
			err = blockio.NoLUN("the subsystem has no such namespace", "namespace", all)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("nvmf: %s: namespace %d: %w", a.cfg.Subsystem, id, err)
	}
	n.ids = ids
	n.geo.Store(g)
	n.epoch.Store(n.cache.Enter(epoch))
	a.mu.Lock()
	a.spaces = append(a.spaces, n)
	a.mu.Unlock()
	a.poke() // what has changed between the look and now
	return n, nil
}

// Submit implements blockio.Volume.
func (n *Namespace) Submit(r *blockio.Request) {
	if s := n.prepare(r); s != nil {
		n.enqueue(s).kick()
	}
}

// enqueue gives a request to its queue, or to another one when there is no such queue any
// more. The caller transmits.
func (n *Namespace) enqueue(s *request) *queue {
	for {
		q := s.queue.Load()
		q.mu.Lock()
		ok := q.enqueueLocked(s)
		q.unlock()
		if ok {
			return q
		}
		s.queue.Store(n.a.nextQueue())
	}
}

// prepare checks a request and finds its queue; nil: it has ended.
func (n *Namespace) prepare(r *blockio.Request) *request {
	s := stateOf(r)
	if n.closed.Load() {
		r.Err = blockio.ErrClosed
	} else if !n.begin(s) {
		if q := s.queue.Load(); q == nil || q.a != n.a {
			s.queue.Store(n.a.nextQueue())
		}
		return s
	}
	if r.Done != nil {
		r.Done(r)
	}
	return nil
}

// SubmitBatch implements blockio.Volume.
func (n *Namespace) SubmitBatch(rs []*blockio.Request) {
	var last *queue
	for _, r := range rs {
		s := n.prepare(r)
		if s == nil {
			continue
		}
		q := n.enqueue(s)
		if last != nil && last != q {
			last.kick()
		}
		last = q
	}
	if last != nil {
		last.kick()
	}
}

// abort ends a request that is waited for. A controller that does not end the request loses its connection.
func (n *Namespace) abort(r *blockio.Request, why error, ended <-chan struct{}) {
	stateOf(r).abandon(why)
	select {
	case <-ended:
	case <-time.After(abortTimeout):
		n.a.breakOff(fmt.Errorf("nvmf: an aborted command does not end within %v", abortTimeout))
		<-ended
	}
}

// FlushRange is Flush: NVMe has no other.
func (n *Namespace) FlushRange(off, length int64) error {
	i := n.Info()
	if err := i.Check(off, length); err != nil || length == 0 {
		return err
	}
	return n.Flush()
}

// noZeroes takes note that the controller has Write Zeroes, but not for this namespace:
// from now on zeroes are written.
func (n *Namespace) noZeroes() {
	n.zeroless.Store(true)
	old := n.geo.Load()
	g := *old
	g.maxZeroes = 0
	n.geo.CompareAndSwap(old, &g) // if it fails, the namespace has just been looked at anew, and that is newer
}

// Extents says that all of it is data: controllers over fabrics do not tell.
func (n *Namespace) Extents(off, length int64) ([]blockdev.Extent, error) {
	if n.closed.Load() {
		return nil, blockdev.ErrClosed
	}
	i := n.Info()
	if err := i.Check(off, length); err != nil {
		return nil, err
	}
	return []blockdev.Extent{{Off: off, Len: length, Data: true}}, nil
}

// Info implements blockio.Volume.
func (n *Namespace) Info() blockdev.Info { return n.geo.Load().info }

// OnResize implements blockio.Volume.
func (n *Namespace) OnResize(f func(blockdev.Info)) (cancel func()) { return n.hooks.Add(f) }

// Limits implements blockio.Volume.
func (n *Namespace) Limits() blockio.Limits {
	g := n.geo.Load()
	return blockio.Limits{MaxTransfer: g.maxIO, MaxUnmap: g.maxDiscard, MaxWriteSame: g.maxZeroes, MaxCompareAndWrite: g.maxCompare}
}

// Names implements blockio.Volume: NGUID, EUI-64, UUID.
func (n *Namespace) Names() []string { return namesOf(&n.ids) }

// Describe implements blockio.Volume.
func (n *Namespace) Describe() string { return fmt.Sprintf("%s, namespace %d", n.a.Describe(), n.id) }

// ID is the namespace's identifier in its subsystem.
func (n *Namespace) ID() uint32 { return n.id }

// Association is what the namespace is reached over.
func (n *Namespace) Association() *Association { return n.a }

// QueueDepth implements blockio.Volume.
func (n *Namespace) QueueDepth() int {
	d := 0
	for _, q := range n.a.granted() {
		q.mu.Lock()
		d += q.limit
		q.mu.Unlock()
	}
	return d
}

// Stats implements blockio.Volume.
func (n *Namespace) Stats() blockio.Stats { return n.a.Stats() }

// NewFlusher implements blockio.Volume.
func (n *Namespace) NewFlusher() *blockio.Flusher { return n.cache.NewFlusher() }

// Close implements blockio.Volume.
func (n *Namespace) Close() error {
	if n.closed.Swap(true) {
		return blockdev.ErrClosed
	}
	var err error
	if n.owned {
		err = n.a.Close()
	}
	n.a.forget(n)
	n.mu.Lock()
	n.epoch.Load().Leave()
	n.mu.Unlock()
	return err
}
