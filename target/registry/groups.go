package registry

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"softiser/blockdev"
	"softiser/blockdev/lazy"
	"softiser/config"
	"softiser/target"
	"softiser/target/internal/ownership"
	"softiser/target/scsi"
	"softiser/target/volume"
)

// Groups of volumes that move between the nodes of a cluster. Their LUNs and namespaces are
// there on every node; on one of them they are active:
//
//	           Promote              owner, devices open, state read
//	Standby ------------> Promoting -------------------------------> Active
//	   ^  ^                   | anything fails                          |
//	   |  +-------------------+                                         | Demote, or the group is lost
//	   |                                                                v
//	   +----------------------------------------------------------- Demoting
//	   |         nothing is under way, flushed, closed, given up        | something does not end
//	   |                                                                v
//	   +------------------------------------------------------------- Stuck
//	                        Demote again, with success
//
// What initiators see: standby, transitioning in between, the states of the configuration
// when the group is active, unavailable when it is stuck.

// GroupState is the state of a group on this node.
type GroupState uint8

// States of groups.
const (
	GroupStandby GroupState = iota
	GroupPromoting
	GroupActive
	GroupDemoting
	GroupStuck
)

var groupStates = [...]string{
	GroupStandby: "standby", GroupPromoting: "promoting", GroupActive: "active", GroupDemoting: "demoting", GroupStuck: "stuck",
}

// String returns the name of the state, as status and iser-target group print it.
func (s GroupState) String() string {
	if int(s) < len(groupStates) {
		return groupStates[s]
	}
	return fmt.Sprintf("GroupState(%d)", uint8(s))
}

const (
	// ownerCheck is how often an active group asks whether it still is this node's.
	ownerCheck = time.Second
	// defaultGrace is HAGroup.Grace when it is not set.
	defaultGrace = 2 * time.Second
	// lostPatience is how long a group that is lost, or is not promoted after all, has to
	// end what goes on.
	lostPatience = 30 * time.Second
)

// haGroup is a group of volumes.
type haGroup struct {
	reg   *Registry
	cfg   config.HAGroup
	store *ownership.Store
	turn  chan struct{} // full while somebody changes the state

	mu     sync.Mutex // guards what follows
	state  GroupState
	owner  ownership.Record // of this node's ownership, while active
	reason string           // why the last change has failed; "": it has not
	watch  context.CancelFunc
	over   chan struct{} // closed when the watch has ended
}

// addGroups makes the groups of the configuration, all of them on standby.
func (r *Registry) addGroups() {
	r.groups = map[string]*haGroup{}
	for _, c := range r.cfg.HA.Groups {
		r.groups[c.Name] = &haGroup{
			reg: r, cfg: c, store: ownership.New(r.cfg.HA.Store, c.Name, r.cfg.HA.Node), turn: make(chan struct{}, 1),
		}
	}
}

// groupOf returns the group that a volume moves with; nil: it stays.
func (r *Registry) groupOf(volume string) *haGroup {
	if g := r.begun.HA.GroupOf(volume); g != nil {
		return r.groups[g.Name]
	}
	return nil
}

// openVolume opens a volume, or makes the device that stands for one that moves.
func (r *Registry) openVolume(v config.Volume) (blockdev.Device, error) {
	if r.groupOf(v.Name) == nil {
		return r.openReal(v)
	}
	wwid, err := hex.DecodeString(strings.TrimPrefix(strings.ToLower(v.WWID), "naa."))
	if err != nil {
		return nil, fmt.Errorf("volume %s: wwid: %w", v.Name, err)
	}
	return lazy.New(blockdev.Info{
		Size: int64(v.Size), BlockSize: int(v.BlockSize), PhysBlockSize: int(v.PhysBlockSize), ReadOnly: v.ReadOnly,
		WriteCache: !v.WriteThrough && !v.ReadOnly, Rotational: v.Rotational, Backend: string(v.Type),
		ID: volume.StableID(wwid), // not the path, which may differ between nodes
	})
}

// Promote makes this node the one that has a group, which is named by itself or by a target
// or subsystem with volumes of it. It is done when initiators can read and write; when it
// fails, the group is on standby as before.
func (r *Registry) Promote(ctx context.Context, name string) error {
	return r.eachGroup(name, func(g *haGroup) error { return g.promote(ctx) })
}

// Demote gives a group up: commands that have begun end, nothing new begins, the devices
// are flushed and closed. If that does not end before ctx does, the group is stuck: nothing
// more of it takes effect, but the devices are still open, and what holds them only the end
// of the process ends for certain.
func (r *Registry) Demote(ctx context.Context, name string) error {
	return r.eachGroup(name, func(g *haGroup) error { return g.demote(ctx) })
}

// eachGroup calls f for the groups that a name stands for.
func (r *Registry) eachGroup(name string, f func(*haGroup) error) error {
	if g := r.groups[name]; g != nil {
		return f(g)
	}
	seen := map[*haGroup]bool{}
	var errs []error
	for _, o := range r.volumes.all() {
		g := r.groupOf(r.volumes.description(o).Name)
		if g == nil || seen[g] {
			continue
		}
		for _, p := range r.volumes.placesOf(o) {
			if p.node == name && !seen[g] {
				seen[g] = true
				errs = append(errs, f(g))
			}
		}
	}
	if len(seen) == 0 {
		return fmt.Errorf("there is no group %q in ha.groups, and no target or subsystem of that name with volumes of one", name)
	}
	return errors.Join(errs...)
}

// GroupAt returns the name of the group that the volume of a LUN or a namespace moves with,
// "" if it stays.
func (r *Registry) GroupAt(node string, id uint32) string {
	if o := r.volumes.at(place{node, id}); o != nil {
		if g := r.groupOf(r.volumes.description(o).Name); g != nil {
			return g.cfg.Name
		}
	}
	return ""
}

// begin waits until nobody else changes the state of the group.
func (g *haGroup) begin(ctx context.Context) (end func(), err error) {
	select {
	case g.turn <- struct{}{}:
		return func() { <-g.turn }, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("group %s is %v: %w", g.cfg.Name, g.now(), ctx.Err())
	}
}

func (g *haGroup) now() GroupState {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.state
}

// to is the one setter of the state; err says why the last change has failed.
func (g *haGroup) to(s GroupState, err error) {
	g.mu.Lock()
	g.state, g.reason = s, text(err)
	g.mu.Unlock()
	if err != nil {
		g.reg.log.Error("HA group", zap.String("group", g.cfg.Name), zap.Stringer("state", s), zap.Error(err))
	} else {
		g.reg.log.Info("HA group", zap.String("group", g.cfg.Name), zap.Stringer("state", s))
	}
	g.show()
}

// moving is one volume of a group, while it is served.
type moving struct {
	name string
	open *openVolume
	dev  *lazy.Device
	vol  *volume.Volume
}

// members returns the volumes of the group that are served.
func (g *haGroup) members() (all []moving) {
	for _, name := range g.cfg.Volumes {
		o := g.reg.volumes.find(name)
		if o == nil {
			continue
		}
		if dev, ok := o.dev.(*lazy.Device); ok {
			if v := g.reg.srv.Volume(dev); v != nil {
				all = append(all, moving{name, o, dev, v})
			}
		}
	}
	return all
}

func (g *haGroup) promote(ctx context.Context) error {
	end, err := g.begin(ctx)
	if err != nil {
		return err
	}
	defer end()
	switch g.now() {
	case GroupActive:
		return g.store.Check()
	case GroupStuck:
		return fmt.Errorf("group %s: what it was asked to give up has not all been given up; demote it again, or end this process", g.cfg.Name)
	}
	g.endWatch() // of an ownership that was lost
	g.to(GroupPromoting, nil)
	owner, err := g.store.Claim(ctx)
	if err == nil {
		if err = g.activate(g.members()); err != nil {
			err = errors.Join(err, g.retreat(ctx))
		}
	}
	if err != nil {
		err = fmt.Errorf("group %s is not promoted: %w", g.cfg.Name, err)
		g.to(g.ended(), err)
		return err
	}
	g.mu.Lock()
	g.owner = owner
	g.mu.Unlock()
	g.to(GroupActive, nil)
	g.startWatch()
	return nil
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
	dev, err := g.reg.openReal(g.reg.volumes.description(m.open))
	if err != nil {
		return err
	}
	if err := m.dev.Attach(dev); err != nil {
		return errors.Join(err, dev.Close())
	}
	return m.vol.Activate()
}

func (g *haGroup) demote(ctx context.Context) error {
	end, err := g.begin(ctx)
	if err != nil {
		return err
	}
	defer end()
	if g.now() == GroupStandby {
		return nil
	}
	g.endWatch()
	return g.giveUp(ctx, true)
}

// giveUp makes the group another node's to have. The caller has the turn.
func (g *haGroup) giveUp(ctx context.Context, flush bool) error {
	g.to(GroupDemoting, nil)
	err := g.release(ctx, flush)
	if err != nil {
		err = fmt.Errorf("giving up group %s: %w", g.cfg.Name, err)
	}
	g.to(g.ended(), err)
	return err
}

// release ends what goes on with the volumes, closes them, and ends the ownership. An error
// with which the ownership has not ended says that something still holds a device.
func (g *haGroup) release(ctx context.Context, flush bool) error {
	l := g.members()
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
	if flush {
		err = dev.Flush()
	}
	m.vol.Deactivate(flush && err == nil)
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
		err = g.activate(g.members())
	}
	g.show()
	return err
}

// show gives every LUN and namespace of the group the access state that goes with the
// group's.
func (g *haGroup) show() {
	r := g.reg
	cfg := r.config()
	for _, m := range g.members() {
		state := g.now()
		if state == GroupActive && !m.dev.Attached() { // it was added, and could not be opened
			state = GroupStuck
		}
		for _, p := range r.volumes.placesOf(m.open) {
			if strings.HasPrefix(p.node, "nqn.") {
				continue // it follows the volume, below
			}
			for _, q := range offered(cfg, findTarget(cfg, p.node)) {
				if err := r.srv.SetAccessState(p.node, uint16(p.id), uint16(q), state.access(lunAccess(cfg, p, q))); err != nil {
					r.log.Warn("access state", zap.String("group", g.cfg.Name), zap.Error(err))
				}
			}
		}
		for _, q := range cfg.Portals {
			s := state.access(scsi.ActiveOptimized).Path()
			if state == GroupActive {
				s = activePath(cfg, r.volumes.placesOf(m.open), q.Group)
			}
			m.vol.SetPath(uint16(q.Group), s)
		}
	}
}

// offered returns the portal groups through which a target is reached; nil stands for one
// that the configuration does not have, which all portals lead to.
func offered(c *config.Config, t *config.Target) (groups []int) {
	for _, p := range c.Portals {
		through := t == nil || len(t.Portals) == 0 || slices.Contains(t.Portals, p.Listen)
		if through && !slices.Contains(groups, p.Group) {
			groups = append(groups, p.Group)
		}
	}
	return groups
}

// access is what initiators see of a group in the state; active is what the configuration
// says of the LUN.
func (s GroupState) access(active scsi.AccessState) scsi.AccessState {
	switch s {
	case GroupActive:
		return active
	case GroupPromoting, GroupDemoting:
		return scsi.Transitioning
	case GroupStuck:
		return scsi.Unavailable
	}
	return scsi.Standby
}

// lunAccess is the state that the configuration gives a LUN through a portal group.
func lunAccess(c *config.Config, p place, group int) scsi.AccessState {
	l := findLUN(findTarget(c, p.node), int(p.id))
	if l == nil {
		return scsi.ActiveOptimized
	}
	name := l.ALUA
	for _, g := range l.ALUAGroups {
		if g.Group == group {
			name = g.State
		}
	}
	var state scsi.AccessState
	if name == "" || state.UnmarshalText([]byte(name)) != nil { // it has been checked
		return scsi.ActiveOptimized
	}
	return state
}

// activePath is the state of an active volume through a portal group for hosts of NVMe:
// what one of its namespaces says, or else one of its LUNs.
func activePath(c *config.Config, places []place, group int) volume.PathState {
	state := volume.PathOptimized
	for _, p := range places {
		if n := findNamespace(findSubsystem(c, p.node), int(p.id)); n != nil && n.NamesAccess() {
			var s volume.PathState
			if s.UnmarshalText([]byte(n.Access(group))) == nil {
				return s
			}
		}
		if s := lunAccess(c, p, group).Path(); s != volume.PathOptimized {
			state = s
		}
	}
	return state
}

// startWatch begins to look whether the group still is this node's.
func (g *haGroup) startWatch() {
	ctx, cancel := context.WithCancel(context.Background())
	over := make(chan struct{})
	g.mu.Lock()
	g.watch, g.over = cancel, over
	g.mu.Unlock()
	go func() {
		defer close(over)
		t := time.NewTicker(ownerCheck)
		defer t.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-t.C:
			}
			if err := g.store.Check(); errors.Is(err, ownership.ErrLost) {
				g.lost(ctx, err)
				return
			}
		}
	}()
}

// endWatch ends that, and waits for it.
func (g *haGroup) endWatch() {
	g.mu.Lock()
	cancel, over := g.watch, g.over
	g.watch = nil
	g.mu.Unlock()
	if cancel != nil {
		cancel()
		<-over
	}
}

// lost gives a group up that another node has taken over: this one was taken for dead. It is
// not flushed, which would write what is old over what is new.
func (g *haGroup) lost(ctx context.Context, why error) {
	select {
	case g.turn <- struct{}{}:
	case <-ctx.Done():
		return // somebody else gives it up
	}
	defer func() { <-g.turn }()
	ctx, cancel := context.WithTimeout(ctx, lostPatience)
	defer cancel()
	g.reg.log.Error("HA group is lost", zap.String("group", g.cfg.Name), zap.Error(why))
	_ = g.giveUp(ctx, false) // it is in the log
}

// close ends the ownership at the end of the process, when the devices have been closed.
func (g *haGroup) close() error {
	g.endWatch()
	return g.store.Yield()
}

// startGroups promotes the groups that are this node's from the start on.
func (r *Registry) startGroups(ctx context.Context) {
	for _, g := range r.groups {
		if g.cfg.Start == "active" {
			_ = g.promote(ctx) // it is in the log and in the status
		} else {
			g.show()
		}
	}
}

// groupStatus describes the groups, by name.
func (r *Registry) groupStatus() (all []target.GroupStatus) {
	for _, c := range r.begun.HA.Groups {
		g := r.groups[c.Name]
		g.mu.Lock()
		st := target.GroupStatus{Name: c.Name, State: g.state.String(), Fencing: c.Fencing, Volumes: c.Volumes, Error: g.reason}
		if g.state == GroupActive {
			st.Ownerships = g.owner.Generation
		}
		g.mu.Unlock()
		all = append(all, st)
	}
	return all
}
