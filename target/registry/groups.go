package registry

import (
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
	"softiser/target/volume"
)

// groups are those that the configuration had when the process was started.
type groups struct {
	*common
	open   func(config.Volume) (blockdev.Device, error) // opens the store of a volume
	ha     config.HA
	byName map[string]*haGroup

	mu       sync.Mutex      // guards what follows
	started  <-chan struct{} // closed when no group waits; nil before start
	giveOver func()          // ends the waits
}

// newGroups makes the groups of a configuration, all of them on standby.
func newGroups(b *common, ha config.HA, open func(config.Volume) (blockdev.Device, error)) *groups {
	s := &groups{common: b, open: open, ha: ha, byName: map[string]*haGroup{}}
	for _, c := range ha.Groups {
		s.byName[c.Name] = &haGroup{
			common: b, open: open, cfg: c, store: ownership.New(ha.Store, c.Name, ha.Node), turn: make(chan struct{}, 1),
		}
	}
	return s
}

// of returns the group that a volume moves with; nil: it stays.
func (s *groups) of(volume string) *haGroup {
	if g := s.ha.GroupOf(volume); g != nil {
		return s.byName[g.Name]
	}
	return nil
}

// openVolume opens a volume, or makes the device that stands for one that moves.
func (s *groups) openVolume(v config.Volume) (blockdev.Device, error) {
	if s.of(v.Name) == nil {
		return s.open(v)
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

// each calls f for the groups that a name stands for, at once: none waits for the storage of another.
func (s *groups) each(name string, f func(*haGroup) error) error {
	if g := s.byName[name]; g != nil {
		return f(g)
	}
	seen := map[*haGroup]bool{}
	var all []*haGroup
	for _, o := range s.volumes.all() {
		g := s.of(s.volumes.description(o).Name)
		if g == nil || seen[g] {
			continue
		}
		for _, p := range s.volumes.placesOf(o) {
			if p.node == nodeName(name) && !seen[g] {
				seen[g] = true
				all = append(all, g)
			}
		}
	}
	if len(all) == 0 {
		return fmt.Errorf("there is no group %q in ha.groups, and no target or subsystem of that name with volumes of one", name)
	}
	errs := make([]error, len(all))
	var wg sync.WaitGroup
	for i, g := range all {
		wg.Go(func() { errs[i] = f(g) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// at returns the group that the volume at p moves with; nil: it stays, or there is none.
func (s *groups) at(p place) *haGroup {
	if o := s.volumes.at(p); o != nil {
		return s.of(s.volumes.description(o).Name)
	}
	return nil
}

// startPatience is how long OpenVolumes waits for groups that need not wait for another node: with
// storage that answers initiators find them active.
const startPatience = 250 * time.Millisecond

// start promotes the groups that are this node's from the start on, save those of names leave. Those that
// have to wait, for another node or for storage, go on until ctx ends; started is closed when none does.
func (s *groups) start(ctx context.Context, leave []string) {
	ctx, giveOver := context.WithCancel(ctx)
	started := make(chan struct{})
	s.mu.Lock()
	s.started, s.giveOver = started, giveOver
	s.mu.Unlock()
	var all, begun sync.WaitGroup
	for _, g := range s.byName {
		if g.cfg.Start != "active" || slices.Contains(leave, g.cfg.Name) {
			show(s.common, g.cfg, g.now())
			continue
		}
		begun.Add(1)
		ctx, over := g.starts(ctx)
		all.Go(func() {
			defer over()
			g.start(ctx, sync.OnceFunc(begun.Done))
		})
	}
	go func() {
		defer giveOver()
		all.Wait()
		close(started)
	}()
	soon := make(chan struct{})
	go func() {
		begun.Wait()
		close(soon)
	}()
	select {
	case <-soon:
	case <-time.After(startPatience):
	}
}

// stop ends what start goes on with. Storage that does not answer is not waited for.
func (s *groups) stop() {
	s.mu.Lock()
	started, giveOver := s.started, s.giveOver
	s.mu.Unlock()
	if started == nil {
		return
	}
	giveOver()
	select {
	case <-started:
	case <-time.After(stallPatience):
	}
}

// showPatience is how long show waits for the turn of a group.
const showPatience = time.Second

// show gives the members of all groups the access states that the configuration in force says.
// Whoever changes the state of a group for longer than showPatience shows that in the end.
func (s *groups) show(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), showPatience)
	defer cancel()
	for _, g := range s.byName {
		if end, err := g.begin(ctx); err == nil {
			show(s.common, g.cfg, g.now())
			end()
		}
	}
}

// active are the names of the groups that are this node's.
func (s *groups) active() (names []string) {
	for _, c := range s.ha.Groups {
		if s.byName[c.Name].now() == GroupActive {
			names = append(names, c.Name)
		}
	}
	return names
}

// standby are the names of the groups that are not this node's, and do not wait to become so.
func (s *groups) standby() (names []string) {
	for _, c := range s.ha.Groups {
		if g := s.byName[c.Name]; g.now() != GroupActive && !g.waits() {
			names = append(names, c.Name)
		}
	}
	return names
}

// status describes the groups, in the order of the configuration.
func (s *groups) status() (all []target.GroupStatus) {
	for _, c := range s.ha.Groups {
		all = append(all, s.byName[c.Name].status())
	}
	return all
}

// close ends the ownerships at the end of the process, when the devices have been closed.
func (s *groups) close() {
	for _, g := range s.byName {
		if err := g.close(); err != nil {
			s.log.Error("ending the ownership of an HA group failed", zap.String("group", g.cfg.Name), zap.Error(err))
		}
	}
}
