package registry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"syscall"

	"go.uber.org/zap"

	"softiser/blockdev"
	"softiser/config"
	"softiser/lvm"
	"softiser/target/internal/statedir"
	"softiser/target/volume"
)

// The volumes of a process that another one replaces. Files, block devices and memory go over
// as they are open, logical volumes with the disks of their group, all of whose volumes go
// together. What is neither (groups of volumes that move between nodes, volumes with faults) is
// opened anew once the old process has ended, as after a crash.

// Handed is a volume on its way from one process to the next.
type Handed struct {
	Name string `json:"name"`
	// Settings are those of the configuration, by key, with which it is open.
	Settings map[string]json.RawMessage `json:"settings"`
	Places   []HandedPlace              `json:"places"`
	// Store is that of a volume that has one; of one in a group of logical volumes it has the
	// identity alone, and no descriptor.
	Store blockdev.Opened `json:"store"`
	Group string          `json:"group,omitempty"` // of logical volumes
	State volume.Carried  `json:"state"`
}

// HandedOver is what goes to another process, with descriptors that are the caller's.
type HandedOver struct {
	Volumes []Handed
	Groups  []lvm.Handed // of logical volumes
	Left    []string     // names of volumes that do not go
	// StateDir is the claim to the folder of the state; -1: there is none.
	StateDir int
}

// discard closes the descriptors.
func (all *HandedOver) discard() {
	for i := range all.Volumes {
		if h := &all.Volumes[i]; h.Group == "" {
			h.Store.Discard()
		}
	}
	for i := range all.Groups {
		all.Groups[i].Discard()
	}
	if all.StateDir >= 0 {
		_ = syscall.Close(all.StateDir)
	}
	*all = HandedOver{StateDir: -1}
}

// HandedPlace is where it is served.
type HandedPlace struct {
	Node string `json:"node"` // IQN, or NQN
	ID   uint32 `json:"id"`   // LUN, or NSID
}

// errRewritten: a format would be ended by the end of this process, as by a crash.
var errRewritten = errors.New("it is opened anew by the next process, and a format or a sanitize runs; wait for its end")

// rewritten is that error if o is being rewritten.
func (r *Registry) rewritten(o *openVolume) error {
	if x := r.srv.Volume(o.dev); x != nil && x.Gates()&(volume.Sanitizing|volume.Formatting) != 0 {
		return fmt.Errorf("volume %s: %w", r.volumes.description(o).Name, errRewritten)
	}
	return nil
}

// CheckRewrites finds beforehand, while everybody goes on, a rewrite because of which HandOver would have
// an error. Those of logical volumes, which may go over or not, that finds alone.
func (r *Registry) CheckRewrites() error {
	for _, o := range r.volumes.all() {
		_, single := o.dev.(blockdev.HandsOver)
		_, logical := o.dev.(*lvm.Volume)
		if single || logical {
			continue
		}
		if err := r.rewritten(o); err != nil {
			return err
		}
	}
	return nil
}

// HandOver returns what can go to another process. Groups of logical volumes are held then,
// until GoOn. If ctx ends first there is an error. Preconditions: the volumes are frozen.
func (r *Registry) HandOver(ctx context.Context) (all HandedOver, err error) {
	defer func() {
		if err != nil {
			all.discard()
			r.GoOn()
		}
	}()
	if all.StateDir, err = r.claim.Dup(); err != nil {
		return all, fmt.Errorf("admin.state_dir: %w", err)
	}
	open := r.volumes.all()
	held, err := r.holdGroups(ctx, open)
	if err != nil {
		return all, err
	}
	for _, o := range open {
		v := r.volumes.description(o)
		single, ok := o.dev.(blockdev.HandsOver)
		lv, _ := o.dev.(*lvm.Volume)
		if !ok && (lv == nil || !slices.Contains(held, lv.Group())) {
			if err := r.rewritten(o); err != nil {
				return all, err
			}
			all.Left = append(all.Left, v.Name)
			continue
		}
		h := Handed{Name: v.Name, Settings: settingsOf(v)}
		for _, p := range r.volumes.placesOf(o) {
			h.Places = append(h.Places, HandedPlace{p.node, p.id})
		}
		x := r.srv.Volume(o.dev)
		if x == nil {
			continue // open, and served nowhere
		}
		if h.State, err = volume.Carry(x); err != nil {
			return all, fmt.Errorf("volume %s: %w", v.Name, err)
		}
		if lv != nil {
			h.Group, h.Store = lv.Group().Name(), blockdev.Opened{FD: -1, ID: lv.Info().ID}
		} else if h.Store, err = single.HandOver(); err != nil {
			return all, fmt.Errorf("volume %s: %w", v.Name, err)
		}
		all.Volumes = append(all.Volumes, h)
	}
	for _, g := range held {
		h, err := g.HandOver()
		if err != nil {
			return all, err
		}
		all.Groups = append(all.Groups, h)
	}
	return all, nil
}

// holdGroups holds the groups of logical volumes of which these are all volumes in use, and
// returns those that are held. One that cannot write down what it knows is not, nor one of which
// somebody else has a volume open.
func (r *Registry) holdGroups(ctx context.Context, open []*openVolume) ([]*lvm.Group, error) {
	for g, lvs := range logical(open) {
		switch err := g.Hold(ctx, lvs); {
		case errors.Is(err, lvm.ErrUnsettled):
			return nil, err
		case err != nil:
			r.log.Warn("a volume group is not handed over", zap.String("group", g.Name()), zap.Error(err))
		default:
			r.held = append(r.held, g)
		}
	}
	return r.held, nil
}

// logical returns the logical volumes among those that are open, by their groups.
func logical(open []*openVolume) map[*lvm.Group][]*lvm.Volume {
	all := map[*lvm.Group][]*lvm.Volume{}
	for _, o := range open {
		if v, ok := o.dev.(*lvm.Volume); ok {
			all[v.Group()] = append(all[v.Group()], v)
		}
	}
	return all
}

// GoOn lets the groups go on that HandOver has held.
func (r *Registry) GoOn() {
	for _, g := range r.held {
		g.Release()
	}
	r.held = nil
}

// Settle has groups of logical volumes write down what is in memory alone, so that there is
// less of it when they are handed over. What fails is found then.
func (r *Registry) Settle(ctx context.Context) {
	var wg sync.WaitGroup
	for g := range logical(r.volumes.all()) {
		wg.Go(func() { _ = g.Settle() })
	}
	settled := make(chan struct{})
	go func() {
		wg.Wait()
		close(settled)
	}()
	select {
	case <-settled:
	case <-ctx.Done():
	}
}

// settingsOf returns the settings of a volume by key.
func settingsOf(v config.Volume) map[string]json.RawMessage {
	m := map[string]json.RawMessage{}
	b, err := json.Marshal(v)
	if err == nil {
		err = json.Unmarshal(b, &m)
	}
	if err != nil {
		panic(fmt.Sprintf("registry: settings of a volume have no JSON form: %v", err)) // a mistake of ours
	}
	return m
}

// notFixed are the keys that may differ: a size is what the volume has, and the others are
// about its making or change on line.
var notFixed = append([]string{"create", "preallocate"}, tunables...)

// unlike returns the keys in which the settings that a volume is open with differ from v. A
// version of the program that does not know a key has it at its zero value.
func (h *Handed) unlike(v config.Volume) (keys []string) {
	mine := settingsOf(v)
	zero := func(b json.RawMessage) bool {
		return slices.Contains([]string{"", "false", "0", `""`, "null", "{}", "[]"}, string(b))
	}
	all := maps.Clone(mine)
	maps.Copy(all, h.Settings)
	for k := range all {
		a, b := mine[k], h.Settings[k]
		if !slices.Contains(notFixed, k) && string(a) != string(b) && !(zero(a) && zero(b)) {
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	return keys
}

// CheckHanded says why the configuration of this process does not go with what another one
// hands over; nil: it does. Nothing is touched.
func (r *Registry) CheckHanded(all []Handed) error {
	var errs []error
	if dir := r.config().Admin.StateDir; dir != "" {
		if err := statedir.Writable(dir); err != nil {
			errs = append(errs, fmt.Errorf("admin.state_dir: %w", err))
		}
	}
	for i := range all {
		h := &all[i]
		if err := h.State.Check(); err != nil {
			errs = append(errs, fmt.Errorf("volume %s: %w", h.Name, err))
		}
		v, ok := findVolume(r.config(), h.Name)
		if !ok {
			errs = append(errs, fmt.Errorf("volume %s is served, and is not in the configuration of the new process: put it there, or stop serving it", h.Name))
			continue
		}
		if keys := h.unlike(v); len(keys) > 0 {
			errs = append(errs, fmt.Errorf("volume %s is open with another %s than the configuration of the new process says; such a change takes a restart", h.Name, strings.Join(keys, ", ")))
		}
		for _, p := range h.Places {
			if volumeAt(r.config(), place{p.Node, p.ID}) != h.Name {
				errs = append(errs, fmt.Errorf("volume %s is served at %d of %s, and not so in the configuration of the new process: put it there; or end it by reload, lun remove or namespace remove", h.Name, p.ID, p.Node))
			}
		}
	}
	return errors.Join(errs...)
}

// InheritStateDir takes the claim of another process to the folder of the state over, with its descriptor, which is the registry's
// from here on. It is called before OpenHanded.
func (r *Registry) InheritStateDir(fd int) { r.claim = statedir.Inherit(fd) }

// OpenHanded opens the volumes that another process has handed over, which are this one's
// now, and serves them. OpenVolumes opens the others. Preconditions: CheckHanded.
func (r *Registry) OpenHanded(all []Handed, groups []lvm.Handed) error {
	if err := r.prepare(); err != nil {
		return err
	}
	for i := range groups {
		r.stores.lvs.Expect(groups[i])
	}
	defer r.stores.lvs.Forget()
	names := map[string]bool{}
	r.stores.handed = map[string]*Handed{}
	for i := range all {
		h := &all[i]
		if err := r.srv.ExpectVolume(h.Store.ID, h.State); err != nil {
			return fmt.Errorf("volume %s: %w", h.Name, err)
		}
		names[h.Name] = true
		if h.Group == "" {
			r.stores.handed[h.Name] = h
		}
	}
	additions, _ := r.mapping.additions(r.config(), func(v config.Volume) bool { return names[v.Name] })
	for _, a := range additions {
		_ = a.do(context.Background()) // logs its error
	}
	for name, h := range r.stores.handed {
		h.Store.Discard() // nobody has opened it
		delete(r.stores.handed, name)
	}
	return nil
}

// takeHanded returns the store of a volume that was handed over, once; nil: none was.
func (s *stores) takeHanded(name string) *blockdev.Opened {
	h := s.handed[name]
	if h == nil {
		return nil
	}
	delete(s.handed, name)
	return &h.Store
}
