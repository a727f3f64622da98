package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"softiser/internal/usage"
	"softiser/lvm"
	"softiser/lvm/meta"
	"softiser/lvm/vg"
)

// resizeFlags are the options that lvextend and lvresize share.
type resizeFlags struct {
	sizing
	alloc, metaSize string
	stripes         int
}

func (o *resizeFlags) add(f *pflag.FlagSet) {
	f.StringVarP(&o.size, "size", "L", "", "new size, or +SIZE")
	f.StringVarP(&o.extents, "extents", "l", "", "new size in extents, or +100%FREE")
	f.StringVar(&o.alloc, "alloc", "", "allocation policy: contiguous, cling, normal, anywhere, inherit")
	f.StringVar(&o.metaSize, "poolmetadatasize", "", "new size of a thin pool's metadata, or +SIZE")
	f.VarP((*stripeCount)(&o.stripes), "stripes", "i", "number of stripes (default: as the last segment)")
}

// lvSizing changes the size of volumes.
type lvSizing struct{ *app }

func (a lvSizing) lvextend() *cobra.Command {
	var o resizeFlags
	c := &cobra.Command{Use: "lvextend [-L|-l] [+]SIZE VG/LV [PV...]", Short: "Make a logical volume larger, on line", Args: cobra.MinimumNArgs(1)}
	o.add(c.Flags())
	c.RunE = func(_ *cobra.Command, args []string) error {
		g, lv, n, err := a.newSize(o, args)
		if err != nil || n == 0 {
			return err
		}
		return a.extend(g, lv, n, o, args[1:])
	}
	return c
}

func (a lvSizing) lvresize() *cobra.Command {
	var o resizeFlags
	c := &cobra.Command{Use: "lvresize [-L|-l] [+|-]SIZE VG/LV [PV...]", Short: "Make a logical volume larger or smaller", Args: cobra.MinimumNArgs(1)}
	o.add(c.Flags())
	c.RunE = func(cmd *cobra.Command, args []string) error {
		g, lv, n, err := a.newSize(o, args)
		if err != nil || n == 0 {
			return err
		}
		switch is := lv.Extents(); {
		case n == is:
			return fmt.Errorf("%s has %d extents already", args[0], n)
		case n > is:
			return a.extend(g, lv, n, o, args[1:])
		case len(args) > 1:
			return usage.Errorf("%s becomes smaller: leave the physical volumes out", args[0])
		}
		return a.reduce(cmd.Context(), g, lv, n)
	}
	return c
}

func (a lvSizing) lvreduce() *cobra.Command {
	var s sizing
	c := &cobra.Command{Use: "lvreduce [-L|-l] [-]SIZE VG/LV", Short: "Make a logical volume smaller", Args: cobra.ExactArgs(1)}
	c.Flags().StringVarP(&s.size, "size", "L", "", "new size, or -SIZE")
	c.Flags().StringVarP(&s.extents, "extents", "l", "", "new size in extents")
	c.RunE = func(cmd *cobra.Command, args []string) error {
		g, lv, err := a.lv(args[0])
		if err != nil {
			return err
		}
		n, err := a.extents(g, s, lv.Extents(), 0)
		if err != nil {
			return err
		}
		return a.reduce(cmd.Context(), g, lv, n)
	}
	return c
}

// newSize opens the volume that args begin with, gives a pool's metadata its new
// size and returns the extents that the volume is to have: 0 if it is to stay.
func (a lvSizing) newSize(o resizeFlags, args []string) (*lvm.Group, *meta.LV, uint64, error) {
	g, lv, err := a.lv(args[0])
	if err != nil {
		return nil, nil, 0, err
	}
	if o.metaSize != "" {
		v := g.Metadata()
		if len(lv.Segments) == 0 || lv.Segments[0].Type != meta.ThinPool {
			return nil, nil, 0, fmt.Errorf("%s is no thin pool", args[0])
		}
		n, err := a.extents(g, sizing{size: o.metaSize}, v.LV(lv.Segments[0].Metadata).Extents(), 0)
		if err != nil {
			return nil, nil, 0, err
		}
		if err := g.ExtendPoolMetadata(lv.Name, n, a.why()); err != nil {
			return nil, nil, 0, err
		}
		if o.sizing == (sizing{}) {
			a.say("Logical volume %s successfully resized.", args[0])
			return g, lv, 0, nil
		}
	}
	if o.sizing == (sizing{}) && len(args) > 1 {
		o.extents = "+100%FREE"
	}
	n, err := a.extents(g, o.sizing, lv.Extents(), 0)
	if o.stripes == 0 {
		o.stripes = stripesAtEnd(g.Metadata(), lv)
	}
	return g, lv, o.whole(n, lv.Extents(), o.stripes), err
}

// stripesAtEnd is how many stripes a volume goes on with; a pool, as its data does.
func stripesAtEnd(v *meta.VG, lv *meta.LV) int {
	k := len(lv.Segments)
	switch {
	case k == 0:
		return 0
	case lv.Segments[0].Type == meta.ThinPool:
		if data := v.LV(lv.Segments[0].Pool); data != nil && data != lv {
			return stripesAtEnd(v, data)
		}
	}
	return len(lv.Segments[k-1].Stripes)
}

// extend gives a volume n extents, the new ones from pvs if there are any.
func (a lvSizing) extend(g *lvm.Group, lv *meta.LV, n uint64, o resizeFlags, pvs []string) error {
	var from []vg.Range
	if err := g.VG(func(x *vg.Group) (err error) { from, err = ranges(x, pvs); return err }); err != nil {
		return err
	}
	was := lv.Extents()
	if err := g.Extend(lv.Name, lvm.ExtendOptions{Extents: n, Stripes: o.stripes, Policy: o.alloc, From: from}, a.why()); err != nil {
		return err
	}
	a.resized(g, lv.Name, was)
	return nil
}

// reduce cuts a volume to n extents.
func (a lvSizing) reduce(ctx context.Context, g *lvm.Group, lv *meta.LV, n uint64) error {
	if err := a.ask(ctx, "reducing %s/%s destroys the data beyond the new end: really reduce it?", g.Metadata().Name, lv.Name); err != nil {
		return err
	}
	ctx, stop := context.WithTimeout(ctx, patience)
	defer stop()
	was := lv.Extents()
	if err := g.Reduce(ctx, lv.Name, n, a.why()); err != nil {
		return err
	}
	a.resized(g, lv.Name, was)
	return nil
}

// resized prints what lvm2 says after a change of size.
func (a lvSizing) resized(g *lvm.Group, name string, was uint64) {
	v := g.Metadata()
	es, now := v.ExtentSize*512, v.LV(name).Extents()
	a.say("Size of logical volume %s/%s changed from %s (%d extents) to %s (%d extents).", v.Name, name, sizeWords(was*es), was, sizeWords(now*es), now)
	a.say("Logical volume %s/%s successfully resized.", v.Name, name)
}
