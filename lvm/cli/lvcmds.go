package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"softiser/blockdev"
	"softiser/internal/usage"
	"softiser/lvm"
	"softiser/lvm/meta"
	"softiser/lvm/vg"
)

// lvCommands are the commands about volumes.
type lvCommands struct{ *app }

func (a lvCommands) all() []*cobra.Command {
	return []*cobra.Command{lvCreation{a.app}.lvcreate(), lvSizing{a.app}.lvextend(), lvSizing{a.app}.lvreduce(), lvSizing{a.app}.lvresize(), a.lvremove(), a.lvrename(), a.lvchange(), a.lvconvert()}
}

// patience bounds how long a command waits for leases that peers hold.
const patience = 30 * time.Second

// lv opens the group of a VG/LV argument.
func (a *app) lv(arg string) (*lvm.Group, *meta.LV, error) {
	group, name, err := splitLV(arg)
	if err != nil {
		return nil, nil, err
	}
	g, err := a.group(group)
	if err != nil {
		return nil, nil, err
	}
	lv := g.Metadata().LV(name)
	if lv == nil {
		return nil, nil, fmt.Errorf("failed to find logical volume %q", arg)
	}
	return g, lv, nil
}

// lvremove asks first, and removes only what was there when it asked.
func (a lvCommands) lvremove() *cobra.Command {
	c := &cobra.Command{Use: "lvremove VG[/LV]...", Short: "Remove logical volumes", Args: cobra.MinimumNArgs(1)}
	c.RunE = func(cmd *cobra.Command, args []string) error {
		type target struct {
			g      *lvm.Group
			name   string
			all    bool
			agreed map[string]bool
		}
		var targets []target
		for _, arg := range args {
			group, name, _ := strings.Cut(strings.TrimPrefix(arg, "/dev/"), "/")
			g, err := a.group(group)
			if err != nil {
				return err
			}
			names := []string{name}
			if name == "" {
				names = nil
				v := g.Metadata()
				for _, lv := range v.LVs {
					if v.Shown(lv) {
						names = append(names, lv.Name)
					}
				}
			}
			for _, n := range names {
				agreed := map[string]bool{n: true}
				if err := a.mayRemove(cmd.Context(), g, n, agreed); err != nil {
					return err
				}
				targets = append(targets, target{g, n, name == "", agreed})
			}
		}
		for _, t := range targets {
			if t.all && t.g.Metadata().LV(t.name) == nil {
				continue // went with its origin or pool
			}
			if err := a.removeOne(cmd.Context(), t.g, t.name, t.agreed); err != nil {
				return err
			}
		}
		return nil
	}
	return c
}

// mayRemove refuses to remove what is in use, and asks about what would go with
// it, which it adds to agreed.
func (a *app) mayRemove(ctx context.Context, g *lvm.Group, name string, agreed map[string]bool) error {
	v := g.Metadata()
	lv := v.LV(name)
	if lv == nil {
		return fmt.Errorf("failed to find logical volume \"%s/%s\"", v.Name, name)
	}
	deps := g.Dependents(name)
	for _, n := range append([]string{name}, deps...) {
		if g.IsOpen(n) && len(v.LV(n).Segments) > 0 && v.LV(n).Segments[0].Type != meta.ThinPool {
			return fmt.Errorf("logical volume %s/%s is served: %w", v.Name, n, blockdev.ErrInUse)
		}
	}
	if len(deps) > 0 {
		if err := a.ask(ctx, "removing %s/%s also removes %s: really remove them?", v.Name, name, strings.Join(deps, ", ")); err != nil {
			return err
		}
	}
	for _, d := range deps {
		agreed[d] = true
		if err := a.mayRemove(ctx, g, d, agreed); err != nil {
			return err
		}
	}
	return nil
}

// removeOne removes an LV after what depends on it; nothing that has come into
// being since the user agreed.
func (a *app) removeOne(ctx context.Context, g *lvm.Group, name string, agreed map[string]bool) error {
	v := g.Metadata()
	switch {
	case !agreed[name]:
		return fmt.Errorf("%s/%s was made while this command ran: give it again", v.Name, name)
	case v.LV(name) == nil:
		return fmt.Errorf("failed to find logical volume \"%s/%s\"", v.Name, name)
	}
	for _, d := range g.Dependents(name) {
		if err := a.removeOne(ctx, g, d, agreed); err != nil {
			return err
		}
	}
	ctx, stop := context.WithTimeout(ctx, patience)
	defer stop()
	if err := g.Remove(ctx, name, a.why()); err != nil {
		return err
	}
	a.say("Logical volume %q successfully removed.", name)
	return nil
}

// lvrename takes both of lvm2's forms.
func (a lvCommands) lvrename() *cobra.Command {
	c := &cobra.Command{Use: "lvrename VG OLD NEW | VG/OLD VG/NEW", Short: "Rename a logical volume", Args: cobra.RangeArgs(2, 3)}
	c.RunE = func(_ *cobra.Command, args []string) error {
		var group, old string
		if len(args) == 3 {
			group, old = args[0], args[1]
		} else {
			var err error
			if group, old, err = splitLV(args[0]); err != nil {
				return err
			}
		}
		old, err := nameIn(group, old)
		if err != nil {
			return err
		}
		name, err := nameIn(group, args[len(args)-1])
		if err != nil {
			return err
		}
		if old == name {
			return usage.Errorf("old and new name of the logical volume are both %q", name)
		}
		g, err := a.group(group)
		if err != nil {
			return err
		}
		if err := g.Rename(old, name, a.why()); err != nil {
			return err
		}
		a.say("Renamed %q to %q in volume group %q", old, name, group)
		if a.env.Manager != nil && g.IsOpen(name) { // with create: true, the next start would make an empty one
			fmt.Fprintf(a.err, "  WARNING: %s/%s is in use: where the target's configuration has lv: %s, write lv: %s before its next start.\n", group, name, old, name)
		}
		return nil
	}
	return c
}

// lvchange changes attributes and tags. Activation is not among them: what is served is
// active.
func (a lvCommands) lvchange() *cobra.Command {
	var perm, alloc, skip, full, discards, zero, active, auto string
	var add, del []string
	c := &cobra.Command{Use: "lvchange [options] VG/LV...", Short: "Change attributes of logical volumes", Args: cobra.MinimumNArgs(1)}
	f := c.Flags()
	f.StringVarP(&perm, "permission", "p", "", "r or rw")
	f.StringVar(&alloc, "alloc", "", "allocation policy: contiguous, cling, normal, anywhere, inherit")
	f.StringVarP(&skip, "setactivationskip", "k", "", "y or n")
	f.StringVar(&auto, "setautoactivation", "", "y or n")
	f.StringVar(&full, "errorwhenfull", "", "thin pool: y or n")
	f.StringVar(&discards, "discards", "", "thin pool: ignore, nopassdown, passdown")
	f.StringVarP(&zero, "zero", "Z", "", "thin pool: y or n")
	f.StringSliceVar(&add, "addtag", nil, "tag")
	f.StringSliceVar(&del, "deltag", nil, "tag")
	f.StringVarP(&active, "activate", "a", "", "refused: volumes are active while they are served")
	c.RunE = func(_ *cobra.Command, args []string) error {
		if active != "" {
			return fmt.Errorf("volumes are not activated by hand: they are active while the target serves them")
		}
		if perm+alloc+skip+auto+full+discards+zero == "" && len(add)+len(del) == 0 {
			return usage.Errorf("say what to change; lvchange --help lists what can be changed")
		}
		for _, arg := range args {
			g, lv, err := a.lv(arg)
			if err != nil {
				return err
			}
			err = g.Change(lv.Name, func(lv *meta.LV) error {
				return change(lv, map[string]string{"permission": perm, "alloc": alloc, "skip": skip, "auto": auto, "full": full, "discards": discards, "zero": zero}, add, del)
			}, a.why())
			if err != nil {
				return err
			}
			a.say("Logical volume %s changed.", arg)
			if discards+zero != "" && a.env.Manager != nil && g.IsActive(lv.Name) {
				a.say("How %s discards and zeroes changes when its volumes have all been closed.", arg)
			}
		}
		return nil
	}
	return c
}

// change applies options of lvchange and tags to lv, or says which one cannot be.
func change(lv *meta.LV, o map[string]string, add, del []string) error {
	yes := func(key string) (bool, error) {
		switch o[key] {
		case "y", "n":
			return o[key] == "y", nil
		}
		return false, usage.Errorf("%s %q: must be y or n", key, o[key])
	}
	pool := len(lv.Segments) == 1 && lv.Segments[0].Type == meta.ThinPool
	for key, v := range o {
		if v == "" {
			continue
		}
		var on bool
		var err error
		switch key {
		case "permission":
			if v != "r" && v != "rw" {
				return usage.Errorf("permission %q: must be r or rw", v)
			}
			lv.SetStatus("WRITE", v == "rw")
		case "alloc":
			if v == "inherit" {
				v = ""
			}
			lv.Alloc = v
		case "skip":
			on, err = yes(key)
			lv.SetFlag("ACTIVATION_SKIP", on)
		case "auto":
			on, err = yes(key)
			lv.SetFlag("NOAUTOACTIVATE", !on)
		default:
			if !pool {
				return fmt.Errorf("%s is an attribute of thin pools", key)
			}
			switch key {
			case "full":
				on, err = yes(key)
				lv.SetFlag("ERROR_WHEN_FULL", on)
			case "zero":
				on, err = yes(key)
				lv.Segments[0].ZeroNew = on
			case "discards":
				if v != "ignore" && v != "nopassdown" && v != "passdown" {
					return usage.Errorf("discards %q: must be ignore, nopassdown or passdown", v)
				}
				lv.Segments[0].Discards = v
			}
		}
		if err != nil {
			return err
		}
	}
	for _, t := range add {
		if err := vg.CheckName(t); err != nil {
			return fmt.Errorf("tag: %w", err)
		}
		lv.SetTag(t, true)
	}
	for _, t := range del {
		lv.SetTag(t, false)
	}
	return nil
}

// lvconvert merges snapshots, and waits for the end unless --background is given.
func (a lvCommands) lvconvert() *cobra.Command {
	var merge, background bool
	c := &cobra.Command{Use: "lvconvert --merge VG/SNAPSHOT...", Short: "Merge snapshots into their origins", Args: cobra.MinimumNArgs(1)}
	c.Flags().BoolVar(&merge, "merge", false, "merge snapshots into their origins")
	c.Flags().BoolVarP(&background, "background", "b", false, "on a running target: do not wait for the end")
	c.RunE = func(cmd *cobra.Command, args []string) error {
		if !merge {
			return usage.Errorf("only --merge is done here; other conversions are left to lvm2")
		}
		for _, arg := range args {
			g, lv, err := a.lv(arg)
			if err != nil {
				return err
			}
			origin := originOf(g.Metadata(), lv)
			ctx, stop := context.WithTimeout(cmd.Context(), patience)
			done, err := g.Merge(ctx, lv.Name, a.why())
			stop()
			if err != nil {
				return err
			}
			a.say("Merging of volume %s started.", arg)
			if background && a.env.Manager != nil {
				continue
			}
			select {
			case err := <-done:
				if err != nil {
					return err
				}
			case <-cmd.Context().Done():
				return errors.Join(cmd.Context().Err(), fmt.Errorf("the merge goes on when %s is next used", origin))
			}
			a.say("%s: Merged: 100.00%%", origin)
		}
		return nil
	}
	return c
}

// originOf names what a snapshot was made of.
func originOf(v *meta.VG, lv *meta.LV) string {
	if _, s := v.SnapshotSegment(lv.Name); s != nil {
		return s.Origin
	}
	if len(lv.Segments) > 0 && lv.Segments[0].Type == meta.Thin {
		return lv.Segments[0].Origin
	}
	return ""
}
