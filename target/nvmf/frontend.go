package nvmf

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"softiser/internal/cores"
	"softiser/internal/nvme"
	"softiser/internal/nvmerdma"
	"softiser/internal/nvmetcp"
	"softiser/internal/sockio"
	"softiser/rdma"
	"softiser/target/internal/loglimit"
	"softiser/target/internal/turns"
	"softiser/target/portal"
	"softiser/target/volume"
)

// Frontend serves subsystems: it is the portal.Frontend of NVMe over Fabrics. Its
// methods are safe for concurrent use.
type Frontend struct {
	cfg       Config
	log       *zap.Logger
	epoch     time.Time      // from which times are told, as that is cheap
	bufs      volume.Buffers // parameters, answers and what is compared
	shares    shares
	discovery *subsystem
	wires     portal.Wires[*nvmerdma.Device]
	life      context.Context // done when Drain begins
	endLife   context.CancelFunc
	closing   sync.Once // of what Close does when every connection has gone
	closeErr  error     // what went wrong then; written once, in closing

	mu         sync.Mutex
	subsystems []*subsystem                 // guarded by mu; replaced, never changed in place
	leaving    []*subsystem                 // guarded by mu: taken away, but commands may still hold their volumes
	queues     map[*queue]struct{}          // guarded by mu: every connection
	past       map[portal.Transport]Traffic // guarded by mu: of connections that have ended
	refused    map[nvme.Status]uint64       // guarded by mu: Connect commands
	drained    bool                         // guarded by mu: no connection comes any more
	empty      chan struct{}                // guarded by mu: closed when drained and queues is empty

	referrals  []Remote      // guarded by mu; replaced, never changed in place
	generation atomic.Uint64 // of the discovery log

	proofs            *turns.Pool   // of authentications
	proved, notProved atomic.Uint64 // authentications that have ended
	powers            atomic.Uint64 // modulo a prime, computed for them

	lines struct{ refused, early, proof, hosts loglimit.Limit } // of the log
}

// New makes a front end without subsystems.
func New(cfg Config) (*Frontend, error) {
	if err := cfg.fill(); err != nil {
		return nil, err
	}
	f := &Frontend{shares: shares{pool: cfg.Staging},
		cfg: cfg, log: cfg.Log, epoch: time.Now(), queues: map[*queue]struct{}{}, past: map[portal.Transport]Traffic{}, refused: map[nvme.Status]uint64{}, empty: make(chan struct{}),
		referrals: cfg.Referrals, wires: portal.Wires[*nvmerdma.Device]{Protocol: portal.NVMe},
		// Proofs of identity cost processor time. Half of the processors stay with the hosts that are
		// connected, however many others knock.
		proofs: turns.New(cores.Count() / 2),
	}
	for _, l := range []*loglimit.Limit{&f.lines.refused, &f.lines.early, &f.lines.proof} {
		l.Every, l.Burst = time.Second, 10
	}
	// As many at once as there are controllers, which may all come back after a power cut.
	f.lines.hosts.Every, f.lines.hosts.Burst = 100*time.Millisecond, 2*cfg.Limits.Controllers
	f.life, f.endLife = context.WithCancel(context.Background())
	if err := f.wires.Open(cfg.Portals, func(c rdma.DeviceConfig) (*nvmerdma.Device, error) { return nvmerdma.Open(nvmerdma.Config{RDMA: c}) }); err != nil {
		return nil, fmt.Errorf("nvmf: %w", err)
	}
	f.discovery = newDiscovery(f)
	// The counter of an earlier life must not come again.
	f.generation.Store(uint64(time.Now().Unix()) << 16)
	return f, nil
}

func serialOf(nqn string) string {
	sum := sha256.Sum256([]byte("softiser subsystem\x00" + nqn))
	return hex.EncodeToString(sum[:10])
}

// AddSubsystem serves a subsystem.
func (f *Frontend) AddSubsystem(cfg SubsystemConfig) error {
	if cfg.NQN == f.discovery.cfg.NQN {
		return fmt.Errorf("nvmf: subsystem: %s is the name of this discovery service", cfg.NQN)
	}
	s, err := newSubsystem(f, cfg)
	if err != nil {
		return err
	}
	if err := f.add(s); err != nil {
		_ = s.drop(context.Background())
		return err
	}
	s.start()
	f.discoveryChanged()
	return nil
}

// add lets hosts find a subsystem. A name is served or leaving, not both: who removes what was added
// under it would be told that nothing holds its volumes, which are those of the one that is leaving.
func (f *Frontend) add(s *subsystem) error {
	same := func(o *subsystem) bool { return o.cfg.NQN == s.cfg.NQN }
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.drained:
		return errShutdown
	case slices.ContainsFunc(f.subsystems, same):
		return fmt.Errorf("nvmf: subsystem %s is there already", s.cfg.NQN)
	case slices.ContainsFunc(f.leaving, same):
		return fmt.Errorf("nvmf: subsystem %s: %w: one of that name has been removed, but commands still hold its volumes; remove it again to wait for them", s.cfg.NQN, portal.ErrVolumesHeld)
	}
	f.subsystems = append(slices.Clone(f.subsystems), s)
	return nil
}

// RemoveSubsystem takes a subsystem away: its controllers end, and its volumes are flushed.
// If ctx ends while commands still hold a volume the error is portal.ErrVolumesHeld; the
// subsystem is gone for hosts, and RemoveSubsystem may be called again to wait for the rest.
func (f *Frontend) RemoveSubsystem(ctx context.Context, nqn string) error {
	s := f.take(nqn)
	if s == nil {
		return noSubsystem(nqn)
	}
	err := s.drop(ctx)
	if !errors.Is(err, portal.ErrVolumesHeld) {
		f.mu.Lock()
		f.leaving = slices.DeleteFunc(f.leaving, func(o *subsystem) bool { return o == s })
		f.mu.Unlock()
	}
	return err
}

func noSubsystem(nqn string) error { return fmt.Errorf("nvmf: there is no subsystem %s", nqn) }

// take takes a subsystem out of those that are served; one that is leaving already is
// found as well.
func (f *Frontend) take(nqn string) *subsystem {
	same := func(s *subsystem) bool { return s.cfg.NQN == nqn }
	f.mu.Lock()
	i := slices.IndexFunc(f.subsystems, same)
	if i < 0 {
		defer f.mu.Unlock()
		if i = slices.IndexFunc(f.leaving, same); i < 0 {
			return nil
		}
		return f.leaving[i]
	}
	s := f.subsystems[i]
	f.subsystems = slices.Delete(slices.Clone(f.subsystems), i, i+1)
	f.leaving = append(f.leaving, s)
	f.mu.Unlock()
	f.discoveryChanged()
	return s
}

// find returns the subsystem of a name, the discovery service included under both of its
// names; nil: there is none.
func (f *Frontend) find(nqn string) *subsystem {
	if nqn == nvme.DiscoveryNQN || nqn == f.discovery.cfg.NQN {
		return f.discovery
	}
	for _, s := range f.list() {
		if s.cfg.NQN == nqn {
			return s
		}
	}
	return nil
}

func (f *Frontend) list() []*subsystem {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.subsystems
}

// discoveryChanged tells hosts that listen that the discovery log is another one.
func (f *Frontend) discoveryChanged() {
	f.generation.Add(1)
	f.discovery.tell(eventDiscovery)
}

var (
	errShutdown = errors.New("nvmf: the target is shutting down")
	errRemoved  = errors.New("the subsystem has been removed")
	errConnect  = errors.New("the host did not connect in time")
	errEvicted  = errors.New("too many connections wait for Connect; the oldest makes room")
	errUnread   = errors.New("the host does not read what is sent to it")
	errOwed     = errors.New("the host does not send the data that it was asked for")
)

// Accept implements portal.Frontend.
func (f *Frontend) Accept(c *portal.Conn) error {
	memory := f.shares.join(c.Remote.Addr())
	t, id, err := f.transport(c, memory)
	if err != nil {
		memory.leave()
		return err
	}
	q := &queue{fe: f, conn: c, t: t, identity: id, log: c.Log, memory: memory}
	f.mu.Lock()
	if f.drained {
		f.mu.Unlock()
		t.Terminate(errShutdown)
		memory.leave()
		return errShutdown
	}
	f.queues[q] = struct{}{}
	f.mu.Unlock()
	c.OnEvict(func() { t.Terminate(errEvicted) })
	q.begin()
	return nil
}

// transport makes the transport of a connection, and says whose TLS key it has, if it has
// one. The connection belongs to it when there is no error.
func (f *Frontend) transport(c *portal.Conn, memory *holding) (t nvme.QueueTransport, id *identity, err error) {
	p := c.Portal.Config()
	if c.Transport != portal.RDMA && c.Transport != portal.RoCE {
		var nc net.Conn = c.Net
		if c.Transport == portal.TLS {
			if nc, id, err = f.secure(c); err != nil {
				return nil, nil, err
			}
		}
		t, err = nvmetcp.NewController(nc, f.tcpConfig(c.Portal, memory, f.wires.Tally(c.Transport)))
		return t, id, err
	}
	cfg := nvmerdma.AcceptConfig{RDMA: p.RDMA(), Queues: f.cfg.Limits.Queues, Entries: f.cfg.Limits.Entries}
	if !c.Deadline.IsZero() {
		cfg.RDMA.Timeout = max(time.Until(c.Deadline), time.Millisecond)
	}
	if c.Transport == portal.RoCE {
		t, err = f.wires.RoCE.Answer(f.life, c.Request, cfg)
	} else {
		t, err = f.wires.RDMA.Accept(f.life, c.Net, cfg)
	}
	return t, nil, err
}

// tcpConfig is that of a connection of NVMe/TCP.
func (f *Frontend) tcpConfig(p *portal.Portal, memory *holding, tally *sockio.Tally) nvmetcp.Config {
	c := p.Config()
	return nvmetcp.Config{
		Socket: sockio.Options{SendBuffer: c.SendBuffer, RecvBuffer: c.RecvBuffer, BusyPoll: c.BusyPoll, Tally: tally}, InCapsule: ioCapsule, Memory: memory,
	}
}

// left forgets a connection that has ended.
func (f *Frontend) left(q *queue) {
	q.memory.leave()
	f.mu.Lock()
	defer f.mu.Unlock()
	t := f.past[q.conn.Transport]
	t.add(&q.counters)
	f.past[q.conn.Transport] = t
	delete(f.queues, q)
	f.doneLocked()
}

func (f *Frontend) doneLocked() {
	if !f.drained || len(f.queues) > 0 {
		return
	}
	select {
	case <-f.empty:
	default:
		close(f.empty)
	}
}

func (f *Frontend) open() []*queue {
	f.mu.Lock()
	defer f.mu.Unlock()
	l := make([]*queue, 0, len(f.queues))
	for q := range f.queues {
		l = append(l, q)
	}
	return l
}

// Drain implements portal.Frontend. NVMe has no way to ask a host to leave: each queue
// answers the commands that it has and is closed. If the address that the host has connected
// to has moved to another node (portal.Here), the queue is closed at once, as no answer would
// arrive.
func (f *Frontend) Drain(ctx context.Context) error {
	f.mu.Lock()
	f.drained = true
	f.doneLocked()
	f.mu.Unlock()
	f.endLife()
	for _, q := range f.open() {
		if portal.Here(q.conn.Local.Addr()) {
			q.finish()
		} else {
			q.t.Terminate(errShutdown)
		}
	}
	select {
	case <-f.empty:
		return nil
	case <-ctx.Done():
	}
	for _, q := range f.open() { // commands of theirs may still be with storage
		q.t.Terminate(errShutdown)
	}
	return ctx.Err()
}

// Close implements portal.Frontend.
func (f *Frontend) Close(ctx context.Context) error {
	f.mu.Lock()
	l := slices.Concat(f.subsystems, f.leaving)
	f.mu.Unlock()
	errs := make([]error, len(l))
	var wg sync.WaitGroup
	for i, s := range l {
		wg.Go(func() { errs[i] = s.drop(ctx) })
	}
	wg.Wait()
	err := errors.Join(errs...)
	if errors.Is(err, portal.ErrVolumesHeld) {
		return err
	}
	<-f.empty
	f.closing.Do(func() { f.closeErr = f.wires.Close() })
	return errors.Join(err, f.closeErr)
}
