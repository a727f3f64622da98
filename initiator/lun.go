package initiator

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"softiser/blockdev"
	"softiser/initiator/blockio"
	"softiser/initiator/internal/syncio"
	"softiser/internal/iscsi"
	"softiser/internal/spc"
)

// LUN is one logical unit of a target, over one or several sessions. It is a
// blockdev.Device (synchronous, copying and leasing) and takes asynchronous
// Requests with real queue depth.
type LUN struct {
	*calls

	num   uint64
	wire  uint64 // as in a PDU
	paths []*Session
	owned bool // Close closes the sessions
	id    Identity
	geo   atomic.Pointer[geometry]
	next  atomic.Uint32 // path of the next request
	cache *blockio.Cache
	epoch atomic.Pointer[blockio.Epoch] // that it is in; changes under mu

	closed atomic.Bool
	hooks  blockdev.ResizeHooks
	mu     sync.Mutex // guards changes of geo and epoch, which are read without it; a leaf
}

// calls are the synchronous ones.
type calls = syncio.Calls

var (
	_ blockdev.Device = (*LUN)(nil)
	_ blockio.Volume  = (*LUN)(nil)
)

// Open dials cfg.Sessions sessions and opens cfg.LUN over all of them; requests
// take turns. Closing the LUN closes the sessions.
func Open(ctx context.Context, cfg Config) (*LUN, error) {
	cfg = cfg.withDefaults()
	carried := cfg.Carried
	defer func() {
		for _, k := range carried {
			k.Close() // nobody has taken it
		}
	}()
	if n := len(carried); n > 0 && n != cfg.Sessions {
		return nil, fmt.Errorf("%w: another process had %d of them, here they are %d", errNoRest, n, cfg.Sessions)
	}
	var paths []*Session
	fail := func(err error) (*LUN, error) {
		for _, s := range paths {
			s.Close()
		}
		return nil, err
	}
	for i := range cfg.Sessions {
		c := cfg
		c.ISID = ISIDAfter(cfg.ISID, i)
		if len(carried) > 0 {
			c.Carried = carried[i : i+1]
		}
		s, err := Dial(ctx, c)
		if err != nil {
			return fail(err)
		}
		paths = append(paths, s)
	}
	l, err := newLUN(ctx, cfg.LUN, paths)
	if err != nil {
		return fail(err)
	}
	l.owned = true
	return l, nil
}

// LUN looks at one logical unit and returns it as a device on this session.
func (s *Session) LUN(ctx context.Context, n uint64) (*LUN, error) {
	return newLUN(ctx, n, []*Session{s})
}

// newLUN looks at the logical unit over every path: all must lead to the same.
func newLUN(ctx context.Context, n uint64, paths []*Session) (*LUN, error) {
	if n > 1<<14-1 {
		return nil, fmt.Errorf("initiator: LUN %d: the largest is %d", n, 1<<14-1)
	}
	l := &LUN{num: n, wire: iscsi.EncodeLUN(int(n)), paths: paths, cache: paths[0].cfg.Cache}
	if l.cache == nil {
		l.cache = new(blockio.Cache)
	}
	l.calls = l.newCalls()
	told := make([]uint32, len(paths))
	for i, s := range paths {
		told[i] = s.units.reports()
		at := lookup{s, l.wire}
		id, err := at.identify(ctx)
		if errors.Is(err, ErrNoLUN) {
			err = s.missing(ctx)
		}
		if err != nil {
			return nil, fmt.Errorf("initiator: %s: LUN %d: %w", s.cfg.URL(), n, err)
		}
		if i == 0 {
			l.id = id
			g, err := at.measure(ctx, &id)
			if err != nil {
				return nil, fmt.Errorf("initiator: %s: LUN %d: %w", s.cfg.URL(), n, err)
			}
			l.geo.Store(g)
			l.epoch.Store(l.cache.Enter(id.epoch))
			continue
		}
		if !l.id.same(&id) {
			return nil, fmt.Errorf("initiator: %s: LUN %d is %s on one path and %s on another: these are different volumes", s.cfg.URL(), n, l.id.Name(), id.Name())
		}
		// Takes the unit attentions of the login, as measure does on the first path:
		// they tell nothing about what is written from now on.
		if _, err := at.command(ctx, spc.AppendTestUnitReady(nil), nil); lostConnection(err) {
			return nil, fmt.Errorf("initiator: %s: LUN %d: %w", s.cfg.URL(), n, err)
		}
	}
	for i, s := range paths {
		s.units.attach(l, told[i])
	}
	return l, nil
}

// missing is an ErrNoLUN that says what the target has instead, as far as it tells.
func (s *Session) missing(ctx context.Context) error {
	luns, err := s.ReportLUNs(ctx)
	if err != nil {
		return ErrNoLUN
	}
	return blockio.NoLUN(ErrNoLUN.Error(), "LUN", luns)
}

// newCalls makes the synchronous calls of a LUN whose paths are known.
func (l *LUN) newCalls() *calls {
	return syncio.New(l, syncio.Config{Pool: l.paths[0].cfg.Pool, Closed: &l.closed, Short: ErrShort, Abort: func(r *Request, why error, ended <-chan struct{}) {
		l.Cancel(r, why)
		<-ended
	}})
}

// Submit starts r. It never blocks: what exceeds the queue depth or the
// target's command window waits in the session. r.Done is called exactly once,
// also for requests that cannot start. Inside a Done callback the command
// leaves together with the others of that batch of completions; elsewhere it
// is transmitted at once.
func (l *LUN) Submit(r *Request) {
	q, done := l.prepare(r)
	if done {
		runLater(q, nil)
		return
	}
	l.path().submit(q)
}

// SubmitBatch starts several requests and transmits them together.
func (l *LUN) SubmitBatch(rs []*Request) {
	if len(l.paths) > 1 {
		for _, r := range rs {
			q, done := l.prepare(r)
			if done {
				runLater(q, nil)
				continue
			}
			s := l.path()
			s.mu.Lock()
			s.enqueue(q)
			s.unlock()
		}
		for _, s := range l.paths {
			s.kick()
		}
		return
	}
	s := l.paths[0]
	var c *conn
	s.mu.Lock()
	for _, r := range rs {
		if q, done := l.prepare(r); done {
			s.finish(q, r.Err)
		} else {
			c = s.enqueue(q)
		}
	}
	s.unlock()
	if c != nil {
		c.kick()
	}
}

// path returns the session for the next request: in turn, those that recover
// left out as long as another one works.
func (l *LUN) path() *Session {
	if len(l.paths) == 1 {
		return l.paths[0]
	}
	first := l.next.Add(1)
	for i := range uint32(len(l.paths)) {
		s := l.paths[(first+i)%uint32(len(l.paths))]
		if s.flowing.Load() {
			return s
		}
	}
	return l.paths[first%uint32(len(l.paths))]
}

// QueueDepth is how many commands the LUN's sessions keep outstanding together.
func (l *LUN) QueueDepth() int {
	n := 0
	for _, s := range l.paths {
		n += s.cfg.QueueDepth
	}
	return n
}

// Sessions returns the sessions that the LUN is reached over.
func (l *LUN) Sessions() []*Session { return l.paths }

// Number is the LUN's number at the target.
func (l *LUN) Number() uint64 { return l.num }

// Names are the designators of the LUN, the best first.
func (l *LUN) Names() []string { return l.id.Designators }

// Identity is what the LUN says it is.
func (l *LUN) Identity() Identity { return l.id }

// Describe names target, LUN, transport and its settings for people.
func (l *LUN) Describe() string {
	s := l.paths[0]
	i := s.Info()
	d := fmt.Sprintf("%s LUN %d at %s, %s", i.TargetName, l.num, i.Portal, i.Transport)
	if n := len(l.paths); n > 1 {
		d += fmt.Sprintf(", %d sessions", n)
	}
	return d
}

// Stats adds up the counters of the LUN's sessions.
func (l *LUN) Stats() Stats {
	var sum Stats
	for _, s := range l.paths {
		st := s.Stats()
		sum.Add(&st)
	}
	return sum
}

// Close gives the LUN back; sessions that Open dialled are closed. On a session that
// goes on, what has not been sent yet ends with ErrClosed. A second Close fails with
// blockdev.ErrClosed.
func (l *LUN) Close() error {
	if l.closed.Swap(true) {
		return blockdev.ErrClosed
	}
	var first error
	l.epoch.Load().Leave()
	for _, s := range l.paths {
		if l.owned {
			// The LUN stays attached until then: commands that wait for a look at it still need it.
			if err := s.Close(); err != nil && first == nil {
				first = err
			}
		}
		s.units.detach(l)
	}
	return first
}

// Reset resets the logical unit: the commands of all initiators there are aborted.
func (l *LUN) Reset(ctx context.Context) error { return l.path().ResetLUN(ctx, l.num) }

// Cancel ends r before its time, with err; a command that is at the target is aborted. Done is
// called as ever, also if r ends otherwise meanwhile, and perhaps within Cancel.
func (l *LUN) Cancel(r *Request, err error) {
	if q := stateOf(r); q.sess != nil {
		q.sess.abandon(q, err)
	}
}
