package registry

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"sync"

	"softiser/blockdev"
	"softiser/config"
	"softiser/internal/namelock"
	"softiser/target"
	"softiser/target/scsi"
	"softiser/target/volume"
)

// mapping makes volumes LUNs and namespaces, takes them away, and knows what of that has
// not come about.
type mapping struct {
	*common
	groups *groups

	turns namelock.Turns[place]

	mu sync.Mutex // guards what follows
	// leaving are targets and subsystems, and leavingPlaces LUNs and namespaces, whose
	// removal has begun and was not over in time: initiators do not see them any more, but
	// commands still hold their volumes.
	leaving       map[string]bool
	leavingPlaces map[place]bool
	reasons       map[place]string  // why LUNs and namespaces of the configuration are not served
	coming        map[place]*coming // what a configuration has asked for last, and storage has not answered yet
	// luns and namespaces are those that are served as they have been made, by a configuration or by hand.
	luns       map[place]config.LUN
	namespaces map[place]config.Namespace
}

// coming is an attempt to serve something. What is asked for later takes the place of what has not come yet.
type coming struct {
	what any           // config.LUN, config.Namespace
	hand bool          // an administrator asks, whatever the configuration has there
	over chan struct{} // closed when it has ended, with err
	err  error
}

// errOvertaken ends an attempt that another one has taken the place of.
var errOvertaken = errors.New("it has been removed since, or something else asked for in its place")

func newMapping(b *common, g *groups) *mapping {
	return &mapping{common: b, groups: g, leaving: map[string]bool{}, leavingPlaces: map[place]bool{}, reasons: map[place]string{}, coming: map[place]*coming{}, luns: map[place]config.LUN{}, namespaces: map[place]config.Namespace{}}
}

// addLUN makes a volume, opened if it is not open yet, a LUN of a target, under the limits of
// cfg. Status shows the error of one that stands in the configuration.
func (m *mapping) addLUN(ctx context.Context, c *coming, cfg *config.Config, iqn string, l config.LUN, v config.Volume) error {
	lc, err := lunConfig(cfg, v, l)
	if err == nil {
		err = m.srv.VacantLUN(iqn, uint16(l.LUN)) // first: opening a volume may make its file
	}
	if g := m.groups.of(v.Name); g != nil {
		lc.Store, lc.Access = g.store, map[uint16]scsi.AccessState{0: scsi.Standby}
	}
	return m.add(ctx, c, place{iqn, uint32(l.LUN)}, v, err, func(dev blockdev.Device) error {
		lc.Volume = dev
		err := m.srv.AddLUN(iqn, target.LUN{Name: v.Name, LUConfig: lc})
		if err == nil {
			m.madeLUN(iqn, l)
		}
		return err
	})
}

// madeLUN remembers how a LUN is served.
func (m *mapping) madeLUN(iqn string, l config.LUN) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.luns[place{iqn, uint32(l.LUN)}] = l
}

// lun returns how the LUN at p is served.
func (m *mapping) lun(p place) config.LUN {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.luns[p]
}

// madeNamespace remembers how a namespace is served.
func (m *mapping) madeNamespace(nqn string, n config.Namespace) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.namespaces[place{nqn, uint32(n.NSID)}] = n
}

// namespace returns how the namespace at p is served.
func (m *mapping) namespace(p place) config.Namespace {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.namespaces[p]
}

// begin waits until nothing is being added at p or removed from it, as long as ctx allows. Storage that is
// to be opened or closed is not waited for then.
func (m *mapping) begin(ctx context.Context, p place) (end func(), err error) {
	end, err = m.turns.BeginWithin(ctx, p)
	if err != nil {
		return nil, fmt.Errorf("%s is being added or removed: %w", p, err)
	}
	return end, nil
}

// add has do serve a volume at p, unless err says that p cannot be described, and
// remembers why it has failed.
func (m *mapping) add(ctx context.Context, c *coming, p place, v config.Volume, err error, do func(blockdev.Device) error) error {
	if err == nil {
		err = m.volumes.serve(ctx, v, func(o *openVolume) error {
			end, err := m.begin(ctx, p)
			if err != nil {
				return err
			}
			defer end()
			if m.comes(p) != c {
				return errOvertaken
			}
			m.volumes.take(o, p) // first: who removes the target meanwhile finds it
			if err := do(o.dev); err != nil {
				m.volumes.leave(o, p)
				return err
			}
			return nil
		})
	}
	if g := m.groups.of(v.Name); g != nil && err == nil {
		err = g.joined(ctx)
	}
	m.ended(c, p, err)
	return err
}

// ended takes the end of an attempt to serve something at p into account.
func (m *mapping) ended(c *coming, p place, err error) {
	shown := !c.hand || volumeAt(m.config(), p) != "" // by status
	m.mu.Lock()
	defer m.mu.Unlock()
	c.err = err
	close(c.over)
	if m.coming[p] != c {
		return // nobody wants it any more, or another one has the reason
	}
	delete(m.coming, p)
	if err != nil && shown {
		m.reasons[p] = err.Error()
	} else {
		delete(m.reasons, p)
	}
}

// ask begins an attempt to serve something at p.
func (m *mapping) ask(p place, what any) *coming {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.askLocked(p, what)
}

func (m *mapping) askLocked(p place, what any) *coming {
	c := &coming{what: what, over: make(chan struct{})}
	m.coming[p] = c
	return c
}

// claim is ask for an administrator, who is told when something is on its way there already.
func (m *mapping) claim(p place, what any) (*coming, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.coming[p] != nil {
		return nil, fmt.Errorf("%s is being added already, and storage has not answered yet; to add something else there, remove it first", p)
	}
	c := m.askLocked(p, what)
	c.hand = true
	return c, nil
}

// comes returns the attempt to serve something at p that has not ended, nil if there is none.
func (m *mapping) comes(p place) *coming {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.coming[p]
}

// bring has add serve what at p, for a reload. An attempt at the same that storage has not answered yet is
// waited for, or has just succeeded; one at something else comes to nothing.
func (m *mapping) bring(ctx context.Context, p place, what any, add func(*coming) error) error {
	for {
		end, err := m.begin(ctx, p) // who has the turn may be about to serve something
		if err != nil {
			return err
		}
		there, c := m.isThere(p, what), m.comes(p)
		same := c != nil && reflect.DeepEqual(c.what, what)
		if !there && !same {
			c = m.ask(p, what)
		}
		end()
		switch {
		case there:
			return nil
		case !same:
			return add(c)
		}
		select {
		case <-c.over:
			if !unfinished(c.err) { // else its time was over, and not that of this one
				return c.err
			}
		case <-ctx.Done():
			return fmt.Errorf("storage has not answered yet: %w", ctx.Err())
		}
	}
}

// isThere reports whether what is served at p. The caller has the turn.
func (m *mapping) isThere(p place, what any) bool {
	if name, leaving := m.served(p); name == "" || leaving || m.isLeaving(p.node) {
		return false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if l, ok := what.(config.LUN); ok {
		return reflect.DeepEqual(m.luns[p], l)
	}
	return reflect.DeepEqual(m.namespaces[p], what)
}

// dismiss has nothing come at p any more, and has remove take away what is there.
func (m *mapping) dismiss(ctx context.Context, p place, remove func(context.Context) error) error {
	end, err := m.begin(ctx, p)
	if err != nil {
		return err
	}
	m.mu.Lock()
	delete(m.coming, p)
	delete(m.reasons, p)
	m.mu.Unlock()
	there, _ := m.served(p)
	end()
	if there == "" {
		return nil
	}
	return remove(ctx)
}

// addNamespace is addLUN for a namespace.
func (m *mapping) addNamespace(ctx context.Context, c *coming, cfg *config.Config, nqn string, n config.Namespace, v config.Volume) error {
	nc, err := namespaceConfig(cfg, v, n)
	if err == nil {
		err = m.srv.VacantNamespace(nqn, uint32(n.NSID))
	}
	if g := m.groups.of(v.Name); g != nil {
		nc.Store, nc.Access = g.store, map[uint16]volume.PathState{0: volume.PathInaccessible}
	}
	return m.add(ctx, c, place{nqn, uint32(n.NSID)}, v, err, func(dev blockdev.Device) error {
		nc.Volume = dev
		err := m.srv.AddNamespace(nqn, nc)
		if err == nil {
			m.madeNamespace(nqn, n)
		}
		return err
	})
}

// remove takes a place away and forgets it, or has what storage has not answered yet not come. What could not
// be served counts as removed from then on.
func (m *mapping) remove(ctx context.Context, p place, remove func(context.Context) error) error {
	if m.isLeaving(p.node) {
		return fmt.Errorf("%s is being removed with all that it serves, but commands still hold the volumes; reload tries again", p.node)
	}
	away := func(ctx context.Context) error {
		freed, err := m.vacate(ctx, p, remove)
		return errors.Join(err, m.volumes.release(ctx, freed))
	}
	if m.comes(p) != nil || m.missing(p) {
		return m.dismiss(ctx, p, away)
	}
	return away(ctx)
}

// vacate has remove take away what is served at p, and returns the volumes that were.
func (m *mapping) vacate(ctx context.Context, p place, remove func(context.Context) error) (freed []*openVolume, err error) {
	end, err := m.begin(ctx, p)
	if err != nil {
		return nil, err
	}
	defer end()
	err = remove(ctx)
	m.mu.Lock()
	if unfinished(err) {
		m.leavingPlaces[p] = true
		m.mu.Unlock()
		return nil, err
	}
	delete(m.leavingPlaces, p)
	delete(m.reasons, p) // such as that of an attempt to add something else there
	delete(m.luns, p)
	delete(m.namespaces, p)
	m.mu.Unlock()
	// The place is gone even if something went wrong, such as a flush.
	return m.volumes.free(func(q place) bool { return q == p }), err
}

// removeLUN takes a LUN away, and closes its volume if it was the last place. If ctx ends
// first, commands still hold the volume, and removeLUN may be called again.
func (m *mapping) removeLUN(ctx context.Context, iqn string, lun uint16) error {
	return m.remove(ctx, place{iqn, uint32(lun)}, func(ctx context.Context) error { return m.srv.RemoveLUN(ctx, iqn, lun) })
}

// removeNamespace is removeLUN for a namespace.
func (m *mapping) removeNamespace(ctx context.Context, nqn string, nsid uint32) error {
	return m.remove(ctx, place{nqn, nsid}, func(ctx context.Context) error { return m.srv.RemoveNamespace(ctx, nqn, nsid) })
}

// removeNode has remove take a target or a subsystem away, with all its places.
func (m *mapping) removeNode(ctx context.Context, name string, remove func(context.Context) error) error {
	err := remove(ctx)
	if unfinished(err) {
		m.mu.Lock()
		m.leaving[name] = true
		m.mu.Unlock()
		return err
	}
	return errors.Join(err, m.forget(ctx, name))
}

// forget forgets the places of a target or a subsystem that has been removed.
func (m *mapping) forget(ctx context.Context, name string) error {
	m.mu.Lock()
	delete(m.leaving, name)
	maps.DeleteFunc(m.leavingPlaces, func(p place, _ bool) bool { return p.node == name })
	maps.DeleteFunc(m.coming, func(p place, _ *coming) bool { return p.node == name })
	maps.DeleteFunc(m.reasons, func(p place, _ string) bool { return p.node == name })
	maps.DeleteFunc(m.luns, func(p place, _ config.LUN) bool { return p.node == name })
	maps.DeleteFunc(m.namespaces, func(p place, _ config.Namespace) bool { return p.node == name })
	m.mu.Unlock()
	return m.volumes.release(ctx, m.volumes.free(func(p place) bool { return p.node == name }))
}

// unfinished reports whether a removal has begun, but commands still hold volumes:
// it can be asked for again.
func unfinished(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
}

// isLeaving reports whether the removal of a target or subsystem has begun and is not over.
func (m *mapping) isLeaving(node string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.leaving[node]
}

// served returns the name of the volume that is served at p now, or "", and whether
// that is one whose removal has begun but not ended.
func (m *mapping) served(p place) (name string, leaving bool) {
	o := m.volumes.at(p)
	if o == nil {
		return "", false
	}
	name = m.volumes.description(o).Name
	m.mu.Lock()
	defer m.mu.Unlock()
	return name, m.leavingPlaces[p]
}

// notBrought notes why a reload serves nothing at p, unless something is served there or an attempt has said why not.
func (m *mapping) notBrought(p place, why string) {
	if m.volumes.at(p) != nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.coming[p] == nil && m.reasons[p] == "" {
		m.reasons[p] = why
	}
}

// missing reports whether the configuration serves something at p that could not be.
func (m *mapping) missing(p place) bool { return volumeAt(m.config(), p) != "" && m.reason(p) != "" }

// reason says why nothing is served at a place of the configuration, "" if it has been.
func (m *mapping) reason(p place) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.coming[p] != nil {
		return "storage has not answered yet; it is served when it has"
	}
	return m.reasons[p]
}
