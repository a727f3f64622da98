package cli

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/dustin/go-humanize/english"
	"github.com/spf13/cobra"

	"softiser/blockdev"
	"softiser/internal/usage"
	"softiser/lvm"
	"softiser/lvm/meta"
	"softiser/lvm/vg"
)

// vgCommands are the commands about groups.
type vgCommands struct{ *app }

func (a vgCommands) all() []*cobra.Command {
	return []*cobra.Command{a.vgcreate(), a.vgextend(), a.vgreduce(), a.vgremove(), a.vgrename(), a.vgcfgbackup(), a.vgcfgrestore()}
}

// vgcreate makes a group of devices, which are initialized where they are not yet.
func (a vgCommands) vgcreate() *cobra.Command {
	var o vg.GroupOptions
	var extent string
	c := &cobra.Command{Use: "vgcreate VG PV...", Short: "Create a volume group", Args: cobra.MinimumNArgs(2)}
	f := c.Flags()
	f.StringVarP(&extent, "physicalextentsize", "s", "", "extent size (default 4m)")
	f.Uint64VarP(&o.MaxLV, "maxlogicalvolumes", "l", 0, "most logical volumes; 0 is no limit")
	f.Uint64VarP(&o.MaxPV, "maxphysicalvolumes", "p", 0, "most physical volumes; 0 is no limit")
	f.StringVar(&o.Alloc, "alloc", "", "allocation policy: contiguous, cling, normal, anywhere")
	f.StringSliceVar(&o.Tags, "addtag", nil, "tag")
	c.RunE = func(_ *cobra.Command, args []string) error {
		if extent != "" {
			m, err := parseSize(extent)
			if err != nil {
				return err
			}
			o.ExtentSize = m.bytes / 512
		}
		if o.Alloc == "normal" {
			o.Alloc = ""
		}
		if err := a.noGroup(args[0]); err != nil {
			return err
		}
		ds, err := a.open(args[1:])
		if err != nil {
			return err
		}
		a.disks = slices.DeleteFunc(a.disks, func(d *lvm.Disks) bool { return d == ds })
		g, err := ds.CreateGroup(args[0], ds.Disks, o, vg.PVOptions{Force: a.force > 0 || a.yes}, a.why())
		if err != nil {
			ds.Close()
			return err
		}
		a.opened = append(a.opened, g)
		a.say("Volume group %q successfully created", args[0])
		return nil
	}
	return c
}

// noGroup refuses a name that a group has. Devices that cannot be read do not stand in the way.
func (a vgCommands) noGroup(name string) error {
	if s, err := a.scan(); err == nil {
		if _, err := s.Find(name); err == nil || errors.Is(err, vg.ErrAmbiguous) {
			return fmt.Errorf("a volume group called %s already exists", name)
		}
	}
	return nil
}

func (a vgCommands) vgextend() *cobra.Command {
	c := &cobra.Command{Use: "vgextend VG PV...", Short: "Add physical volumes to a volume group", Args: cobra.MinimumNArgs(2)}
	c.RunE = func(_ *cobra.Command, args []string) error {
		g, err := a.group(args[0])
		if err != nil {
			return err
		}
		if err := g.AddDisks(args[1:], vg.PVOptions{Force: a.force > 0 || a.yes}, a.why()); err != nil {
			return err
		}
		a.say("Volume group %q successfully extended", args[0])
		return nil
	}
	return c
}

// vgreduce makes the command that takes physical volumes out of a group.
func (a vgCommands) vgreduce() *cobra.Command {
	var missing, all bool
	c := &cobra.Command{Use: "vgreduce VG PV...", Short: "Take physical volumes out of a volume group", Args: cobra.MinimumNArgs(1)}
	c.Flags().BoolVar(&missing, "removemissing", false, "take out what is missing and holds nothing")
	c.Flags().BoolVarP(&all, "all", "a", false, "take out everything that is empty, but one")
	c.RunE = func(_ *cobra.Command, args []string) error {
		g, err := a.group(args[0])
		if err != nil {
			return err
		}
		pvs, err := g.RemoveDisks(func(x *vg.Group) ([]*meta.PV, error) { return a.toReduce(x, args[1:], missing, all) }, a.why())
		if err != nil {
			return err
		}
		for _, pv := range pvs {
			a.say("Removed %q from volume group %q", pv.Device, args[0])
		}
		return nil
	}
	return c
}

func (a vgCommands) toReduce(x *vg.Group, paths []string, missing, all bool) ([]*meta.PV, error) {
	var out []*meta.PV
	for _, p := range paths {
		abs, _ := filepath.Abs(p)
		pv := x.PVByPath(abs)
		if pv == nil {
			return nil, fmt.Errorf("physical volume %q is not in volume group %q", p, x.VG.Name)
		}
		out = append(out, pv)
	}
	used := vg.Used(x.VG)
	for _, pv := range x.VG.PVs {
		empty := len(used[pv.Name]) == 0
		if missing && x.Disks[pv.ID] == nil || all && empty && len(out) < len(x.VG.PVs)-1 {
			out = append(out, pv)
		}
	}
	if len(out) == 0 {
		return nil, usage.Errorf("name the physical volumes to take out")
	}
	return out, nil
}

// vgremove asks once for all volumes of the group, and removes only those that it has
// asked about.
func (a vgCommands) vgremove() *cobra.Command {
	c := &cobra.Command{Use: "vgremove VG", Short: "Remove a volume group", Args: cobra.ExactArgs(1)}
	c.RunE = func(cmd *cobra.Command, args []string) error {
		g, err := a.group(args[0])
		if err != nil {
			return err
		}
		if err := unserved(g); err != nil {
			return err
		}
		agreed := map[string]bool{}
		for _, lv := range g.Metadata().LVs {
			agreed[lv.Name] = true
		}
		if n := len(agreed); n > 0 {
			if err := a.ask(cmd.Context(), "volume group %q contains %s: really remove all of it?", args[0], english.Plural(n, "logical volume", "")); err != nil {
				return err
			}
			for v := g.Metadata(); len(v.LVs) > 0; v = g.Metadata() {
				if err := a.removeOne(cmd.Context(), g, firstShown(v), agreed); err != nil {
					return err
				}
			}
		}
		if err := a.last(g, args[0], func(x *vg.Group) error { return x.Remove(a.why()) }); err != nil {
			return err
		}
		a.say("Volume group %q successfully removed", args[0])
		return nil
	}
	return c
}

// last makes the last change of a group under its name. A target closes it, and opens it again under a
// new name when it is needed.
func (a vgCommands) last(g *lvm.Group, name string, change func(*vg.Group) error) error {
	if a.env.Manager != nil {
		return a.env.Manager.DropAfter(name, change)
	}
	return g.VG(change)
}

// unserved refuses a group of which a volume is in use.
func unserved(g *lvm.Group) error {
	v := g.Metadata()
	for _, lv := range v.LVs {
		if g.IsOpen(lv.Name) && v.Shown(lv) {
			return fmt.Errorf("logical volume %s/%s is served: %w", v.Name, lv.Name, blockdev.ErrInUse)
		}
	}
	return nil
}

func firstShown(v *meta.VG) string {
	for _, lv := range v.LVs {
		if v.Shown(lv) {
			return lv.Name
		}
	}
	return v.LVs[0].Name
}

// vgrename gives a group another name, which no group may have.
func (a vgCommands) vgrename() *cobra.Command {
	c := &cobra.Command{Use: "vgrename OLD NEW", Short: "Rename a volume group", Args: cobra.ExactArgs(2)}
	c.RunE = func(_ *cobra.Command, args []string) error {
		if err := a.noGroup(args[1]); err != nil {
			return err
		}
		g, err := a.group(args[0])
		if err != nil {
			return err
		}
		if err := unserved(g); err != nil { // the configuration names the group
			return err
		}
		if err := a.last(g, args[0], func(x *vg.Group) error { return x.Rename(args[1], a.why()) }); err != nil {
			return err
		}
		a.say("Volume group %q successfully renamed to %q", args[0], args[1])
		return nil
	}
	return c
}

// vgcfgbackup makes the folder that backups are in by default; that of another file is to be there, as of lvm2.
func (a vgCommands) vgcfgbackup() *cobra.Command {
	var file string
	c := &cobra.Command{Use: "vgcfgbackup VG", Short: "Write the metadata into a file", Args: cobra.ExactArgs(1)}
	c.Flags().StringVarP(&file, "file", "f", "", "where to (default /etc/lvm/backup/VG)")
	c.RunE = func(_ *cobra.Command, args []string) error {
		s, err := a.scan()
		if err != nil {
			return err
		}
		x, err := s.Find(args[0])
		if err != nil {
			return err
		}
		if file == "" {
			file = "/etc/lvm/backup/" + args[0]
			if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
				return err
			}
		}
		if err := x.WriteBackup(file); err != nil {
			return err
		}
		a.say("Volume group %q successfully backed up.", args[0])
		return nil
	}
	return c
}
