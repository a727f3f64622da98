package registry

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"go.uber.org/zap"

	"softiser/blockdev"
	"softiser/config"
)

// What is done to volumes that are open and stay so.

// planVolumes finds open volumes that the new configuration describes otherwise.
func (r *Registry) planVolumes(next *config.Config) (steps []step) {
	for _, v := range next.Volumes {
		o := r.volumes.find(v.Name)
		if o == nil {
			continue
		}
		is := r.volumes.description(o)
		if reflect.DeepEqual(is, v) {
			continue
		}
		if fixed := withoutTunables(differing(is, v)); len(fixed) > 0 {
			steps = append(steps, step{Change: Change{Action: "update", Object: "volume " + v.Name, Error: fmt.Sprintf(
				"%s of an open volume cannot change; it %s, or its LUNs are removed and added again", strings.Join(fixed, ", "), atStart)}})
			continue
		}
		if is.QoS != v.QoS {
			steps = append(steps, step{
				Change: Change{Action: "update", Object: "volume " + v.Name + " qos"},
				do: func(context.Context) error {
					if x := r.srv.Volume(o.dev); x != nil {
						x.SetQoS(qos(v.QoS))
					}
					return nil
				},
			})
		}
		if was := is.Size; v.Size != was && v.Size != 0 && v.Size != config.Size(o.dev.Info().Size) {
			steps = append(steps, step{
				Change: Change{Action: "resize", Object: fmt.Sprintf("volume %s to %s", v.Name, v.Size), Error: unfit(o.dev, v)},
				do:     func(ctx context.Context) error { return r.grow(ctx, o, v) },
				keep:   func(*config.Config) { r.volumes.describe(o, func(c *config.Volume) { c.Size = was }) },
				volume: v.Name,
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
func unfit(dev blockdev.Device, v config.Volume) string {
	now := config.Size(dev.Info().Size)
	switch _, ok := dev.(blockdev.Resizer); {
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

// grow gives an open volume the size of its new description.
func (r *Registry) grow(ctx context.Context, o *openVolume, v config.Volume) error {
	if err := r.resize(ctx, o, int64(v.Size)); err != nil {
		return err
	}
	// A reload that has not waited for it has put the old size back.
	r.volumes.describe(o, func(c *config.Volume) { c.Size = v.Size })
	return nil
}

// ResizeLUN changes the size of the volume that a LUN is, bytes, wherever it is served.
// Every initiator is told.
func (r *Registry) ResizeLUN(ctx context.Context, iqn string, lun uint16, size int64) error {
	o := r.volumes.at(place{iqn, uint32(lun)})
	if o == nil {
		return fmt.Errorf("target %s has no LUN %d", iqn, lun)
	}
	return r.resize(ctx, o, size)
}

// ResizeVolume changes the size of a volume, bytes, wherever it is served.
func (r *Registry) ResizeVolume(ctx context.Context, name string, size int64) error {
	o := r.volumes.find(name)
	if o == nil {
		return fmt.Errorf("no volume named %q is served", name)
	}
	return r.resize(ctx, o, size)
}

func (r *Registry) resize(ctx context.Context, o *openVolume, size int64) error {
	name := r.volumes.description(o).Name
	dev, ok := o.dev.(blockdev.Resizer)
	if !ok {
		return fmt.Errorf("volume %s: resize: %w", name, blockdev.ErrNotSupported)
	}
	end, err := r.volumes.begin(ctx, name)
	if err != nil {
		return err
	}
	defer end()
	defer r.volumes.during(name, "resizing volume "+name)()
	if err := dev.Resize(size); err != nil {
		return fmt.Errorf("volume %s: resize to %d bytes: %w", name, size, err)
	}
	r.log.Info("volume resized", zap.String("volume", name), zap.Int64("bytes", size))
	return nil
}
