package lvm

import (
	"fmt"
	"slices"
	"strings"

	"softiser/lvm/internal/ondisk"
	"softiser/lvm/meta"
	"softiser/lvm/thin"
	"softiser/lvm/vg"
)

// thinPools is the part of a Group that has thin pools and their volumes: it activates
// them, and keeps the metadata of a pool in step with that of the group. The group's mu
// is held.
type thinPools struct {
	md  *metadata
	act *activeSet
}

// buildPool activates a thin pool with its data and metadata volumes.
func (ps *thinPools) buildPool(n *node, lv *meta.LV, seg *meta.Segment) error {
	var devs [2]*node
	for i, name := range []string{seg.Metadata, seg.Pool} {
		o, err := ps.act.activate(ps.md.group.VG.LV(name))
		if err != nil {
			return err
		}
		n.on = append(n.on, o)
		devs[i] = o
	}
	label := ps.md.group.VG.Name + "/" + lv.Name // as it is now: the pool tells things at any time, without the group's lock
	p, err := thin.Open(thin.Config{
		Meta: devs[0].top, Data: devs[1].top, ChunkSize: int64(seg.ChunkSize) * ondisk.SectorSize, Zero: seg.ZeroNew,
		// Blank metadata means a new pool only as long as the group knows of no transaction; later it means a loss.
		NoFormat: seg.TransactionID != 0,
		Discard:  seg.Discards == "passdown" || seg.Discards == "", NoDiscard: seg.Discards == "ignore",
		ErrorWhenFull: lv.Is("ERROR_WHEN_FULL"), Pool: ps.md.cfg.Pool, FullWait: ps.md.cfg.FullWait,
		Notice: func(s string) { ps.md.cfg.notice("%s: %s", label, s) },
	})
	if err != nil {
		return err
	}
	if err := ps.agree(p, lv); err != nil {
		return err
	}
	n.pool = p
	n.close = p.Close
	return nil
}

// PoolOptions describe a new thin pool.
type PoolOptions struct {
	Name          string     // "" picks lvol0, lvol1, ...
	Extents       uint64     // of the data volume
	MetaExtents   uint64     // 0: as lvm2 chooses
	Chunk         int64      // bytes; 0: as lvm2 chooses
	NoZero        bool       // chunks are not zeroed before a part of them is written
	Discards      string     // ignore, nopassdown or passdown; "" is passdown
	ErrorWhenFull bool       // writes to a full pool fail at once
	NoSpare       bool       // no spare metadata volume for a repair
	Policy        string     // as that of CreateOptions, like From
	From          []vg.Range // where data and metadata may lie
	Stripes       int        // of the data volume, as in CreateOptions
	StripeSize    uint64     // sectors; 0 as there
}

// lvm2's limits for the metadata of a pool, bytes.
const (
	minPoolMeta     = 2 << 20
	optimalPoolMeta = 128 << 20
	maxPoolMeta     = thin.MaxMetadata * 4096
	metaPerChunk    = 64
)

// PoolGeometry is what lvm2 chooses for a pool of data bytes, in bytes: chunks of 64 KiB (or
// of chunk, unless that is 0) unless the metadata would exceed 128 MiB, and 64 bytes of
// metadata for each chunk.
func PoolGeometry(data int64, chunk int64) (chunkSize, metadata int64) {
	if chunk == 0 {
		chunk = 64 << 10
		for data/chunk*metaPerChunk > optimalPoolMeta && chunk < 1<<30 {
			chunk *= 2
		}
	}
	return chunk, min(max(data/chunk*metaPerChunk, minPoolMeta), maxPoolMeta)
}

// CreatePool is lvcreate --type thin-pool.
func (g *Group) CreatePool(o PoolOptions, why string) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.pools.createPool(o, why)
}

// createPool makes the pool with its hidden volumes.
func (ps *thinPools) createPool(o PoolOptions, why string) error {
	next := ps.md.group.VG.Clone()
	pool, err := ps.md.newLV(next, o.Name)
	if err != nil {
		return err
	}
	extent := int64(next.ExtentSize) * ondisk.SectorSize
	o.Extents = wholeStripes(o.Extents, o.Stripes)
	chunk, size := PoolGeometry(int64(o.Extents)*extent, o.Chunk)
	if chunk < 64<<10 || chunk > 1<<30 || chunk%(64<<10) != 0 {
		return fmt.Errorf("thin pool chunk size of %d bytes: must be a multiple of 64 KiB up to 1 GiB", chunk)
	}
	if o.MetaExtents == 0 {
		o.MetaExtents = uint64((size + extent - 1) / extent)
	}
	if o.Discards == "" {
		o.Discards = "passdown"
	}
	if !slices.Contains([]string{"ignore", "nopassdown", "passdown"}, o.Discards) {
		return fmt.Errorf("discards %q is none of ignore, nopassdown, passdown", o.Discards)
	}
	stripe, err := stripeSize(o.StripeSize, o.Stripes, next.ExtentSize)
	if err != nil {
		return err
	}
	tdata, err := ps.part(next, pool.Name+"_tdata", vg.Request{Extents: o.Extents, Policy: o.Policy, From: o.From, Stripes: o.Stripes, StripeSize: stripe})
	if err != nil {
		return err
	}
	tmeta, err := ps.part(next, pool.Name+"_tmeta", vg.Request{Extents: o.MetaExtents, Policy: o.Policy, From: o.From})
	if err != nil {
		return err
	}
	if err := ps.spare(next, o.MetaExtents, o.NoSpare); err != nil {
		return err
	}
	pool.SetFlag("ERROR_WHEN_FULL", o.ErrorWhenFull)
	pool.Segments = []*meta.Segment{{Count: tdata.Extents(), Type: meta.ThinPool, Metadata: tmeta.Name, Pool: tdata.Name,
		ChunkSize: uint64(chunk / ondisk.SectorSize), Discards: o.Discards, ZeroNew: !o.NoZero}}
	next.LVs = append(next.LVs, pool)
	if err := ps.act.usable(next, tdata); err != nil {
		return err
	}
	if err := ps.act.zeroNew(next, tmeta, 4096); err != nil {
		return err
	}
	return ps.md.commit(next, why)
}

// part adds a hidden LV.
func (ps *thinPools) part(next *meta.VG, name string, r vg.Request) (*meta.LV, error) {
	segs, err := vg.Allocate(next, r)
	if err != nil {
		return nil, err
	}
	lv := ps.md.bareLV(name, false)
	vg.Append(lv, segs)
	next.LVs = append(next.LVs, lv)
	return lv, nil
}

// spare keeps a volume as large as the largest pool metadata, which lvm2's
// repair of a pool needs. Without room for one the pool is made all the same.
func (ps *thinPools) spare(next *meta.VG, extents uint64, none bool) error {
	if none {
		return nil
	}
	for _, lv := range next.LVs {
		if strings.HasSuffix(lv.Name, "_pmspare") {
			if have := lv.Extents(); have < extents {
				return extendSegments(next, lv, ExtendOptions{Extents: extents})
			}
			return nil
		}
	}
	for i := 0; ; i++ {
		name := fmt.Sprintf("lvol%d_pmspare", i)
		if next.LV(name) == nil {
			_, err := ps.part(next, name, vg.Request{Extents: extents})
			return err
		}
	}
}

// removePool removes an empty thin pool with its data and metadata volumes.
func (ps *thinPools) removePool(lv *meta.LV, why string) error {
	if err := ps.act.idle(lv); err != nil {
		return err
	}
	next := ps.md.group.VG.Clone()
	for _, o := range next.LVs {
		if len(o.Segments) > 0 && o.Segments[0].Type == meta.Thin && o.Segments[0].Pool == lv.Name {
			return fmt.Errorf("cannot remove thin pool %s/%s: %s is in it", next.Name, lv.Name, o.Name)
		}
	}
	seg := lv.Segments[0]
	for _, name := range []string{lv.Name, seg.Metadata, seg.Pool} {
		next.RemoveLV(next.LV(name))
	}
	pools := slices.ContainsFunc(next.LVs, func(o *meta.LV) bool {
		return len(o.Segments) > 0 && (o.Segments[0].Type == meta.ThinPool || !o.Segments[0].Known())
	})
	if !pools {
		for _, o := range slices.Clone(next.LVs) {
			if strings.HasSuffix(o.Name, "_pmspare") {
				next.RemoveLV(o)
			}
		}
	}
	return ps.md.commit(next, why)
}

// growPool extends the data volume of a pool; writes that wait for space go on.
func (ps *thinPools) growPool(next *meta.VG, lv *meta.LV, o ExtendOptions, why string) error {
	seg := lv.Segments[0]
	tdata := next.LV(seg.Pool)
	o.Stripes = 0 // as many as its data has
	if err := extendSegments(next, tdata, o); err != nil {
		return err
	}
	seg.Count = tdata.Extents()
	return ps.grown(next, lv, tdata, why)
}

// ExtendPoolMetadata is lvextend --poolmetadatasize: to extents in all.
func (g *Group) ExtendPoolMetadata(name string, extents uint64, why string) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.pools.extendMetadata(name, extents, why)
}

// extendMetadata makes the hidden volume of a pool's metadata larger.
func (ps *thinPools) extendMetadata(name string, extents uint64, why string) error {
	next := ps.md.group.VG.Clone()
	lv, err := lookup(next, name)
	if err != nil {
		return err
	}
	if len(lv.Segments) != 1 || lv.Segments[0].Type != meta.ThinPool {
		return fmt.Errorf("%s/%s is no thin pool", next.Name, name)
	}
	tmeta := next.LV(lv.Segments[0].Metadata)
	if have := tmeta.Extents(); extents <= have {
		return fmt.Errorf("the metadata of %s/%s has %d extents already", next.Name, name, have)
	}
	if err := extendSegments(next, tmeta, ExtendOptions{Extents: extents}); err != nil {
		return err
	}
	return ps.grown(next, lv, tmeta, why)
}

func (ps *thinPools) grown(next *meta.VG, lv, part *meta.LV, why string) error {
	if err := ps.act.grown(next, part, why); err != nil {
		return err
	}
	if n := ps.act.nodes[lv.ID]; n != nil {
		return n.pool.Grow()
	}
	return nil
}

// with runs f on a pool, which is active as long.
func (ps *thinPools) with(name string, f func(*thin.Pool) error) error {
	lv, err := lookup(ps.md.group.VG, name)
	if err != nil {
		return err
	}
	if len(lv.Segments) != 1 || lv.Segments[0].Type != meta.ThinPool {
		return fmt.Errorf("%s/%s is no thin pool", ps.md.group.VG.Name, name)
	}
	n, err := ps.act.activate(lv)
	if err != nil {
		return err
	}
	defer ps.act.deactivate(n)
	return f(n.pool)
}
