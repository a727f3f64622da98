package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"reflect"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"softiser/blockdev"
	"softiser/blockdev/open"
	"softiser/config"
	"softiser/lvm"
	"softiser/target"
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

	reloading sync.Mutex // held by a reload; taken before mu

	mu      sync.Mutex
	cfg     *config.Config         // guarded by mu: a reload replaces it
	volumes map[string]*openVolume // guarded by mu, by name
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
}

type mapping struct {
	iqn string
	lun uint16
}

// newApp makes the server with its targets. No volume is touched yet: a start that
// fails because a port is taken leaves nothing behind (see openVolumes).
func newApp(cfg *config.Config, drain time.Duration, log *zap.Logger) (_ *app, err error) {
	tc, err := serverConfig(cfg)
	if err != nil {
		return nil, exit(exitUsage, err)
	}
	tc.Timeouts.Drain = drain
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
	if configured > 0 && served == 0 {
		return errors.New("none of the volumes can be opened, so there is nothing to serve; see the errors above")
	}
	return nil
}

// mapVolume makes a volume, opened if it is not open yet, a LUN of a target. Status
// shows the error of one that stands in the configuration.
func (a *app) mapVolume(iqn string, l config.LUN, v config.Volume) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	err := a.mapLocked(iqn, l, v)
	if m := (mapping{iqn, uint16(l.LUN)}); err != nil {
		a.reasons[m] = err.Error()
	} else {
		delete(a.reasons, m)
	}
	return err
}

// mapLocked is mapVolume for a caller who holds a.mu.
func (a *app) mapLocked(iqn string, l config.LUN, v config.Volume) error {
	lc, err := lunConfig(a.cfg, v, l)
	if err != nil {
		return err
	}
	o := a.volumes[v.Name]
	if o == nil {
		dev, err := a.openVolume(v)
		if err != nil {
			return err
		}
		o = &openVolume{cfg: v, dev: dev}
		a.volumes[v.Name] = o
	} else if !reflect.DeepEqual(o.cfg, v) {
		return errOpen(v, differing(o.cfg, v))
	}
	lc.Volume = o.dev
	if err := a.srv.AddLUN(iqn, target.LUN{Name: v.Name, LUConfig: lc}); err != nil {
		return errors.Join(err, a.dropLocked(o))
	}
	o.luns = append(o.luns, mapping{iqn, lc.LUN})
	return nil
}

// errOpen refuses a volume whose name an open one has that differs in keys.
func errOpen(v config.Volume, keys []string) error {
	return fmt.Errorf("volume %s is open already, with another %s; take another name for a volume of its own", v.Name, strings.Join(keys, ", "))
}

// unmapVolume forgets a LUN that has been removed, and closes its volume when it
// was the last.
func (a *app) unmapVolume(iqn string, lun uint16) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.leavingLUNs, mapping{iqn, lun})
	for _, o := range a.volumes {
		for i, m := range o.luns {
			if m == (mapping{iqn, lun}) {
				o.luns = append(o.luns[:i], o.luns[i+1:]...)
				return a.dropLocked(o)
			}
		}
	}
	return nil
}

// dropLocked closes a volume that no LUN uses. The caller holds a.mu.
func (a *app) dropLocked(o *openVolume) error {
	if len(o.luns) > 0 {
		return nil
	}
	if v, ok := a.wanted[o.cfg.Name]; ok && reflect.DeepEqual(v, o.cfg) {
		return nil
	}
	delete(a.volumes, o.cfg.Name)
	return o.dev.Close()
}

// close ends the server, if it has not been shut down, and closes the volumes.
func (a *app) close() {
	if a.srv != nil {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if err := a.srv.Shutdown(ctx); err != nil {
			a.log.Error("shutdown", zap.Error(err))
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for name, o := range a.volumes {
		if err := o.dev.Close(); err != nil {
			a.log.Error("closing a volume failed", zap.String("volume", name), zap.Error(err))
		}
	}
	clear(a.volumes)
	if err := a.lvs.Close(); err != nil {
		a.log.Error("closing the volume groups failed", zap.Error(err))
	}
}
