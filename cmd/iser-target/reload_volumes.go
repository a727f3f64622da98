package main

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"softiser/blockdev"
	"softiser/config"
	"softiser/target/admin"
)

// What a reload does about volumes that are open and stay so.

// planVolumes finds open volumes that the new configuration describes otherwise.
func (a *app) planVolumes(next *config.Config) (steps []step) {
	for _, v := range next.Volumes {
		o := a.volumes[v.Name]
		if o == nil || reflect.DeepEqual(o.cfg, v) {
			continue
		}
		if fixed := withoutTunables(differing(o.cfg, v)); len(fixed) > 0 {
			steps = append(steps, step{Change: admin.Change{Action: "update", Object: "volume " + v.Name, Error: fmt.Sprintf(
				"%s of an open volume cannot change; it %s, or its LUNs are removed and added again", strings.Join(fixed, ", "), atStart)}})
			continue
		}
		if len(o.luns) == 0 {
			steps = append(steps, step{Change: admin.Change{Action: "update", Object: "volume " + v.Name, Error: "of a volume that is a namespace only: " + atStart}})
			continue
		}
		if o.cfg.QoS != v.QoS {
			steps = append(steps, step{
				Change: admin.Change{Action: "update", Object: "volume " + v.Name + " qos"},
				do:     func(context.Context) error { return a.setQoS(v) },
			})
		}
		if was := o.cfg.Size; v.Size != was && v.Size != 0 && v.Size != config.Size(o.dev.Info().Size) {
			steps = append(steps, step{
				Change: admin.Change{Action: "resize", Object: fmt.Sprintf("volume %s to %s", v.Name, v.Size), Error: unfit(o, v)},
				do:     func(context.Context) error { return a.resizeVolume(v) },
				keep: func(*config.Config) {
					a.mu.Lock()
					defer a.mu.Unlock()
					o.cfg.Size = was
				},
			})
		}
	}
	return steps
}

// tunables are the keys of a volume that a reload changes on line.
var tunables = []string{"size", "qos"}

func withoutTunables(keys []string) []string {
	return slices.DeleteFunc(keys, func(k string) bool { return slices.Contains(tunables, k) })
}

// unfit says why an open volume cannot get the size of v, "" if it can. Shrinking
// loses data, so it takes the command that says so.
func unfit(o *openVolume, v config.Volume) string {
	now := config.Size(o.dev.Info().Size)
	switch _, ok := o.dev.(blockdev.Resizer); {
	case v.Size < now:
		return fmt.Sprintf("the volume has %s; `iser-target resize --shrink %s %s` shrinks it", now, v.Name, v.Size)
	case v.Type == config.VolumeLVM:
		return "it is a logical volume: `iser-target lvm lvextend` changes its size, on line"
	case !ok || v.Type == config.VolumeRaw:
		return "its size cannot be changed from here; resize the device itself"
	case v.ReadOnly:
		return "a read-only volume is not made larger"
	}
	return ""
}

// resizeVolume grows an open volume.
func (a *app) resizeVolume(v config.Volume) error {
	a.mu.Lock()
	o := a.volumes[v.Name]
	var m mapping
	if o != nil {
		m = o.luns[0]
	}
	a.mu.Unlock()
	if o == nil {
		return nil
	}
	return a.srv.ResizeLUN(m.iqn, m.lun, int64(v.Size))
}

// setQoS puts new rate limits in force wherever the volume is served.
func (a *app) setQoS(v config.Volume) error {
	var errs []error
	for _, m := range a.mapped(v.Name) {
		errs = append(errs, a.srv.SetQoS(m.iqn, m.lun, qos(v.QoS)))
	}
	return errors.Join(errs...)
}

// mapped lists the LUNs of an open volume.
func (a *app) mapped(volume string) []mapping {
	a.mu.Lock()
	defer a.mu.Unlock()
	if o := a.volumes[volume]; o != nil {
		return slices.Clone(o.luns)
	}
	return nil
}
