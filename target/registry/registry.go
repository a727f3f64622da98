package registry

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"softiser/blockdev"
	"softiser/blockdev/open"
	"softiser/config"
	"softiser/lvm"
	"softiser/target"
	"softiser/target/scsi"
)

// Config is what a registry works with.
type Config struct {
	Server *target.Server
	Log    *zap.Logger    // default: none
	Pool   *blockdev.Pool // of the volumes; default blockdev.DefaultPool
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
	srv  *target.Server
	log  *zap.Logger
	pool *blockdev.Pool
	lvs  lvm.Manager // volume groups, opened with the first volume that needs one
	// epochs is where volumes remember their caches; see epochDir. Set before the first
	// volume is opened.
	epochs   string
	load     func() (*config.Config, error)
	setLevel func(string) error
	volumes  volumes
	openReal func(config.Volume) (blockdev.Device, error) // opens the store of a volume
	groups   map[string]*haGroup                          // of volumes that move between nodes, by name
	begun    *config.Config                               // what the process was started with

	reloading sync.Mutex // held by a reload

	mu  sync.Mutex
	cfg *config.Config // guarded by mu: a reload replaces it
	// leaving are targets and subsystems, and leavingPlaces LUNs and namespaces, whose
	// removal has begun and was not over in time: initiators do not see them any more, but
	// commands still hold their volumes. Guarded by mu.
	leaving       map[string]bool
	leavingPlaces map[place]bool
	// reasons are why LUNs and namespaces of the configuration are not served. Guarded by mu.
	reasons map[place]string
}

// New adds the targets and subsystems of a configuration to a server. No volume is touched yet: a start
// that fails because a port is taken leaves nothing behind (see OpenVolumes).
func New(cfg *config.Config, c Config) (*Registry, error) {
	r := &Registry{
		srv: c.Server, log: cmp.Or(c.Log, zap.NewNop()), pool: c.Pool, load: c.Load, setLevel: c.SetLevel,
		cfg: cfg, begun: cfg, leaving: map[string]bool{}, leavingPlaces: map[place]bool{}, reasons: map[place]string{},
	}
	if r.pool == nil {
		r.pool = blockdev.DefaultPool()
	}
	r.volumes = volumes{store: r.openVolume, byName: map[string]*openVolume{}, turns: map[string]*turn{}}
	if r.openReal = c.Open; r.openReal == nil {
		r.openReal = r.openStore
	}
	r.addGroups()
	r.lvs.Config = lvm.Config{Pool: r.pool, Notice: func(text string) { r.log.Warn(text) }, Open: func(path string) (blockdev.Device, error) {
		return open.Open(open.Spec{Path: path, Pool: r.pool, EpochDir: r.epochs})
	}}
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
	if err := r.addSubsystems(); err != nil {
		return nil, err
	}
	return r, nil
}

// Groups are the volume groups that volumes lie in.
func (r *Registry) Groups() *lvm.Manager { return &r.lvs }

// Busy says what storage is doing for whoever opens, resizes or closes volumes, "" if nothing.
func (r *Registry) Busy() string { return strings.Join(r.volumes.busy(), ", ") }

// OpenVolumes opens, and where the configuration says so creates, the volumes and
// makes them LUNs and namespaces. One that cannot be opened is logged, shown by status and left
// out; everything else is served.
func (r *Registry) OpenVolumes() error {
	if dir := r.cfg.Admin.StateDir; dir != "" {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return fmt.Errorf("admin.state_dir: %w", err)
		}
	}
	r.epochs = epochDir(r.cfg.Admin.StateDir, r.log)
	configured, served := 0, 0
	for _, t := range r.cfg.Targets {
		for _, l := range t.LUNs {
			configured++
			v, _ := findVolume(r.cfg, l.Volume)
			if err := r.mapVolume(context.Background(), t.IQN, l, v); err == nil {
				served++
			} else {
				r.log.Error("a LUN is not served; the others are", zap.String("target", t.IQN), zap.Int("lun", l.LUN),
					zap.String("volume", l.Volume), zap.Error(err))
			}
		}
	}
	spaces, servedSpaces := r.serveNamespaces()
	r.startGroups(context.Background())
	if configured+spaces > 0 && served+servedSpaces == 0 {
		return errors.New("none of the volumes can be opened, so there is nothing to serve; see the errors above")
	}
	return nil
}

// mapVolume makes a volume, opened if it is not open yet, a LUN of a target. Status
// shows the error of one that stands in the configuration.
func (r *Registry) mapVolume(ctx context.Context, iqn string, l config.LUN, v config.Volume) error {
	lc, err := lunConfig(r.config(), v, l)
	if g := r.groupOf(v.Name); g != nil {
		lc.Store, lc.Access = g.store, map[uint16]scsi.AccessState{0: scsi.Standby}
	}
	return r.mapAt(ctx, place{iqn, uint32(l.LUN)}, v, err, func(dev blockdev.Device) error {
		lc.Volume = dev
		return r.srv.AddLUN(iqn, target.LUN{Name: v.Name, LUConfig: lc})
	})
}

// mapAt has add serve a volume at p, unless err says that p cannot be described, and
// remembers why it has failed.
func (r *Registry) mapAt(ctx context.Context, p place, v config.Volume, err error, add func(blockdev.Device) error) error {
	if err == nil {
		err = r.volumes.serve(ctx, v, p, add)
	}
	if g := r.groupOf(v.Name); g != nil && err == nil {
		err = g.joined(ctx)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil {
		r.reasons[p] = err.Error()
	} else {
		delete(r.reasons, p)
	}
	return err
}

// config is the configuration in force. It is not changed, but replaced.
func (r *Registry) config() *config.Config {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.cfg
}

// AddLUN makes a volume a LUN of a target, as long as the target runs.
func (r *Registry) AddLUN(ctx context.Context, iqn string, lun uint16, v config.Volume) error {
	return r.mapVolume(ctx, iqn, config.LUN{LUN: int(lun), Volume: v.Name}, v)
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

// RemoveLUN takes a LUN away, and closes its volume if it was the last place. If ctx ends
// first, commands still hold the volume, and RemoveLUN may be called again.
func (r *Registry) RemoveLUN(ctx context.Context, iqn string, lun uint16) error {
	return r.remove(ctx, place{iqn, uint32(lun)}, func(ctx context.Context) error { return r.srv.RemoveLUN(ctx, iqn, lun) })
}

// remove takes a place away and forgets it.
func (r *Registry) remove(ctx context.Context, p place, remove func(context.Context) error) error {
	if r.isLeaving(p.node) {
		return fmt.Errorf("%s is being removed with all that it serves, but commands still hold the volumes; reload tries again", p.node)
	}
	err := remove(ctx)
	r.mu.Lock()
	if unfinished(err) {
		r.leavingPlaces[p] = true
		r.mu.Unlock()
		return err
	}
	delete(r.leavingPlaces, p)
	r.mu.Unlock()
	// Whatever else went wrong, a flush above all, it is there no more.
	return errors.Join(err, r.volumes.release(ctx, func(q place) bool { return q == p }))
}

// unmapNode forgets the places of a target or a subsystem that has been removed.
func (r *Registry) unmapNode(ctx context.Context, name string) error {
	r.mu.Lock()
	delete(r.leaving, name)
	for p := range r.leavingPlaces {
		if p.node == name {
			delete(r.leavingPlaces, p)
		}
	}
	r.mu.Unlock()
	return r.volumes.release(ctx, func(p place) bool { return p.node == name })
}

// unfinished reports whether a removal has begun, but commands still hold volumes:
// it can be asked for again.
func unfinished(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
}

// Close ends the server, if it has not been shut down, and closes the volumes, unless
// commands are still in them: those end with the process.
func (r *Registry) Close() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if err := r.srv.Shutdown(ctx); errors.Is(err, target.ErrVolumesHeld) {
		return // it is in the log
	}
	r.volumes.close(func(name string, err error) {
		r.log.Error("closing a volume failed", zap.String("volume", name), zap.Error(err))
	})
	for _, g := range r.groups {
		if err := g.close(); err != nil {
			r.log.Error("ending the ownership of an HA group failed", zap.String("group", g.cfg.Name), zap.Error(err))
		}
	}
	const groups = "the volume groups"
	end, err := r.volumes.begin(context.Background(), groups)
	if err != nil {
		return
	}
	defer end()
	defer r.volumes.during(groups, "closing "+groups)()
	if err := r.lvs.Close(); err != nil {
		r.log.Error("closing the volume groups failed", zap.Error(err))
	}
}
