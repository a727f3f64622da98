package registry

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"go.uber.org/zap"

	"softiser/config"
)

// A reload reads the configuration file again and makes what is served agree
// with it: targets, LUNs, subsystems and namespaces come and go, volumes grow, rates, limits, access rules
// and the log level change. What both configurations have is left alone, sessions included.
// What cannot change in a running process is named and stays as it was, and a
// file with a mistake in it changes nothing.

// Change is one difference between a configuration and what is served.
type Change struct {
	Action string // add, remove, replace, update, resize
	Object string // what it is done to
	Error  string // why it is not done
}

// step is a change with the way to make it. Steps take away what goes before any
// of them brings what comes, which may want the same volumes.
type step struct {
	Change                             // Error, when set from the start, says why it cannot be made here
	take   func(context.Context) error // away; nil: nothing goes
	do     func(context.Context) error // nil: nothing comes
	frees  []place                     // what take takes away
	node   string                      // the target or subsystem that do adds, or adds to
	serves *config.Volume              // what do makes a LUN or a namespace of
	// volume is the one whose storage do waits for, "" if none: such steps wait for each
	// other only when they are about the same volume.
	volume string
	// keep puts back into c, the configuration that is to be recorded, what has not
	// been changed, so that the next reload tries again; nil: it sees by itself.
	keep func(c *config.Config)
}

// errNoFile is the answer to a reload without --config.
var errNoFile = errors.New("this target was started without --config, so there is no file to read again; lun, resize and session change it")

// errEmpty protects everything that is served from a file that was read while it
// was being written, or emptied by mistake.
var errEmpty = errors.New("the file names no target and no subsystem; to serve nothing, stop iser-target")

// Reload applies the file, or with dry only tells what would be done. What storage has not
// done when ctx ends is reported as such, and goes on.
func (r *Registry) Reload(ctx context.Context, dry bool) ([]Change, error) {
	r.reloading.Lock()
	defer r.reloading.Unlock()
	if r.load == nil {
		return nil, errNoFile
	}
	next, err := r.load()
	if err == nil && len(next.Targets)+len(next.Subsystems) == 0 {
		err = errEmpty
	}
	if err == nil {
		err = Check(next)
	}
	if err != nil {
		return nil, fmt.Errorf("nothing is changed, because the file has mistakes:\n%w", err)
	}
	steps := r.plan(next)
	if dry {
		r.foresee(ctx, steps)
	} else {
		for _, w := range next.Warnings() {
			r.log.Warn(w)
		}
		r.run(ctx, steps, r.running(next))
	}
	changes := []Change{}
	for _, s := range steps {
		changes = append(changes, s.Change)
	}
	return changes, nil
}

// run makes the changes and records what holds afterwards: now, except for what has
// failed.
func (r *Registry) run(ctx context.Context, steps []step, now *config.Config) {
	r.volumes.want(wantedVolumes(now), now.Volumes)
	for i := range steps {
		if s := &steps[i]; s.take != nil && s.Error == "" {
			s.Error = text(s.take(ctx))
		}
	}
	for i := range steps {
		if s := &steps[i]; s.volume == "" {
			if s.do != nil && s.Error == "" {
				s.Error = text(s.do(ctx))
			}
			r.logChange(s.Change)
		}
	}
	r.runVolumes(ctx, steps)
	for i := range steps {
		if s := &steps[i]; s.Error != "" && s.keep != nil {
			s.keep(now)
		}
	}
	r.mu.Lock()
	r.cfg = now
	r.mu.Unlock()
	r.volumes.settle(ctx, func(name string, err error) {
		r.log.Error("closing a volume failed", zap.String("volume", name), zap.Error(err))
	})
}

// runVolumes makes the changes that wait for storage: in order for each volume, and
// none for another volume's.
func (r *Registry) runVolumes(ctx context.Context, steps []step) {
	var names []string
	lanes := map[string][]int{}
	for i := range steps {
		if s := &steps[i]; s.volume != "" {
			if lanes[s.volume] == nil {
				names = append(names, s.volume)
			}
			lanes[s.volume] = append(lanes[s.volume], i)
		}
	}
	var mu sync.Mutex
	over, patient := map[int]string{}, true // guarded by mu: what became of steps, and whether somebody waits for that
	var wg sync.WaitGroup
	for _, name := range names {
		indices, own := lanes[name], []step{} // a copy: the steps are the caller's once nobody waits
		for _, i := range indices {
			own = append(own, steps[i])
		}
		wg.Go(func() {
			for n, s := range own {
				if s.do != nil && s.Error == "" {
					s.Error = text(s.do(ctx))
				}
				r.logChange(s.Change)
				mu.Lock()
				if patient {
					over[indices[n]] = s.Error
				}
				mu.Unlock()
			}
		})
	}
	all := make(chan struct{})
	go func() { wg.Wait(); close(all) }()
	select {
	case <-all:
	case <-ctx.Done():
	}
	mu.Lock()
	defer mu.Unlock()
	patient = false
	for _, name := range names {
		for _, i := range lanes[name] {
			if err, ok := over[i]; ok {
				steps[i].Error = err
			} else if steps[i].Error == "" {
				steps[i].Error = "storage has not answered yet; it goes on, and the log tells what becomes of it"
			}
		}
	}
}

// text is what a change says of an error.
func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// wantedVolumes returns the volumes that LUNs and namespaces of c are made of.
func wantedVolumes(c *config.Config) map[string]config.Volume {
	m := map[string]config.Volume{}
	for _, t := range c.Targets {
		for _, l := range t.LUNs {
			if v, ok := findVolume(c, l.Volume); ok {
				m[v.Name] = v
			}
		}
	}
	for _, s := range c.Subsystems {
		for _, n := range s.Namespaces {
			if v, ok := findVolume(c, n.Volume); ok {
				m[v.Name] = v
			}
		}
	}
	return m
}

func (r *Registry) logChange(c Change) {
	f := []zap.Field{zap.String("action", c.Action), zap.String("object", c.Object)}
	if c.Error != "" {
		r.log.Warn("reload: not done", append(f, zap.String("reason", c.Error))...)
		return
	}
	r.log.Info("reload", f...)
}

// running is a copy of next with the settings that stay as they are until the next
// start.
func (r *Registry) running(next *config.Config) *config.Config {
	c := *next
	c.Targets = slices.Clone(next.Targets)
	for i := range c.Targets {
		c.Targets[i].LUNs = slices.Clone(c.Targets[i].LUNs)
	}
	c.Subsystems = slices.Clone(next.Subsystems)
	for i := range c.Subsystems {
		c.Subsystems[i].Namespaces = slices.Clone(c.Subsystems[i].Namespaces)
	}
	c.Portals, c.ISCSI, c.HA = r.cfg.Portals, r.cfg.ISCSI, r.cfg.HA
	c.Discovery.Auth, c.Discovery.NQN = r.cfg.Discovery.Auth, r.cfg.Discovery.NQN
	c.Transport, c.Limits.StagingMemory, c.Admin = r.cfg.Transport, r.cfg.Limits.StagingMemory, r.cfg.Admin
	c.Logging.Format = r.cfg.Logging.Format
	return &c
}
