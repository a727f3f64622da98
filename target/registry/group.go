package registry

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"

	"softiser/blockdev"
	"softiser/config"
	"softiser/target"
	"softiser/target/internal/ownership"
)

// Groups of volumes that move between the nodes of a cluster. Their LUNs and namespaces are
// there on every node; on one of them they are active:
//
//	           Promote              owner, devices open, state read
//	Standby ------------> Promoting -------------------------------> Active
//	   ^  ^                   | anything fails; what does not end in    |
//	   |  +-------------------+ time makes it Stuck until it does       | Demote, or the group is lost
//	   |                                                                v
//	   +----------------------------------------------------------- Demoting
//	   |         nothing is under way, flushed, closed, given up        | something does not end
//	   |                                                                v
//	   +------------------------------------------------------------- Stuck
//	                        Demote again, with success, or what does not end ends after all
//
// What initiators see: standby, transitioning in between, the states of the configuration
// when the group is active, unavailable when it is stuck.

const (
	// defaultGrace is HAGroup.Grace when it is not set.
	defaultGrace = 2 * time.Second
	// lostPatience is how long a group that is lost, or is not promoted after all, has to
	// end what goes on.
	lostPatience = 30 * time.Second
	// stallPatience is how long after the end of its time a promotion or demotion is waited for that says
	// itself what keeps it.
	stallPatience = time.Second
)

// haGroup is a group of volumes.
type haGroup struct {
	*common
	open  func(config.Volume) (blockdev.Device, error) // opens the store of a volume
	cfg   config.HAGroup
	store *ownership.Store
	turn  chan struct{} // full while somebody changes the state
	watch watch         // while active
	asked asked

	changing sync.Mutex // held while the state changes and is shown; taken before mu

	mu     sync.Mutex // guards what follows
	state  GroupState
	owner  ownership.Record // of this node's ownership, while active
	reason string           // why the last change has failed, or what it waits for; "": neither
	// starting ends the wait of a group with start: active; nil: it does not wait.
	starting context.CancelFunc
}

// begin waits until nobody else changes the state of the group. One that nobody changes may be begun with
// although ctx has ended: another group may have used up its time.
func (g *haGroup) begin(ctx context.Context) (end func(), err error) {
	end = func() { <-g.turn }
	select {
	case g.turn <- struct{}{}:
		return end, nil
	default:
	}
	select {
	case g.turn <- struct{}{}:
		return end, nil
	case <-ctx.Done():
		if what := g.asked.list(); what != "" {
			return nil, fmt.Errorf("group %s is %v, and waits for %s: %w", g.cfg.Name, g.now(), what, ctx.Err())
		}
		return nil, fmt.Errorf("group %s is %v: %w", g.cfg.Name, g.now(), ctx.Err())
	}
}

// inStore and inVolume name storage of the group.
func (g *haGroup) inStore() string { return "ha.store " + g.store.Dir() }

func (g *haGroup) inVolume(m moving) string {
	return fmt.Sprintf("volume %s (%s)", m.name, g.volumes.description(m.open).Path)
}

// unanswered says which storage does not answer.
func (g *haGroup) unanswered() string {
	return cmp.Or(g.asked.list(), "storage, or ha.store,") + " does not answer"
}

func (g *haGroup) now() GroupState {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.state
}

// to changes the state; err says why the last change has failed.
func (g *haGroup) to(s GroupState, err error) {
	g.changing.Lock()
	defer g.changing.Unlock()
	g.set(s, err)
}

// tell notes what a promotion that goes on waits for.
func (g *haGroup) tell(err error) {
	g.changing.Lock()
	defer g.changing.Unlock()
	if s := g.now(); g.asked.list() != "" && (s == GroupStandby || s == GroupPromoting) {
		g.set(s, err)
	}
}

// set is the one setter of the state. Preconditions: changing is held.
func (g *haGroup) set(s GroupState, err error) {
	g.mu.Lock()
	g.state, g.reason = s, text(err)
	g.mu.Unlock()
	if err != nil {
		g.log.Error("HA group", zap.String("group", g.cfg.Name), zap.Stringer("state", s), zap.Error(err))
	} else {
		g.log.Info("HA group", zap.String("group", g.cfg.Name), zap.Stringer("state", s))
	}
	show(g.common, g.cfg, g.now())
}

// promote takes the group over: it opens its volumes and serves them, or leaves it as it was. Storage that
// does not answer by ctx leaves it stuck until it does.
func (g *haGroup) promote(ctx context.Context) error {
	end, err := g.begin(ctx)
	if err != nil {
		return err
	}
	switch g.now() {
	case GroupActive:
		end() // whoever gives the group up does not wait for the store
		return g.stillOwned(ctx)
	case GroupStuck:
		end()
		return fmt.Errorf("group %s: what it was asked to give up has not all been given up; demote it again, or end this process", g.cfg.Name)
	}
	g.watch.end() // that of an earlier ownership, if it was lost
	g.to(GroupPromoting, nil)
	return g.change(ctx, end, func() error {
		over := g.asked.during(g.inStore())
		owner, err := g.store.Claim(ctx)
		over()
		return g.settle(ctx, owner, err)
	})
}

// stillOwned asks the store whether the group is this node's, as long as ctx allows.
func (g *haGroup) stillOwned(ctx context.Context) error {
	done := make(chan error, 1)
	go func() { done <- g.store.Check() }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return fmt.Errorf("group %s: %s does not answer: %w", g.cfg.Name, g.inStore(), ctx.Err())
	}
}

// settle is the rest of a promotion whose claim has ended with err: the group is this node's, or as it was.
// One that nobody waits for any more, because storage has taken longer, does not take place.
func (g *haGroup) settle(ctx context.Context, owner ownership.Record, err error) error {
	if err == nil {
		if err = ctx.Err(); err == nil {
			err = g.activate(members(g.common, g.cfg.Volumes))
		}
		if err == nil {
			if g.activated(ctx, owner) {
				g.watch.start(g.owned, g.lost)
				return nil
			}
			err = ctx.Err()
		}
		err = errors.Join(err, g.retreat(ctx))
	}
	err = fmt.Errorf("group %s is not promoted: %w", g.cfg.Name, err)
	g.to(g.ended(), err)
	return err
}

// activated makes the group active, unless ctx has ended.
func (g *haGroup) activated(ctx context.Context, owner ownership.Record) bool {
	g.changing.Lock()
	defer g.changing.Unlock()
	if ctx.Err() != nil {
		return false
	}
	g.mu.Lock()
	g.owner = owner
	g.mu.Unlock()
	g.set(GroupActive, nil)
	return true
}

// retreat releases what a promotion that fails has got. It has its own time: that of the
// promotion may be over, which is why it fails then, and what still has to end must not
// make the group stuck because of that.
func (g *haGroup) retreat(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lostPatience)
	defer cancel()
	return g.release(ctx, false)
}

// ended is the state that a group is left in when it is not this node's any more, or still.
func (g *haGroup) ended() GroupState {
	if g.store.Held() {
		return GroupStuck
	}
	return GroupStandby
}

// activate opens volumes and lets commands reach them.
func (g *haGroup) activate(l []moving) error {
	for _, m := range l {
		if m.dev.Attached() {
			continue
		}
		if err := g.attach(m); err != nil {
			return fmt.Errorf("volume %s: %w", m.name, err)
		}
	}
	return nil
}

func (g *haGroup) attach(m moving) error {
	over := g.asked.during(g.inVolume(m))
	dev, err := g.open(g.volumes.description(m.open))
	if err == nil {
		if err = m.dev.Attach(dev); err != nil {
			err = errors.Join(err, dev.Close())
		}
	}
	over()
	if err != nil {
		return err
	}
	over = g.asked.during(g.inVolume(m) + " or " + g.inStore())
	err = m.vol.Activate()
	over()
	if err != nil {
		ctx, cancel := context.WithTimeout(context.Background(), lostPatience)
		defer cancel()
		_, left := g.detach(ctx, m, false) // a volume that nobody reaches is not open
		return errors.Join(err, left)
	}
	return nil
}

func (g *haGroup) demote(ctx context.Context) error {
	waited := g.endStart()
	end, err := g.begin(ctx)
	if err != nil {
		return err
	}
	if g.now() == GroupStandby {
		if waited {
			g.to(GroupStandby, nil)
		}
		end()
		return nil
	}
	g.watch.end()
	return g.giveUp(ctx, true, end)
}

// giveUp makes the group another node's to have, by ctx, or leaves it stuck. end ends the turn of the caller
// when nothing goes on any more.
func (g *haGroup) giveUp(ctx context.Context, flush bool, end func()) error {
	g.to(GroupDemoting, nil)
	return g.change(ctx, end, func() error {
		err := g.release(ctx, flush)
		if err != nil {
			err = fmt.Errorf("giving up group %s: %w", g.cfg.Name, err)
		}
		g.to(g.ended(), err)
		return err
	})
}

// change has do change the state, by ctx. If it has not then, because storage does not answer, the group is
// stuck until it has. end ends the turn of the caller when nothing goes on any more.
func (g *haGroup) change(ctx context.Context, end func(), do func() error) error {
	done := make(chan error, 1)
	go func() {
		defer end()
		done <- do()
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	select {
	case err := <-done: // which tells more
		return err
	case <-time.After(stallPatience):
	}
	if err := g.stall(ctx.Err()); err != nil {
		return err
	}
	return <-done
}

// stall makes a group stuck that is still being promoted or given up when the time for it is over, because
// the storage of a volume or the store does not answer: neither heeds a context. When they do, it goes on.
// nil: it is over.
func (g *haGroup) stall(why error) error {
	g.changing.Lock()
	defer g.changing.Unlock()
	var what string
	switch g.now() {
	case GroupPromoting:
		what = fmt.Sprintf("group %s is not promoted", g.cfg.Name)
	case GroupDemoting:
		what = fmt.Sprintf("giving up group %s", g.cfg.Name)
	default:
		return nil
	}
	err := fmt.Errorf("%s: %s: %w", what, g.unanswered(), why)
	g.set(GroupStuck, err)
	return err
}

// release ends what goes on with the volumes, closes them, and ends the ownership. An error
// with which the ownership has not ended says that something still holds a device.
func (g *haGroup) release(ctx context.Context, flush bool) error {
	l := members(g.common, g.cfg.Volumes)
	for _, m := range l {
		m.vol.Suspend()
	}
	errs, held := make([]error, len(l)), make([]bool, len(l))
	var wg sync.WaitGroup
	for i, m := range l {
		wg.Go(func() { held[i], errs[i] = g.detach(ctx, m, flush) })
	}
	wg.Wait()
	for i := range l {
		if errs[i] != nil {
			errs[i] = fmt.Errorf("volume %s: %w", l[i].name, errs[i])
		}
		if held[i] {
			return errors.Join(errs...)
		}
	}
	defer g.asked.during(g.inStore())()
	return errors.Join(append(errs, g.store.Yield())...)
}

// detach closes a volume that has been suspended. held says that it is still open.
func (g *haGroup) detach(ctx context.Context, m moving, flush bool) (held bool, err error) {
	if err := m.vol.Quiesce(ctx, cmp.Or(g.cfg.Grace.D(), defaultGrace)); err != nil {
		return true, err
	}
	dev, err := m.dev.Detach(ctx)
	if err != nil || dev == nil {
		return err != nil, err
	}
	over := g.asked.during(g.inVolume(m))
	if flush {
		err = dev.Flush()
	}
	over()
	over = g.asked.during(g.inStore())
	m.vol.Deactivate(flush && err == nil)
	over()
	defer g.asked.during(g.inVolume(m))()
	return false, errors.Join(err, dev.Close())
}

// joined opens a volume that has got its first place while the group is active, and gives a
// further place the states of the others.
func (g *haGroup) joined(ctx context.Context) error {
	end, err := g.begin(ctx)
	if err != nil {
		return err
	}
	defer end()
	if g.now() == GroupActive {
		err = g.activate(members(g.common, g.cfg.Volumes))
	}
	show(g.common, g.cfg, g.now())
	return err
}

// owned returns an error when the group is another node's by now. That it cannot be found
// out is none.
func (g *haGroup) owned() error {
	if err := g.store.Check(); errors.Is(err, ownership.ErrLost) {
		return err
	}
	return nil
}

// lost gives a group up that another node has taken over: this one was taken for dead. It is
// not flushed, which would write what is old over what is new.
func (g *haGroup) lost(ctx context.Context, why error) {
	select {
	case g.turn <- struct{}{}:
	case <-ctx.Done():
		return // whoever ends the process gives it up
	}
	end := func() { <-g.turn }
	if ctx.Err() != nil {
		end()
		return // it has been given up meanwhile, and may be this node's again
	}
	ctx, cancel := context.WithTimeout(ctx, lostPatience)
	defer cancel()
	for _, m := range members(g.common, g.cfg.Volumes) {
		m.dev.Abandon()
	}
	g.log.Error("HA group is lost", zap.String("group", g.cfg.Name), zap.Error(why))
	_ = g.giveUp(ctx, false, end) // logs its error
}

// close ends the ownership at the end of the process, when the devices have been closed.
func (g *haGroup) close() error {
	g.watch.end()
	return g.store.Yield()
}

// status describes the group.
func (g *haGroup) status() target.GroupStatus {
	g.mu.Lock()
	defer g.mu.Unlock()
	st := target.GroupStatus{Name: g.cfg.Name, State: g.state.String(), Fencing: g.cfg.Fencing, Volumes: g.cfg.Volumes, Error: g.reason}
	if g.state == GroupActive {
		st.Ownerships = g.owner.Generation
	}
	return st
}
