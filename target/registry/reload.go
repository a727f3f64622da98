package registry

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"softiser/config"
)

// A reload reads the configuration file again and makes what is served agree
// with it: targets, LUNs, subsystems and namespaces come and go, volumes grow, rates, limits, access rules
// and the log level change. What both configurations have is left alone, sessions included.
// What cannot change in a running process is named and stays as it was, and a
// file with a mistake in it changes nothing.

// errNoFile is the answer to a reload without --config.
var errNoFile = errors.New("this target was started without --config, so there is no file to read again; lun, resize and session change it")

// errEmpty protects everything that is served from a file that was read while it
// was being written, or emptied by mistake.
var errEmpty = errors.New("the file names no target and no subsystem; to serve nothing, stop iser-target")

// FileError says that a reload has changed nothing, because the configuration file has mistakes.
type FileError struct{ Err error }

// Error is what is wrong with the file.
func (e *FileError) Error() string {
	return fmt.Sprintf("nothing is changed, because the file has mistakes:\n%v", e.Err)
}

func (e *FileError) Unwrap() error { return e.Err }

// reloadPatience is how long after the end of its time a reload is waited for that says itself what has not
// been done: longer than it waits for the end of a volume.
const reloadPatience = closePatience + time.Second

// Reload applies the file, or with dry only tells what would be done, and returns the warnings that the
// configuration has. A file with mistakes is a [FileError]. What storage has not
// done when ctx ends is reported as such, and goes on.
func (r *Registry) Reload(ctx context.Context, dry bool) ([]Change, []string, error) {
	select {
	case r.reloading <- struct{}{}:
	case <-ctx.Done():
		return nil, nil, fmt.Errorf("another reload has not ended: %w", ctx.Err())
	}
	type outcome struct {
		changes  []Change
		warnings []string
		err      error
	}
	done := make(chan outcome, 1)
	go func() {
		defer func() { <-r.reloading }()
		changes, warnings, err := r.reload(ctx, dry)
		if !dry {
			r.reloads.note(changes, err)
		}
		done <- outcome{changes, warnings, err}
	}()
	select {
	case o := <-done:
		return o.changes, o.warnings, o.err
	case <-ctx.Done():
	}
	select {
	case o := <-done:
		return o.changes, o.warnings, o.err
	case <-time.After(reloadPatience):
		return nil, nil, fmt.Errorf("the storage of the file, or of a volume, does not answer; further reloads wait until it does: %w", ctx.Err())
	}
}

// reload is Reload for a caller that has its turn.
func (r *Registry) reload(ctx context.Context, dry bool) ([]Change, []string, error) {
	if r.load == nil {
		return nil, nil, errNoFile
	}
	next, err := r.load()
	if err == nil && len(next.Targets)+len(next.Subsystems) == 0 {
		err = errEmpty
	}
	if err == nil {
		err = Check(next)
	}
	if err == nil && ctx.Err() != nil { // nobody waits any more, and a handover may be under way
		return nil, nil, fmt.Errorf("nothing is changed, because reading the file has taken too long: %w", ctx.Err())
	}
	if err != nil {
		return nil, nil, &FileError{err}
	}
	warnings := next.Warnings()
	steps := plan(&planning{common: r.common, groups: r.groups, mapping: r.mapping, old: r.config(), next: next}, r.setLevel)
	if dry {
		foresee(ctx, r.stores, r.groups, steps)
	} else {
		for _, w := range warnings {
			r.log.Warn(w)
		}
		r.apply(ctx, steps, running(r.config(), next))
		for i := range steps {
			if s := &steps[i]; s.serves != nil && s.Error != "" {
				r.mapping.notBrought(s.at, s.Error)
			}
		}
		r.groups.show(ctx) // what was added to an active group has been shown by the old configuration
		r.snapshots.Set(snapshotPlans(r.config()))
	}
	changes := []Change{}
	for _, s := range steps {
		changes = append(changes, s.Change)
	}
	return changes, warnings, nil
}

// running is a copy of next with the settings that stay as old has them until the next
// start.
func running(old, next *config.Config) *config.Config {
	c := *next
	c.Targets = slices.Clone(next.Targets)
	for i := range c.Targets {
		c.Targets[i].LUNs = slices.Clone(c.Targets[i].LUNs)
	}
	c.Subsystems = slices.Clone(next.Subsystems)
	for i := range c.Subsystems {
		c.Subsystems[i].Namespaces = slices.Clone(c.Subsystems[i].Namespaces)
	}
	c.Portals, c.ISCSI, c.HA = slices.Clone(old.Portals), old.ISCSI, old.HA
	for i := range c.Portals {
		if j := slices.IndexFunc(next.Portals, func(n config.Portal) bool { return n.Listen == c.Portals[i].Listen }); j >= 0 {
			c.Portals[i].TLS = next.Portals[j].TLS
		}
	}
	c.Discovery.Auth, c.Discovery.NQN = old.Discovery.Auth, old.Discovery.NQN
	c.Transport, c.Limits.StagingMemory, c.Admin = old.Transport, old.Limits.StagingMemory, old.Admin
	c.Logging.Format = old.Logging.Format
	return &c
}
