package multipath

import (
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"softiser/blockdev"
	"softiser/initiator/blockio"
)

// storage is a volume that several fake paths lead to. A write that a path was carrying when
// it was lost takes effect at some time later, unless the path is fenced before.
type storage struct {
	mu     sync.Mutex
	blocks map[int64]uint64
}

func (st *storage) get(off int64) uint64 {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.blocks[off]
}

// fakePath is one path to a storage, in virtual time.
type fakePath struct {
	st   *storage
	name string

	mu        sync.Mutex
	connected bool
	access    blockio.Access
	shared    bool
	names     []string
	info      blockdev.Info
	latency   time.Duration
	fences    bool // Fence succeeds
	halved    bool // one of its two sessions is lost, and the other one carries on
	inFence   func()
	mute      bool // nothing is answered, and it is not known to be lost
	refuse    error
	pending   map[*blockio.Request]*time.Timer
	loses     error         // what ends the requests of a session that is lost
	lag       time.Duration // until a late write takes effect; 0: by chance, within maxLag
	late      []*time.Timer
	served    int
	resets    int
	hooks     Hooks
	epochID   [16]byte
	epoch     *blockio.Epoch
	closed    bool
	opens     int
}

func newStorage() *storage { return &storage{blocks: map[int64]uint64{}} }

const fakeBlock = 512

// maxLag is after what time late writes have taken effect.
const maxLag = 3 * time.Second

func (st *storage) path(name string) *fakePath {
	return &fakePath{
		st: st, name: name, connected: true, loses: blockio.ErrSessionLost, names: []string{"naa.6001"}, latency: 2 * time.Millisecond,
		info: blockdev.Info{Size: 1 << 20, BlockSize: fakeBlock, WriteCache: true}, pending: map[*blockio.Request]*time.Timer{},
	}
}

// change changes how the path behaves from here on; nothing tells of it.
func (p *fakePath) change(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f()
}

func (p *fakePath) dialer() Dialer {
	return Dialer{Name: p.name, Open: func(_ context.Context, h Hooks) (blockio.Path, error) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.opens++
		if p.refuse != nil {
			return nil, p.refuse
		}
		p.hooks, p.closed = h, false
		p.epoch = h.Cache.Enter(p.epochID)
		return p, nil
	}}
}

func (p *fakePath) Submit(r *blockio.Request) {
	r.Err, r.Sent = nil, false
	p.mu.Lock()
	switch {
	case p.closed:
		r.Err = blockio.ErrClosed
	case !p.connected:
		r.Err = blockio.ErrSessionLost
	case !p.access.Usable():
		r.Err, r.Sent = blockio.ErrInaccessible, true
	case p.latency == 0:
		p.mu.Unlock()
		r.Done(r)
		return
	default:
		r.Sent = true
		p.pending[r] = time.AfterFunc(p.latency, func() { p.complete(r) })
		p.mu.Unlock()
		return
	}
	p.mu.Unlock()
	r.Done(r)
}

func (p *fakePath) complete(r *blockio.Request) {
	p.mu.Lock()
	if _, ok := p.pending[r]; !ok {
		p.mu.Unlock()
		return
	}
	delete(p.pending, r)
	p.served++
	f := blockio.Flush{}
	p.st.mu.Lock()
	switch r.Op {
	case blockio.OpWrite:
		p.st.blocks[r.Off] = binary.LittleEndian.Uint64(r.Buf)
		p.epoch.Wrote(r.Flusher)
	case blockio.OpRead:
		binary.LittleEndian.PutUint64(r.Buf, p.st.blocks[r.Off])
	case blockio.OpFlush:
		f = p.epoch.Begin(r.Flusher)
		r.Err = f.End(true)
	}
	p.st.mu.Unlock()
	p.mu.Unlock()
	r.Done(r)
}

// cut loses the path with what it carries.
func (p *fakePath) cut() { p.lose(func() { p.connected = false }) }

// halve loses one of two sessions, the one with all that the path carries.
func (p *fakePath) halve() { p.lose(func() { p.halved = true }) }

// lose loses what the path carries.
func (p *fakePath) lose(how func()) {
	p.mu.Lock()
	how()
	lost := p.pending
	p.pending = map[*blockio.Request]*time.Timer{}
	for r, t := range lost {
		t.Stop()
		if r.Op == blockio.OpWrite {
			off, val := r.Off, binary.LittleEndian.Uint64(r.Buf)
			lag := p.lag
			if lag == 0 {
				lag = rand.N(maxLag)
			}
			p.late = append(p.late, time.AfterFunc(lag, func() {
				p.st.mu.Lock()
				defer p.st.mu.Unlock()
				p.st.blocks[off] = val
			}))
		}
	}
	p.mu.Unlock()
	for r := range lost {
		r.Err = p.loses
		if r.Op == blockio.OpCompareAndWrite {
			r.Err = blockio.ErrOutcomeUnknown
		}
		r.Done(r)
	}
	p.hooks.Changed()
}

// fence ends what may still take effect. The caller holds p.mu.
func (p *fakePath) fence() {
	for _, t := range p.late {
		t.Stop()
	}
	p.late = nil
}

func (p *fakePath) restore() {
	p.mu.Lock()
	p.fence()
	p.connected, p.halved = true, false
	p.mu.Unlock()
	if p.hooks.Changed != nil {
		p.hooks.Changed()
	}
}

// set changes the access state, as a target does that tells of it.
func (p *fakePath) set(a blockio.Access) {
	p.mu.Lock()
	p.access = a
	p.mu.Unlock()
	p.hooks.Changed()
}

func (p *fakePath) Fence(context.Context, []blockio.Path) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.fences && (!p.connected || p.halved) {
		return errors.New("nobody answers")
	}
	p.fence()
	if f := p.inFence; f != nil {
		p.inFence = nil
		p.mu.Unlock()
		f()
		p.mu.Lock()
	}
	return nil
}

func (p *fakePath) Reset(context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.resets++
	return nil
}

func (p *fakePath) Connected() (bool, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.connected {
		return false, errors.New("cut")
	}
	return true, nil
}

func (p *fakePath) Access(ctx context.Context) (blockio.Access, bool, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mute {
		p.mu.Unlock()
		<-ctx.Done()
		p.mu.Lock()
		return 0, false, ctx.Err()
	}
	return p.access, p.shared, nil
}

func (p *fakePath) Cancel(r *blockio.Request, err error) {
	p.mu.Lock()
	t, ok := p.pending[r]
	if ok {
		t.Stop()
		delete(p.pending, r)
	}
	p.mu.Unlock()
	if ok {
		r.Err = err
		r.Done(r)
	}
}

func (p *fakePath) SubmitBatch(rs []*blockio.Request) {
	for _, r := range rs {
		p.Submit(r)
	}
}

func (p *fakePath) Do(_ context.Context, r *blockio.Request) error {
	done := make(chan struct{})
	r.Done = func(*blockio.Request) { close(done) }
	p.Submit(r)
	<-done
	return r.Err
}

func (p *fakePath) Info() blockdev.Info {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.info
}

func (p *fakePath) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.served
}

func (p *fakePath) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	p.fence()
	return nil
}

func (p *fakePath) Flush() error                                  { return nil }
func (p *fakePath) Extents(_, _ int64) ([]blockdev.Extent, error) { return nil, nil }
func (p *fakePath) OnResize(func(blockdev.Info)) (cancel func())  { return func() {} }
func (p *fakePath) Limits() blockio.Limits                        { return blockio.Limits{} }
func (p *fakePath) Names() []string                               { return p.names }
func (p *fakePath) Describe() string                              { return p.name }
func (p *fakePath) QueueDepth() int                               { return 32 }
func (p *fakePath) Stats() blockio.Stats                          { return blockio.Stats{} }
func (p *fakePath) NewFlusher() *blockio.Flusher                  { return p.hooks.Cache.NewFlusher() }
func (p *fakePath) Epoch() *blockio.Epoch                         { return p.epoch }

// open opens a volume over fake paths, and closes it with the test.
func open(t *testing.T, cfg Config, paths ...*fakePath) *Volume {
	t.Helper()
	for _, p := range paths {
		cfg.Paths = append(cfg.Paths, p.dialer())
	}
	v, err := Open(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { v.Close() })
	return v
}

func write(off int64, val uint64) *blockio.Request {
	return &blockio.Request{Op: blockio.OpWrite, Off: off, Buf: binary.LittleEndian.AppendUint64(make([]byte, 0, 8), val)}
}

func read(off int64) *blockio.Request {
	return &blockio.Request{Op: blockio.OpRead, Off: off, Buf: make([]byte, 8)}
}

// start submits r and returns where its end is told.
func start(v *Volume, r *blockio.Request) <-chan error {
	ch := make(chan error, 1)
	r.Done = func(r *blockio.Request) { ch <- r.Err }
	v.Submit(r)
	return ch
}
