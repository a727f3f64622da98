package registry

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"softiser/blockdev"
	"softiser/config"
)

// What a reload does about volumes that are open and stay so.

// volumePlan plans what is done to open volumes.
type volumePlan struct {
	*planning
	freed []place // what the reload takes away
}

// steps finds open volumes that the new configuration describes otherwise.
func (p volumePlan) steps() (steps []step) {
	for _, v := range p.next.Volumes {
		o := p.volumes.find(v.Name)
		if o == nil {
			continue
		}
		is := p.volumes.description(o)
		if reflect.DeepEqual(is, v) {
			continue
		}
		if fixed := withoutTunables(differing(is, v)); len(fixed) > 0 {
			if p.closes(o) {
				continue // where it is wanted again, it is opened anew
			}
			steps = append(steps, step{Change: Change{Action: "update", Object: "volume " + v.Name, Error: fmt.Sprintf(
				"%s of an open volume cannot change; it %s, or its LUNs are removed and added again", strings.Join(fixed, ", "), atStart)}})
			continue
		}
		if is.QoS != v.QoS {
			steps = append(steps, step{
				Change: Change{Action: "update", Object: "volume " + v.Name + " qos"},
				do: func(context.Context) error {
					if x := p.srv.Volume(o.dev); x != nil {
						x.SetQoS(qos(v.QoS))
					}
					return nil
				},
			})
		}
		if is.Snapshots != v.Snapshots {
			// The scheduler is given what is in force when the reload has ended.
			steps = append(steps, step{Change: Change{Action: "update", Object: "volume " + v.Name + " snapshots"}})
		}
		if was := is.Size; v.Size != was && v.Size != 0 && v.Size != config.Size(o.dev.Info().Size) {
			steps = append(steps, step{
				Change: Change{Action: "resize", Object: fmt.Sprintf("volume %s to %s", v.Name, v.Size), Error: unfit(o.dev, v)},
				do:     func(ctx context.Context) error { return p.grow(ctx, o, v) },
				keep:   func(*config.Config) { p.volumes.describe(o, func(c *config.Volume) { c.Size = was }) },
				volume: v.Name,
			})
		}
	}
	return steps
}

// closes reports whether the reload takes all places of an open volume away.
func (p volumePlan) closes(o *openVolume) bool {
	places := p.volumes.placesOf(o)
	return len(places) > 0 && !slices.ContainsFunc(places, func(at place) bool { return !slices.Contains(p.freed, at) })
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
func (p volumePlan) grow(ctx context.Context, o *openVolume, v config.Volume) error {
	if err := p.volumes.resize(ctx, o, int64(v.Size)); err != nil {
		return err
	}
	// A reload that has not waited for it has put the old size back.
	p.volumes.describe(o, func(c *config.Volume) { c.Size = v.Size })
	return nil
}
