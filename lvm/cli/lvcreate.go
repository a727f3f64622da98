package cli

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"softiser/internal/usage"
	"softiser/lvm"
	"softiser/lvm/meta"
	"softiser/lvm/vg"
)

// lvcreateFlags are the options of lvcreate.
type lvcreateFlags struct {
	sizing
	name, virtual, typ, alloc, perm   string
	stripes                           int
	stripeSize, chunk, metaSize       string
	snapshot, thin, contiguous        bool
	thinPool, discards, errorWhenFull string
	zero, wipe, skip, spare, active   string
	ignoreSkip                        bool
	tags                              []string
}

// lvCreation is lvcreate.
type lvCreation struct{ *app }

// lvcreate has lvm2's options; what they ask for together is decided in create.
func (a lvCreation) lvcreate() *cobra.Command {
	var o lvcreateFlags
	c := &cobra.Command{Use: "lvcreate [options] VG[/LV|/POOL] [PV...]", Short: "Create a logical volume, snapshot or thin pool", Args: cobra.ArbitraryArgs}
	f := c.Flags()
	f.StringVarP(&o.size, "size", "L", "", "size")
	f.StringVarP(&o.extents, "extents", "l", "", "size in extents, or a percentage like 50%FREE")
	f.StringVarP(&o.name, "name", "n", "", "name")
	f.StringVarP(&o.virtual, "virtualsize", "V", "", "virtual size of a thin volume")
	f.StringVar(&o.typ, "type", "", "linear, striped, snapshot, thin, thin-pool")
	f.StringVar(&o.alloc, "alloc", "", "allocation policy: contiguous, cling, normal, anywhere, inherit")
	f.StringVarP(&o.perm, "permission", "p", "rw", "r or rw")
	f.VarP((*stripeCount)(&o.stripes), "stripes", "i", "number of stripes")
	f.StringVarP(&o.stripeSize, "stripesize", "I", "", "stripe size (default 64k)")
	f.StringVarP(&o.chunk, "chunksize", "c", "", "chunk size of a snapshot or thin pool")
	f.StringVar(&o.metaSize, "poolmetadatasize", "", "size of a thin pool's metadata")
	f.BoolVarP(&o.snapshot, "snapshot", "s", false, "a snapshot of VG/LV")
	f.BoolVarP(&o.thin, "thin", "T", false, "a thin pool or thin volume")
	f.StringVar(&o.thinPool, "thinpool", "", "the pool of a thin volume, or the new pool's name")
	f.StringVar(&o.discards, "discards", "", "ignore, nopassdown, passdown")
	f.StringVar(&o.errorWhenFull, "errorwhenfull", "n", "y: writes to a full pool fail at once")
	f.BoolVarP(&o.contiguous, "contiguous", "C", false, "the same as --alloc contiguous")
	f.StringVarP(&o.zero, "zero", "Z", "y", "y or n: zero the first 4 KiB, or new blocks of a thin pool")
	f.StringVarP(&o.wipe, "wipesignatures", "W", "y", "y or n, accepted; the first 4 KiB are zeroed")
	f.StringVarP(&o.skip, "setactivationskip", "k", "", "y or n: set the flag that skips activation")
	f.BoolVarP(&o.ignoreSkip, "ignoreactivationskip", "K", false, "accepted")
	f.StringVar(&o.spare, "poolmetadataspare", "y", "y or n: keep a spare for pool metadata")
	f.StringVarP(&o.active, "activate", "a", "y", "accepted; volumes are active while they are served")
	f.StringSliceVar(&o.tags, "addtag", nil, "tag")
	c.RunE = func(cmd *cobra.Command, args []string) error { return a.create(cmd, o, args) }
	return c
}

// kind settles what is to be made.
func (o *lvcreateFlags) kind(x *meta.VG, lv string) (string, error) {
	if o.typ != "" {
		return o.typ, nil
	}
	switch target := x.LV(lv); {
	case o.snapshot && o.virtual != "":
		return "", fmt.Errorf("sparse snapshots are not made; use a thin volume")
	case o.snapshot:
		if target != nil && len(target.Segments) > 0 && target.Segments[0].Type == meta.Thin && o.size == "" && o.extents == "" {
			return "thin-snapshot", nil
		}
		return meta.Snapshot, nil
	case o.virtual != "":
		return meta.Thin, nil
	case o.thin || o.thinPool != "":
		return meta.ThinPool, nil
	}
	return "linear", nil
}

// create finds out which kind of volume is asked for, and creates it.
func (a lvCreation) create(cmd *cobra.Command, o lvcreateFlags, args []string) error {
	if len(args) == 0 {
		return usage.Errorf("name the volume group")
	}
	target, pvs := args[0], args[1:]
	group, lv, _ := strings.Cut(strings.TrimPrefix(target, "/dev/"), "/")
	for _, name := range []*string{&o.name, &o.thinPool} {
		if *name == "" {
			continue
		}
		var err error
		if *name, err = nameIn(group, *name); err != nil {
			return err
		}
	}
	g, err := a.group(group)
	if err != nil {
		return err
	}
	if o.contiguous {
		o.alloc = "contiguous"
	}
	kind, err := o.kind(g.Metadata(), lv)
	if err != nil {
		return err
	}
	var from []vg.Range
	if err := g.VG(func(x *vg.Group) error { from, err = ranges(x, pvs); return err }); err != nil {
		return err
	}
	before := map[string]bool{}
	for _, l := range g.Metadata().LVs {
		before[l.Name] = true
	}
	ctx := cmd.Context()
	switch kind {
	case "linear", "striped":
		err = a.createPlain(g, o, from)
	case meta.Snapshot:
		err = a.createSnapshot(cmd, g, o, lv, from)
	case "thin-snapshot":
		err = g.CreateThin(ctx, lvm.ThinOptions{Name: o.name, Origin: lv, Tags: o.tags, ReadOnly: o.perm == "r", NoSkip: o.skip == "n"}, a.why())
	case meta.ThinPool:
		err = a.createPool(g, &o, lv, from)
		if err == nil && o.virtual != "" {
			err = a.createThin(cmd, g, o, o.thinPool)
		}
	case meta.Thin:
		err = a.thinMaybePool(cmd, g, o, lv, from)
	default:
		return fmt.Errorf("type %q is left to lvm2; linear, striped, snapshot, thin and thin-pool are made here", kind)
	}
	if err != nil {
		return err
	}
	v := g.Metadata()
	for _, l := range v.LVs {
		if !before[l.Name] && v.Shown(l) {
			a.say("Logical volume %q created.", l.Name)
		}
	}
	return nil
}

func (a *app) extents(g *lvm.Group, s sizing, base, origin uint64) (n uint64, err error) {
	err = g.VG(func(x *vg.Group) error { n, err = s.resolve(a, x, base, origin); return err })
	return n, err
}

// sectors reads an optional size.
func sectors(s string) (uint64, error) {
	n, err := byteCount(s)
	return n / 512, err
}

// stripeCount is a number of stripes that lvm2 takes; 0, which it does not take, stands for none.
type stripeCount int

func (n *stripeCount) Set(s string) error {
	v, err := strconv.Atoi(s)
	if err != nil || v < 1 || v > 128 {
		return errors.New("want 1 to 128 stripes")
	}
	*n = stripeCount(v)
	return nil
}

func (n *stripeCount) String() string {
	if *n == 0 {
		return ""
	}
	return strconv.Itoa(int(*n))
}

func (n *stripeCount) Type() string { return "int" }

func byteCount(s string) (uint64, error) {
	if s == "" {
		return 0, nil
	}
	// Bare numbers of chunk and stripe sizes are KiB.
	if last := s[len(s)-1]; last >= '0' && last <= '9' {
		s += "k"
	}
	m, err := parseSize(s)
	return m.bytes, err
}

func (a lvCreation) createPlain(g *lvm.Group, o lvcreateFlags, from []vg.Range) error {
	n, err := a.extents(g, o.sizing, 0, 0)
	if err != nil {
		return err
	}
	ss, err := sectors(o.stripeSize)
	if err != nil {
		return err
	}
	if o.typ == "striped" && o.stripes == 0 {
		o.stripes = 2
	}
	if o.stripes > 1 && ss == 0 {
		a.say("Using default stripesize %s.", sizeWords(lvm.DefaultStripe*512))
	}
	return g.Create(lvm.CreateOptions{Name: o.name, Extents: o.whole(n, 0, o.stripes), Stripes: o.stripes, StripeSize: ss, Policy: o.alloc, From: from,
		Tags: o.tags, ReadOnly: o.perm == "r", NoZero: o.zero == "n"}, a.why())
}

// sizeWords is lvm2's long form: "64.00 KiB".
func sizeWords(n uint64) string {
	s := display(n, 'h', true)
	return s[:len(s)-1] + " " + strings.ToUpper(s[len(s)-1:]) + "iB"
}

func (a lvCreation) createSnapshot(cmd *cobra.Command, g *lvm.Group, o lvcreateFlags, origin string, from []vg.Range) error {
	if origin == "" {
		return usage.Errorf("name the origin as VG/LV")
	}
	v := g.Metadata()
	lv := v.LV(origin)
	if lv == nil {
		return fmt.Errorf("failed to find logical volume \"%s/%s\"", v.Name, origin)
	}
	n, err := a.extents(g, o.sizing, 0, lv.Extents())
	if err != nil {
		return err
	}
	chunk, err := byteCount(o.chunk)
	if err != nil {
		return err
	}
	return g.Snapshot(cmd.Context(), lvm.SnapshotOptions{Origin: origin, Name: o.name, Extents: n, Chunk: int64(chunk), Policy: o.alloc, From: from, Tags: o.tags,
		ReadOnly: o.perm == "r"}, a.why())
}

// createPool creates a thin pool with its metadata volume, whose size follows from the
// pool's as lvm2's does.
func (a lvCreation) createPool(g *lvm.Group, o *lvcreateFlags, lv string, from []vg.Range) error {
	n, err := a.extents(g, o.sizing, 0, 0)
	if err != nil {
		return err
	}
	name := o.thinPool
	switch {
	case name != "":
	case lv != "":
		name = lv
	case o.virtual == "":
		name = o.name
	}
	chunk, err := byteCount(o.chunk)
	if err != nil {
		return err
	}
	ss, err := sectors(o.stripeSize)
	if err != nil {
		return err
	}
	p := lvm.PoolOptions{Name: name, Extents: o.whole(n, 0, o.stripes), Chunk: int64(chunk), NoZero: o.zero == "n", Discards: o.discards,
		ErrorWhenFull: o.errorWhenFull == "y", NoSpare: o.spare == "n", Policy: o.alloc, From: from, Stripes: o.stripes, StripeSize: ss}
	if o.metaSize != "" {
		if p.MetaExtents, err = a.extents(g, sizing{size: o.metaSize}, 0, 0); err != nil {
			return err
		}
	}
	before := g.Metadata()
	if err := g.CreatePool(p, a.why()); err != nil {
		return err
	}
	for _, l := range g.Metadata().LVs {
		if before.LV(l.Name) == nil && len(l.Segments) > 0 && l.Segments[0].Type == meta.ThinPool {
			o.thinPool = l.Name
		}
	}
	return nil
}

func (a lvCreation) createThin(cmd *cobra.Command, g *lvm.Group, o lvcreateFlags, pool string) error {
	n, err := a.extents(g, sizing{size: o.virtual}, 0, 0)
	if err != nil {
		return err
	}
	return g.CreateThin(cmd.Context(), lvm.ThinOptions{Pool: pool, Name: o.name, Extents: n, Tags: o.tags, ReadOnly: o.perm == "r"}, a.why())
}

// thinMaybePool makes a thin volume, and its pool first when a size for one is
// given.
func (a lvCreation) thinMaybePool(cmd *cobra.Command, g *lvm.Group, o lvcreateFlags, lv string, from []vg.Range) error {
	pool := o.thinPool
	if pool == "" {
		pool = lv
	}
	if o.size != "" || o.extents != "" {
		if err := a.createPool(g, &o, pool, from); err != nil {
			return err
		}
		pool = o.thinPool
	}
	if pool == "" {
		return usage.Errorf("name the pool as VG/POOL, or give the size of a new one: --size or --extents")
	}
	return a.createThin(cmd, g, o, pool)
}
