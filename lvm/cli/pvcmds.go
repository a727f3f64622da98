package cli

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"softiser/internal/usage"
	"softiser/lvm"
	"softiser/lvm/meta"
	"softiser/lvm/vg"
)

// pvCommands are the commands about physical volumes.
type pvCommands struct{ *app }

func (a pvCommands) all() []*cobra.Command {
	return []*cobra.Command{a.pvcreate(), a.pvremove(), a.pvresize(), a.pvmove()}
}

// open opens devices for writing, on their own.
func (a *app) open(paths []string) (*lvm.Disks, error) {
	if a.env.Manager != nil {
		for _, p := range paths {
			abs, _ := filepath.Abs(p)
			for _, name := range a.env.Manager.Groups() {
				if g := a.env.Manager.Group(name); g != nil {
					in := false
					g.VG(func(x *vg.Group) error { in = x.PVByPath(abs) != nil; return nil })
					if in {
						return nil, fmt.Errorf("%s belongs to volume group %q, which is served", p, name)
					}
				}
			}
		}
	}
	ds, err := lvm.OpenDisks(a.config(), paths)
	if err != nil {
		return nil, err
	}
	a.disks = append(a.disks, ds)
	return ds, nil
}

// pvcreate initializes devices.
func (a pvCommands) pvcreate() *cobra.Command {
	var o vg.PVOptions
	var metaSize, align, uuid string
	c := &cobra.Command{Use: "pvcreate PV...", Short: "Initialize physical volumes", Args: cobra.MinimumNArgs(1)}
	c.Flags().StringVar(&metaSize, "metadatasize", "", "size of the metadata area")
	c.Flags().StringVar(&align, "dataalignment", "", "alignment of the first extent")
	c.Flags().StringVarP(&uuid, "uuid", "u", "", "UUID of the new physical volume")
	copies := c.Flags().Int("pvmetadatacopies", 1, "number of metadata areas: 0, 1 or 2")
	c.RunE = func(_ *cobra.Command, args []string) error {
		var err error
		o.Force = a.force > 0 || a.yes
		for _, s := range []struct {
			text string
			to   *uint64
		}{{metaSize, &o.MetadataSize}, {align, &o.DataAlign}} {
			if s.text != "" {
				m, err := parseSize(s.text)
				if err != nil {
					return err
				}
				*s.to = m.bytes
			}
		}
		if uuid != "" {
			if o.UUID, err = meta.ParseUUID(uuid); err != nil {
				return err
			}
		}
		switch *copies {
		case 0:
			o.Copies = -1
		case 1, 2:
			o.Copies = *copies
		default:
			return usage.Errorf("--pvmetadatacopies must be 0, 1 or 2")
		}
		ds, err := a.open(args)
		if err != nil {
			return err
		}
		for i, d := range ds.Disks {
			if o.InUse, err = a.leftOver(d); err != nil {
				return err
			}
			if err := a.config().CreatePV(d, o); err != nil {
				return err
			}
			a.say("Physical volume %q successfully created.", args[i])
		}
		return nil
	}
	return c
}

// leftOver reports whether -ff makes a disk free that says that it belongs to a group: none that can be read
// names it.
func (a pvCommands) leftOver(d *vg.Disk) (bool, error) {
	if a.force < 2 || !d.InUse() {
		return false, nil
	}
	s, err := a.scan()
	if err != nil {
		return false, err
	}
	return len(s.Broken) == 0 && !slices.ContainsFunc(s.Groups, func(g *vg.Group) bool { return g.VG.PVByID(d.Label.UUID) != nil }), nil
}

func (a pvCommands) pvremove() *cobra.Command {
	c := &cobra.Command{Use: "pvremove PV...", Short: "Remove labels from physical volumes", Args: cobra.MinimumNArgs(1)}
	c.RunE = func(_ *cobra.Command, args []string) error {
		ds, err := a.open(args)
		if err != nil {
			return err
		}
		for i, d := range ds.Disks {
			force, err := a.leftOver(d)
			if err != nil {
				return err
			}
			if err := a.config().RemovePV(d, force); err != nil {
				return err
			}
			a.say("Labels on physical volume %q successfully wiped.", args[i])
		}
		return nil
	}
	return c
}

// ofPV finds the group that a device belongs to, and opens it.
func (a pvCommands) ofPV(path string) (*lvm.Group, string, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, "", err
	}
	s, err := a.scan()
	if err != nil {
		return nil, "", err
	}
	for _, x := range s.Groups {
		if x.PVByPath(abs) != nil {
			g, err := a.group(x.VG.Name)
			return g, abs, err
		}
	}
	return nil, "", fmt.Errorf("a volume group with the physical volume %s was %w", path, vg.ErrNotFound)
}

// pvresize takes the size of the device, or the one that was given.
func (a pvCommands) pvresize() *cobra.Command {
	var size string
	c := &cobra.Command{Use: "pvresize PV...", Short: "Take the new size of devices into use", Args: cobra.MinimumNArgs(1)}
	c.Flags().StringVar(&size, "setphysicalvolumesize", "", "use this size instead of the device's")
	c.RunE = func(_ *cobra.Command, args []string) error {
		var n uint64
		if size != "" {
			m, err := parseSize(size)
			if err != nil {
				return err
			}
			n = m.bytes
		}
		for _, p := range args {
			g, abs, err := a.ofPV(p)
			if err != nil {
				return err
			}
			err = g.VG(func(x *vg.Group) error { return x.ResizePV(x.PVByPath(abs), n, a.why()) })
			if err != nil {
				return err
			}
			a.say("Physical volume %q changed", p)
		}
		a.say("%d physical volume(s) resized or updated / 0 physical volume(s) not resized", len(args))
		return nil
	}
	return c
}

// ranges reads PV[:PE[-PE]...] arguments against a group.
func ranges(x *vg.Group, args []string) ([]vg.Range, error) {
	var out []vg.Range
	for _, arg := range args {
		parts := strings.Split(arg, ":")
		abs, err := filepath.Abs(parts[0])
		if err != nil {
			return nil, err
		}
		pv := x.PVByPath(abs)
		if pv == nil {
			return nil, fmt.Errorf("physical volume %q is not in volume group %q", parts[0], x.VG.Name)
		}
		if len(parts) == 1 {
			out = append(out, vg.Range{PV: pv.Name})
			continue
		}
		for _, p := range parts[1:] {
			r, err := extentRange(pv, p)
			if err != nil {
				return nil, fmt.Errorf("%q: %w", arg, err)
			}
			out = append(out, r)
		}
	}
	return out, nil
}

func extentRange(pv *meta.PV, s string) (vg.Range, error) {
	r := vg.Range{PV: pv.Name}
	var lo, hi uint64
	if _, err := fmt.Sscanf(s, "%d-%d", &lo, &hi); err == nil {
		if hi < lo {
			return r, usage.Errorf("extents %q: the end lies before the start", s)
		}
		r.Off, r.Len = lo, hi-lo+1
		return r, nil
	}
	if _, err := fmt.Sscanf(s, "%d+%d", &lo, &hi); err == nil && hi > 0 {
		r.Off, r.Len = lo, hi
		return r, nil
	}
	if _, err := fmt.Sscanf(strings.TrimSuffix(s, "-"), "%d", &lo); err != nil {
		return r, usage.Errorf("extents %q: must be like 10, 10- or 10-19", s)
	}
	r.Off = lo
	if !strings.HasSuffix(s, "-") {
		r.Len = 1
	}
	return r, nil
}

// pvmove moves extents under running I/O, run by run.
func (a pvCommands) pvmove() *cobra.Command {
	var name, alloc string
	c := &cobra.Command{Use: "pvmove [-n LV] SOURCE[:PE-PE] [DEST...]", Short: "Move extents to other physical volumes, on line", Args: cobra.MinimumNArgs(1)}
	c.Flags().StringVarP(&name, "name", "n", "", "move only this logical volume")
	c.Flags().StringVar(&alloc, "alloc", "", "allocation policy: contiguous, cling, normal, anywhere, inherit")
	c.RunE = func(cmd *cobra.Command, args []string) error {
		g, _, err := a.ofPV(strings.SplitN(args[0], ":", 2)[0])
		if err != nil {
			return err
		}
		var from, to []vg.Range
		err = g.VG(func(x *vg.Group) error {
			if from, err = ranges(x, args[:1]); err != nil {
				return err
			}
			to, err = ranges(x, args[1:])
			return err
		})
		if err != nil {
			return err
		}
		if _, lv, err := splitLV(name); err == nil {
			name = lv
		}
		for _, r := range from {
			last := -1
			err := g.Move(cmd.Context(), lvm.MoveOptions{From: r, Volume: name, To: to, Policy: alloc, Progress: func(done, total uint64) {
				if p := int(done * 100 / total); p != last {
					last = p
					a.say("%s: Moved: %d.00%%", args[0], p)
				}
			}}, a.why())
			if err != nil {
				return err
			}
		}
		return nil
	}
	return c
}
