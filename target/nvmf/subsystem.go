package nvmf

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"softiser/internal/nvme"
)

// subsystem is a set of namespaces that hosts connect to.
type subsystem struct {
	fe    *Frontend
	cfg   SubsystemConfig
	admin *[256]adminCommand // by opcode
	kind  uint8              // controller type

	anaChanges atomic.Uint64 // of states and of groups

	mu          sync.Mutex
	namespaces  atomic.Pointer[[]*namespace] // changed with mu held, ascending; replaced, never changed in place
	leaving     []*namespace                 // guarded by mu: taken away, but commands may still hold their volumes; replaced likewise
	controllers map[uint16]*controller       // guarded by mu
	lastCntlID  uint16                       // guarded by mu
	gone        bool                         // guarded by mu
	hosts       []HostRule                   // guarded by mu; replaced, never changed in place
	channel     SecureChannel                // guarded by mu
	remote      []Remote                     // guarded by mu; replaced, never changed in place
}

// newSubsystem opens the namespaces.
func newSubsystem(f *Frontend, cfg SubsystemConfig) (*subsystem, error) {
	if err := cfg.fill(); err != nil {
		return nil, err
	}
	s := &subsystem{
		fe: f, cfg: cfg, admin: &ioAdmin, kind: nvme.TypeIO,
		controllers: map[uint16]*controller{}, lastCntlID: cfg.MinCntlID - 1, hosts: cfg.Hosts, channel: cfg.SecureChannel, remote: cfg.Remote,
	}
	for i := range cfg.Namespaces {
		n, err := newNamespace(s, &cfg.Namespaces[i])
		if err == nil && s.namespace(n.id) != nil {
			_, err = n.end(context.Background())
			err = errors.Join(errors.New("the identifier is taken"), err)
		}
		if err != nil {
			return nil, errors.Join(fmt.Errorf("nvmf: subsystem %s, namespace %d: %w", cfg.NQN, cfg.Namespaces[i].NSID, err), s.drop(context.Background()))
		}
		l := append(slices.Clone(s.list()), n)
		slices.SortFunc(l, func(a, b *namespace) int { return int(a.id) - int(b.id) })
		s.namespaces.Store(&l)
	}
	return s, nil
}

// start lets what earlier lives of the volumes have left undone go on.
func (s *subsystem) start() {
	for _, n := range s.list() {
		n.place.Start()
	}
}

// list returns the namespaces as they are now. Every command asks: there is no lock that
// all queues of all hosts would share.
func (s *subsystem) list() []*namespace {
	if l := s.namespaces.Load(); l != nil {
		return *l
	}
	return nil
}

// namespace returns one by its identifier; nil: there is none.
func (s *subsystem) namespace(id uint32) *namespace {
	for _, n := range s.list() {
		if n.id == id {
			return n
		}
	}
	return nil
}

// enter gives a controller its identifier. Identifiers count up, so that what is late
// for an association that has ended does not reach the next one.
func (s *subsystem) enter(c *controller) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone {
		return errRemoved
	}
	n := int(s.cfg.MaxCntlID-s.cfg.MinCntlID) + 1
	if len(s.controllers) >= n {
		return errBusy
	}
	for {
		if s.lastCntlID >= s.cfg.MaxCntlID || s.lastCntlID < s.cfg.MinCntlID {
			s.lastCntlID = s.cfg.MinCntlID
		} else {
			s.lastCntlID++
		}
		if s.controllers[s.lastCntlID] == nil {
			break
		}
	}
	c.id = s.lastCntlID
	s.controllers[c.id] = c
	return nil
}

var errBusy = errors.New("nvmf: no controller is free")

func (s *subsystem) leave(c *controller) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.controllers[c.id] == c {
		delete(s.controllers, c.id)
	}
}

func (s *subsystem) controller(id uint16) *controller {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.controllers[id]
}

func (s *subsystem) all() []*controller {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := make([]*controller, 0, len(s.controllers))
	for _, c := range s.controllers {
		l = append(l, c)
	}
	return l
}

// tell reports an event to every controller.
func (s *subsystem) tell(e event) {
	for _, c := range s.all() {
		c.events.report(e)
	}
}

// drop ends the controllers and gives the volumes back; no volume waits for another. If
// ctx ends first the error is portal.ErrVolumesHeld, and drop may be called again.
func (s *subsystem) drop(ctx context.Context) error {
	s.mu.Lock()
	s.gone = true
	l := slices.Concat(s.list(), s.leaving)
	s.mu.Unlock()
	for _, c := range s.all() {
		c.end(errRemoved)
	}
	errs := make([]error, len(l))
	var wg sync.WaitGroup
	for i, n := range l {
		wg.Go(func() { _, errs[i] = n.end(ctx) })
	}
	wg.Wait()
	return errors.Join(errs...)
}
