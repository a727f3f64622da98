package registry

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.uber.org/zap"

	"softiser/blockdev"
	"softiser/config"
	"softiser/lvm"
	"softiser/target"
	"softiser/target/internal/statedir"
	"softiser/target/snapshots"
	"softiser/target/volume"
)

// Config is what a registry works with.
type Config struct {
	Server *target.Server
	Log    *zap.Logger // default: none
	// Program is the version of the program, which the folder of the state gets to know.
	Program string
	Pool    *blockdev.Pool // of the volumes; default blockdev.DefaultPool
	// Load reads the configuration again; nil: there is no file, and Reload says so.
	Load func() (*config.Config, error)
	// SetLevel changes what is logged; nil: a reload leaves that alone.
	SetLevel func(string) error
	// Open opens the backing store of a volume; default: the one that its description names.
	Open func(config.Volume) (blockdev.Device, error)
}

// Registry serves what a configuration says on a server. The volumes are opened and
// closed here; the server only uses them. Its methods are safe for concurrent use.
type Registry struct {
	*common
	stores   *stores
	groups   *groups
	mapping  *mapping
	program  string
	load     func() (*config.Config, error)
	setLevel func(string) error

	snapshots *snapshots.Scheduler

	claim    *statedir.Claim // of the folder of the state; nil: none is to be had
	prepared bool            // the folder is this process's, as far as it can be
	held     []*lvm.Group    // by HandOver
	started  chan struct{}   // closed when OpenVolumes has nothing left to do

	reloading chan struct{} // full during a reload
	reloads   *reloads
}

// New adds the targets and subsystems of a configuration to a server. No volume is touched yet: a start
// that fails because a port is taken leaves nothing behind (see OpenVolumes).
func New(cfg *config.Config, c Config) (*Registry, error) {
	if err := checkStateDir(cfg); err != nil {
		return nil, err
	}
	b := &common{srv: c.Server, log: cmp.Or(c.Log, zap.NewNop())}
	b.inForce.Store(cfg)
	st := newStores(b.log, cmp.Or(c.Pool, blockdev.DefaultPool()))
	if c.Open == nil {
		c.Open = st.open
	}
	if c.SetLevel == nil {
		c.SetLevel = func(string) error { return nil }
	}
	g := newGroups(b, cfg.HA, c.Open)
	b.volumes = newVolumes(b.log, g.openVolume)
	r := &Registry{common: b, stores: st, groups: g, mapping: newMapping(b, g), program: c.Program, load: c.Load, setLevel: c.SetLevel, started: make(chan struct{}), reloading: make(chan struct{}, 1), reloads: newReloads()}
	r.snapshots = snapshots.New(snapshotStore{&st.lvs, func() []config.Volume { return r.config().Volumes }}, r.log)
	r.snapshots.Set(snapshotPlans(cfg))
	for _, w := range cfg.Warnings() {
		r.log.Warn(w)
	}
	for _, t := range cfg.Targets {
		tt, err := targetConfig(cfg, &t)
		if err != nil {
			return nil, err
		}
		if err := r.srv.AddTarget(tt); err != nil {
			return nil, err
		}
	}
	for i := range cfg.Subsystems {
		if err := r.srv.AddSubsystem(subsystemConfig(&cfg.Subsystems[i])); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// Groups are the volume groups that volumes lie in.
func (r *Registry) Groups() *lvm.Manager { return &r.stores.lvs }

// Busy says what storage is doing for whoever opens, resizes or closes volumes, "" if nothing.
func (r *Registry) Busy() string { return r.volumes.asked.list() }

// OpenVolumes opens, and where the configuration says so creates, the volumes and
// makes them LUNs and namespaces. One that cannot be opened is logged, shown by status and left
// out; everything else is served. One whose storage does not answer is left out until it does. Groups with
// start: active, save those of names leave, are promoted; those that have to wait are on standby meanwhile, and
// become active when they can, until ctx ends: see Started. It is called once.
func (r *Registry) OpenVolumes(ctx context.Context, leave ...string) error {
	if err := r.prepare(); err != nil {
		return err
	}
	additions, served := r.mapping.additions(r.config(), func(config.Volume) bool { return true })
	failed, opened := r.mapping.addAll(ctx, additions)
	r.groups.start(ctx, leave)
	go func() {
		<-opened
		<-r.groups.started
		close(r.started)
	}()
	if len(additions) > 0 && served == 0 && failed == len(additions) && ctx.Err() == nil {
		return errors.New("none of the volumes can be opened, so there is nothing to serve; see the errors above")
	}
	return nil
}

// Started is closed when OpenVolumes has nothing left to do: no volume is being opened, and no group with
// start: active waits any more; it is active, has failed, or was demoted.
func (r *Registry) Started() <-chan struct{} { return r.started }

// prepare makes the folder of the state, which another process may not use, and chooses where caches are remembered.
func (r *Registry) prepare() error {
	if r.prepared { // by OpenHanded
		return nil
	}
	dir := r.config().Admin.StateDir
	if dir != "" && r.claim == nil {
		var err error
		if r.claim, err = statedir.Take(dir); err != nil {
			return fmt.Errorf("admin.state_dir: %w", err)
		}
	}
	if dir != "" {
		had, err := statedir.Open(dir, r.program)
		if err != nil {
			return fmt.Errorf("admin.state_dir: %w", err)
		}
		if had != statedir.Current() {
			r.log.Info("the state folder is of an earlier version, and has been brought to this one", zap.String("dir", dir), zap.Int("from", had), zap.Int("to", statedir.Current()))
		}
	}
	r.stores.epochs = epochDir(dir, r.log)
	r.prepared = true
	return nil
}

// checkStateDir finds a folder of the state that this program cannot use; nothing is changed there.
func checkStateDir(cfg *config.Config) error {
	if dir := cfg.Admin.StateDir; dir != "" {
		if err := statedir.Check(dir); err != nil {
			return fmt.Errorf("admin.state_dir: %w", err)
		}
	}
	return nil
}

// ProbeStateDir says what a start would find of the folder of the state, and touches nothing: start
// is why it would fail, save why nothing could be kept there afterwards.
func ProbeStateDir(cfg *config.Config) (start, save error) {
	dir := cfg.Admin.StateDir
	if dir == "" {
		return nil, nil
	}
	start, save = statedir.Probe(dir)
	if start != nil {
		start = fmt.Errorf("admin.state_dir: %w", start)
	}
	if save != nil {
		save = fmt.Errorf("admin.state_dir: %w", save)
	}
	return start, save
}

// StateDirInUse says which process uses the folder of the state, so that a start would fail; nil: none. Nothing is touched.
func StateDirInUse(cfg *config.Config) error {
	dir := cfg.Admin.StateDir
	if dir == "" {
		return nil
	}
	if err := statedir.InUse(dir); err != nil {
		return fmt.Errorf("admin.state_dir: %w", err)
	}
	return nil
}

// AddLUN makes a volume a LUN of a target, as long as the target runs.
func (r *Registry) AddLUN(ctx context.Context, iqn string, lun uint16, v config.Volume) error {
	iqn = nodeName(iqn)
	l := config.LUN{LUN: int(lun), Volume: v.Name}
	c, err := r.mapping.claim(place{iqn, uint32(lun)}, l)
	if err != nil {
		return err
	}
	return r.mapping.addLUN(ctx, c, r.config(), iqn, l, v)
}

// Volume returns the description of a volume that is served or configured already.
func (r *Registry) Volume(name string) (config.Volume, error) {
	if o := r.volumes.find(name); o != nil {
		return r.volumes.description(o), nil
	}
	if v, ok := findVolume(r.config(), name); ok {
		return v, nil
	}
	return config.Volume{}, fmt.Errorf("there is no volume %q; NAME=VOLUME makes one, for example %s=./%s.img,size=1GiB", name, name, name)
}

// Volumes are those of the configuration in force.
func (r *Registry) Volumes() []config.Volume { return slices.Clone(r.config().Volumes) }

// RemoveLUN takes a LUN away, and closes its volume if it was the last place. If ctx ends
// first, commands still hold the volume, and RemoveLUN may be called again.
func (r *Registry) RemoveLUN(ctx context.Context, iqn string, lun uint16) error {
	return r.mapping.removeLUN(ctx, nodeName(iqn), lun)
}

// AddNamespace makes a volume a namespace of a subsystem, as long as the target runs.
func (r *Registry) AddNamespace(ctx context.Context, nqn string, nsid uint32, v config.Volume) error {
	n := config.Namespace{NSID: int(nsid), Volume: v.Name}
	c, err := r.mapping.claim(place{nqn, nsid}, n)
	if err != nil {
		return err
	}
	return r.mapping.addNamespace(ctx, c, r.config(), nqn, n, v)
}

// RemoveNamespace takes a namespace away, and closes its volume if it was the last place.
// If ctx ends first, commands still hold the volume, and RemoveNamespace may be called again.
func (r *Registry) RemoveNamespace(ctx context.Context, nqn string, nsid uint32) error {
	return r.mapping.removeNamespace(ctx, nqn, nsid)
}

// Promote makes this node the one that has a group, which is named by itself or by a target
// or subsystem with volumes of it. It is done when initiators can read and write; when it
// fails, the group is on standby as before.
func (r *Registry) Promote(ctx context.Context, name string) error {
	return r.groups.each(name, func(g *haGroup) error { return g.promote(ctx) })
}

// Demote gives a group up: commands that have begun end, nothing new begins, the devices
// are flushed and closed. If that does not end before ctx does, the group is stuck: nothing
// more of it takes effect, but the devices are still open, and what holds them only the end
// of the process ends for certain.
func (r *Registry) Demote(ctx context.Context, name string) error {
	return r.groups.each(name, func(g *haGroup) error { return g.demote(ctx) })
}

// ActiveGroups are the names of the groups that are this node's.
func (r *Registry) ActiveGroups() []string { return r.groups.active() }

// StandbyGroups are the names of those that are not, and do not wait to be.
func (r *Registry) StandbyGroups() []string { return r.groups.standby() }

// GroupAt returns the name of the group that the volume of a LUN or a namespace moves with,
// "" if it stays.
func (r *Registry) GroupAt(node string, id uint32) string {
	if g := r.groups.at(place{nodeName(node), id}); g != nil {
		return g.cfg.Name
	}
	return ""
}

// ResizeLUN changes the size of the volume that a LUN is, bytes, wherever it is served.
// Every initiator is told.
func (r *Registry) ResizeLUN(ctx context.Context, iqn string, lun uint16, size int64) error {
	o := r.volumes.at(place{nodeName(iqn), uint32(lun)})
	if o == nil {
		return cmp.Or(r.Unserved(iqn, uint32(lun)), fmt.Errorf("target %s has no LUN %d", iqn, lun))
	}
	return r.volumes.resize(ctx, o, size)
}

// Unserved says why a LUN or a namespace of the configuration cannot be asked for anything, because it is not served; nil: it is, or the
// configuration has none there.
func (r *Registry) Unserved(node string, id uint32) error {
	p := place{nodeName(node), id}
	if r.volumes.at(p) != nil || !r.mapping.missing(p) {
		return nil
	}
	return fmt.Errorf("%s is not served: %s", p, r.mapping.reason(p))
}

// ResizeVolume changes the size of a volume, bytes, wherever it is served.
func (r *Registry) ResizeVolume(ctx context.Context, name string, size int64) error {
	o := r.volumes.find(name)
	if o == nil {
		return fmt.Errorf("no volume named %q is served", name)
	}
	return r.volumes.resize(ctx, o, size)
}

// Trace begins to follow the commands of a volume, which is named by itself or by the LUN or
// namespace that it is of a target or subsystem.
func (r *Registry) Trace(name, node string, unit uint32, slower time.Duration) (*volume.Trace, error) {
	o := r.volumes.find(name)
	switch {
	case name == "":
		if o = r.volumes.at(place{nodeName(node), unit}); o == nil {
			return nil, cmp.Or(r.Unserved(node, unit), fmt.Errorf("%s has no LUN or namespace %d", node, unit))
		}
	case o == nil:
		return nil, fmt.Errorf("no volume named %q is served", name)
	}
	v := r.srv.Volume(o.dev)
	if v == nil {
		return nil, fmt.Errorf("volume %s is not served", o.cfg.Name)
	}
	return v.Trace(slower)
}

// Close ends the server, if it has not been shut down, and closes the volumes, unless
// commands are still in them: those end with the process.
func (r *Registry) Close() {
	r.groups.stop()
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if err := r.srv.Shutdown(ctx); errors.Is(err, target.ErrVolumesHeld) {
		return // it is in the log
	}
	r.volumes.close(func(name string, err error) {
		r.log.Error("closing a volume failed", zap.String("volume", name), zap.Error(err))
	})
	r.groups.close()
	const groups = "the volume groups"
	defer r.volumes.turns.Begin(groups)()
	defer r.volumes.asked.during("closing " + groups)()
	if err := r.stores.lvs.Close(); err != nil {
		r.log.Error("closing the volume groups failed", zap.Error(err))
	}
	r.claim.Release()
}
