package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"softiser/blockdev"
	"softiser/blockdev/open"
	"softiser/config"
	"softiser/lvm"
	"softiser/target"
	"softiser/target/scsi"
)

// app is a configuration brought to life: a server and the volumes that it
// serves. The volumes are opened and closed here; the server only uses them.
type app struct {
	log  *zap.Logger
	srv  *target.Server
	pool *blockdev.Pool
	lvs  lvm.Manager // volume groups, opened with the first volume that needs one
	// epochs is where volumes remember their caches; see epochDir. Set before
	// the first volume is opened.
	epochs string

	level zap.AtomicLevel                // of log
	load  func() (*config.Config, error) // reads the configuration again; nil: there is no file

	services sync.WaitGroup // admin socket and metrics

	reloading sync.Mutex // held by a reload; taken before changing
	// changing is held by whoever opens or closes volumes, for as long as storage takes:
	// status does not wait for that. Taken before mu.
	changing sync.Mutex
	busy     atomic.Pointer[string] // what storage is doing for who holds changing

	mu      sync.Mutex
	cfg     *config.Config         // guarded by mu: a reload replaces it
	volumes map[string]*openVolume // guarded by mu, by name; changed under changing as well
	// leaving are targets, and leavingLUNs LUNs, whose removal has begun and was not
	// over in time: initiators do not see them any more, but commands still hold
	// their volumes. Guarded by mu.
	leaving     map[string]bool
	leavingLUNs map[mapping]bool
	// reasons are why LUNs of the configuration are not served. Guarded by mu.
	reasons map[mapping]string
	// wanted are the volumes that a reload is going to serve: one that changes its
	// LUN stays open meanwhile, and if it is in memory keeps its content. Guarded by mu.
	wanted map[string]config.Volume
}

// openVolume is a volume and the LUNs that it is mapped to.
type openVolume struct {
	cfg  config.Volume
	dev  blockdev.Device
	luns []mapping
	// namespaces are those of NVMe subsystems that it is; they stay until the end.
	namespaces int
}

type mapping struct {
	iqn string
	lun uint16
}

// newApp makes the server with its targets. No volume is touched yet: a start that
// fails because a port is taken leaves nothing behind (see openVolumes).
func newApp(cfg *config.Config, drain, storage time.Duration, log *zap.Logger) (_ *app, err error) {
	tc, err := serverConfig(cfg)
	if err != nil {
		return nil, exit(exitUsage, err)
	}
	tc.Timeouts.Drain, tc.Timeouts.Storage = drain, storage
	tc.Log = log
	a := &app{cfg: cfg, log: log, volumes: map[string]*openVolume{},
		leaving: map[string]bool{}, leavingLUNs: map[mapping]bool{}, reasons: map[mapping]string{}}
	if a.pool, err = blockdev.NewPool(int64(cfg.Limits.StagingMemory)); err != nil {
		return nil, exit(exitUsage, fmt.Errorf("limits.staging_memory: %w", err))
	}
	tc.Staging = a.pool
	a.lvs.Config = lvm.Config{Pool: a.pool, Notice: func(text string) { log.Warn(text) }, Open: func(path string) (blockdev.Device, error) {
		return open.Open(open.Spec{Path: path, Pool: a.pool, EpochDir: a.epochs})
	}}
	if a.srv, err = target.New(tc); err != nil {
		return nil, exit(exitUsage, err)
	}
	defer func() {
		if err != nil {
			a.close()
		}
	}()
	for _, w := range cfg.Warnings() {
		log.Warn(w)
	}
	for _, t := range cfg.Targets {
		tt, err := targetConfig(cfg, &t)
		if err != nil {
			return nil, exit(exitUsage, err)
		}
		if err := a.srv.AddTarget(tt); err != nil {
			return nil, exit(exitUsage, err)
		}
	}
	return a, nil
}

// openVolumes opens, and where the configuration says so creates, the volumes and
// makes them LUNs. One that cannot be opened is logged, shown by status and left
// out; everything else is served.
func (a *app) openVolumes() error {
	if dir := a.cfg.Admin.StateDir; dir != "" {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return fmt.Errorf("admin.state_dir: %w", err)
		}
	}
	a.epochs = epochDir(a.cfg.Admin.StateDir, a.log)
	configured, served := 0, 0
	for _, t := range a.cfg.Targets {
		for _, l := range t.LUNs {
			configured++
			v, _ := findVolume(a.cfg, l.Volume)
			if err := a.mapVolume(t.IQN, l, v); err == nil {
				served++
			} else {
				a.log.Error("a LUN is not served; the others are", zap.String("target", t.IQN), zap.Int("lun", l.LUN),
					zap.String("volume", l.Volume), zap.Error(err))
			}
		}
	}
	spaces, servedSpaces, err := a.serveSubsystems()
	if err != nil {
		return err
	}
	if configured+spaces > 0 && served+servedSpaces == 0 {
		return errors.New("none of the volumes can be opened, so there is nothing to serve; see the errors above")
	}
	return nil
}

// mapVolume makes a volume, opened if it is not open yet, a LUN of a target. Status
// shows the error of one that stands in the configuration.
func (a *app) mapVolume(iqn string, l config.LUN, v config.Volume) error {
	a.changing.Lock()
	defer a.changing.Unlock()
	err := a.mapChanging(iqn, l, v)
	a.mu.Lock()
	defer a.mu.Unlock()
	if m := (mapping{iqn, uint16(l.LUN)}); err != nil {
		a.reasons[m] = err.Error()
	} else {
		delete(a.reasons, m)
	}
	return err
}

// mapChanging is mapVolume for a caller who holds a.changing.
func (a *app) mapChanging(iqn string, l config.LUN, v config.Volume) error {
	o, lc, err := a.opened(v, l)
	if err != nil {
		return err
	}
	lc.Volume = o.dev
	if err := a.srv.AddLUN(iqn, target.LUN{Name: v.Name, LUConfig: lc}); err != nil {
		return errors.Join(err, a.drop(o))
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	o.luns = append(o.luns, mapping{iqn, lc.LUN})
	return nil
}

// opened returns a volume, which it opens if it is not open yet, and how it is served as
// l. The caller holds a.changing.
func (a *app) opened(v config.Volume, l config.LUN) (*openVolume, scsi.LUConfig, error) {
	a.mu.Lock()
	lc, err := lunConfig(a.cfg, v, l)
	o := a.volumes[v.Name]
	if err == nil && o != nil && !reflect.DeepEqual(o.cfg, v) {
		err = errOpen(v, differing(o.cfg, v))
	}
	a.mu.Unlock()
	if err != nil || o != nil {
		return o, lc, err
	}
	defer a.during("opening volume " + v.Name)()
	dev, err := a.openVolume(v)
	if err != nil {
		return nil, lc, err
	}
	o = &openVolume{cfg: v, dev: dev}
	a.mu.Lock()
	a.volumes[v.Name] = o
	a.mu.Unlock()
	return o, lc, nil
}

// during notes what is being done with storage, for the case that a shutdown finds it
// undone. The caller holds a.changing.
func (a *app) during(what string) (over func()) {
	a.busy.Store(&what)
	return func() { a.busy.Store(nil) }
}

// errOpen refuses a volume whose name an open one has that differs in keys.
func errOpen(v config.Volume, keys []string) error {
	return fmt.Errorf("volume %s is open already, with another %s; take another name for a volume of its own", v.Name, strings.Join(keys, ", "))
}

// unmapVolume forgets a LUN that has been removed, and closes its volume when it
// was the last.
func (a *app) unmapVolume(iqn string, lun uint16) error {
	return a.unmap(func(m mapping) bool { return m == mapping{iqn, lun} })
}

// unmap forgets LUNs that have been removed, and closes volumes that no other is made of.
func (a *app) unmap(removed func(mapping) bool) error {
	a.changing.Lock()
	defer a.changing.Unlock()
	var freed []*openVolume
	a.mu.Lock()
	maps.DeleteFunc(a.leavingLUNs, func(m mapping, _ bool) bool { return removed(m) })
	for _, o := range a.volumes {
		n := len(o.luns)
		if o.luns = slices.DeleteFunc(o.luns, removed); len(o.luns) < n {
			freed = append(freed, o)
		}
	}
	a.mu.Unlock()
	var errs []error
	for _, o := range freed {
		errs = append(errs, a.drop(o))
	}
	return errors.Join(errs...)
}

// drop closes a volume that no LUN uses. The caller holds a.changing.
func (a *app) drop(o *openVolume) error {
	a.mu.Lock()
	v, wanted := a.wanted[o.cfg.Name]
	used := len(o.luns)+o.namespaces > 0 || wanted && reflect.DeepEqual(v, o.cfg)
	if !used {
		delete(a.volumes, o.cfg.Name)
	}
	a.mu.Unlock()
	if used {
		return nil
	}
	defer a.during("closing volume " + o.cfg.Name)()
	return o.dev.Close()
}

// close ends the server, if it has not been shut down, and closes the volumes, unless
// commands are still in them: those end with the process.
func (a *app) close() {
	if a.srv != nil {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if err := a.srv.Shutdown(ctx); errors.Is(err, target.ErrVolumesHeld) {
			return // it is in the log
		}
	}
	a.changing.Lock()
	defer a.changing.Unlock()
	a.mu.Lock()
	volumes := a.volumes
	a.volumes = map[string]*openVolume{}
	a.mu.Unlock()
	for name, o := range volumes {
		over := a.during("closing volume " + name)
		if err := o.dev.Close(); err != nil {
			a.log.Error("closing a volume failed", zap.String("volume", name), zap.Error(err))
		}
		over()
	}
	defer a.during("closing the volume groups")()
	if err := a.lvs.Close(); err != nil {
		a.log.Error("closing the volume groups failed", zap.Error(err))
	}
}
