package lvm

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"strings"

	"softiser/blockdev"
	"softiser/lvm/internal/ondisk"
	"softiser/lvm/internal/swap"
	"softiser/lvm/meta"
	"softiser/lvm/thin"
	"softiser/lvm/vg"
)

// A change of a thin pool touches two sets of metadata. As lvm2 does, the group
// is committed first, with a message that says what is to be done and a
// transaction id one higher; then the pool does it and takes that id; then the
// message goes. A pool that is opened with a message left does what is missing.

// buildPool activates a thin pool with its data and metadata volumes.
func (g *Group) buildPool(n *node, lv *meta.LV, seg *meta.Segment) error {
	var devs [2]*node
	for i, name := range []string{seg.Metadata, seg.Pool} {
		o, err := g.activate(g.g.VG.LV(name))
		if err != nil {
			return err
		}
		n.on = append(n.on, o)
		devs[i] = o
	}
	p, err := thin.Open(thin.Config{
		Meta: devs[0].top, Data: devs[1].top, ChunkSize: int64(seg.ChunkSize) * ondisk.SectorSize, Zero: seg.ZeroNew,
		Discard: seg.Discards == "passdown" || seg.Discards == "", NoDiscard: seg.Discards == "ignore",
		ErrorWhenFull: lv.Is("ERROR_WHEN_FULL"), Pool: g.cfg.Pool, FullWait: g.cfg.FullWait,
		Notice: func(s string) { g.cfg.notice("%s/%s: %s", g.g.VG.Name, n.name, s) },
	})
	if err != nil {
		return err
	}
	if err := g.replay(p, lv, seg); err != nil {
		return err
	}
	n.pool = p
	n.close = p.Close
	return nil
}

// replay does what messages ask for that the pool has not done yet.
func (g *Group) replay(p *thin.Pool, lv *meta.LV, seg *meta.Segment) error {
	have := p.Transaction()
	if len(seg.Messages) == 0 && have == seg.TransactionID {
		return nil
	}
	if have != seg.TransactionID && (len(seg.Messages) == 0 || have+1 != seg.TransactionID) {
		return fmt.Errorf("pool has transaction %d, the volume group says %d: one of them is from another time", have, seg.TransactionID)
	}
	if have != seg.TransactionID {
		for _, m := range seg.Messages {
			if err := g.do(p, m, seg.TransactionID); err != nil {
				return fmt.Errorf("finishing an interrupted change: %w", err)
			}
		}
	}
	next := g.g.VG.Clone()
	next.LV(lv.Name).Segments[0].Messages = nil
	return g.commit(next, "finishing an interrupted change of "+lv.Name)
}

func (g *Group) do(p *thin.Pool, m meta.Message, id uint64) error {
	if m.Create == "" {
		return p.Delete(m.Delete, id)
	}
	lv := g.g.VG.LV(m.Create)
	if lv == nil || len(lv.Segments) == 0 || lv.Segments[0].Type != meta.Thin {
		return fmt.Errorf("message names %q, which is no thin volume", m.Create)
	}
	seg := lv.Segments[0]
	if o := g.g.VG.LV(seg.Origin); o != nil && seg.Origin != "" {
		return p.Snapshot(seg.DeviceID, o.Segments[0].DeviceID, id)
	}
	return p.Create(seg.DeviceID, id)
}

// buildThin activates a thin volume.
func (g *Group) buildThin(n *node, lv *meta.LV, seg *meta.Segment) error {
	if seg.External != "" {
		return fmt.Errorf("%w: thin volume with the external origin %s", ErrNotServed, seg.External)
	}
	if len(lv.Segments) != 1 {
		return fmt.Errorf("%w: thin volume of %d segments", ErrNotServed, len(lv.Segments))
	}
	pool, err := g.activate(g.g.VG.LV(seg.Pool))
	if err != nil {
		return err
	}
	n.on = append(n.on, pool)
	d, err := pool.pool.Device(seg.DeviceID, g.bytes(seg.Count), lv.ID.String(), !lv.Is("WRITE"))
	if err != nil {
		return err
	}
	n.pool = pool.pool
	n.top = swap.New(d, g.cfg.Pool)
	n.close = n.top.Close
	return nil
}

// PoolOptions describe a new thin pool.
type PoolOptions struct {
	Name          string
	Extents       uint64 // of the data volume
	MetaExtents   uint64 // 0: as lvm2 chooses
	Chunk         int64  // bytes; 0: as lvm2 chooses
	NoZero        bool
	Discards      string // "" is passdown
	ErrorWhenFull bool
	NoSpare       bool
	Policy        string
	From          []vg.Range
	Stripes       int
	StripeSize    uint64
}

// lvm2's limits for the metadata of a pool, bytes.
const (
	minPoolMeta     = 2 << 20
	optimalPoolMeta = 128 << 20
	maxPoolMeta     = thin.MaxMetadata * 4096
	metaPerChunk    = 64
)

// PoolGeometry is what lvm2 chooses: chunks of 64 KiB unless the metadata would
// exceed 128 MiB, and 64 bytes of metadata for each chunk.
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
	next := g.g.VG.Clone()
	pool, err := g.newLV(next, o.Name, "lvol")
	if err != nil {
		return err
	}
	extent := int64(next.ExtentSize) * ondisk.SectorSize
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
	tdata, err := g.part(next, pool.Name+"_tdata", vg.Request{Extents: o.Extents, Policy: o.Policy, From: o.From, Stripes: o.Stripes, StripeSize: o.StripeSize})
	if err != nil {
		return err
	}
	tmeta, err := g.part(next, pool.Name+"_tmeta", vg.Request{Extents: o.MetaExtents, Policy: o.Policy, From: o.From})
	if err != nil {
		return err
	}
	if err := g.spare(next, o.MetaExtents, o.NoSpare); err != nil {
		return err
	}
	pool.SetFlag("ERROR_WHEN_FULL", o.ErrorWhenFull)
	pool.Segments = []*meta.Segment{{Count: tdata.Extents(), Type: meta.ThinPool, Metadata: tmeta.Name, Pool: tdata.Name,
		ChunkSize: uint64(chunk / ondisk.SectorSize), Discards: o.Discards, ZeroNew: !o.NoZero}}
	next.LVs = append(next.LVs, pool)
	if err := g.zeroNew(next, tmeta, 4096); err != nil {
		return err
	}
	return g.commit(next, why)
}

// part adds a hidden LV.
func (g *Group) part(next *meta.VG, name string, r vg.Request) (*meta.LV, error) {
	segs, err := vg.Allocate(next, r)
	if err != nil {
		return nil, err
	}
	lv := g.bareLV(name, false)
	vg.Append(lv, segs)
	next.LVs = append(next.LVs, lv)
	return lv, nil
}

// spare keeps a volume as large as the largest pool metadata, which lvm2's
// repair of a pool needs. Without room for one the pool is made all the same.
func (g *Group) spare(next *meta.VG, extents uint64, none bool) error {
	if none {
		return nil
	}
	for _, lv := range next.LVs {
		if strings.HasSuffix(lv.Name, "_pmspare") {
			if have := lv.Extents(); have < extents {
				return extendSegments(next, lv, extents, "", 0, nil)
			}
			return nil
		}
	}
	for i := 0; ; i++ {
		name := fmt.Sprintf("lvol%d_pmspare", i)
		if next.LV(name) == nil {
			_, err := g.part(next, name, vg.Request{Extents: extents})
			return err
		}
	}
}

// ThinOptions describe a new thin volume.
type ThinOptions struct {
	Pool    string
	Name    string
	Extents uint64 // virtual size
	Origin  string // a snapshot of this thin volume, of its size
	Tags    []string
	NoSkip  bool // do not set the activation skip flag that lvm2 gives thin snapshots
}

// CreateThin is lvcreate -V (a new thin volume) or lvcreate -s (a snapshot of
// one, for which write leases are waited for until ctx ends).
func (g *Group) CreateThin(ctx context.Context, o ThinOptions, why string) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	next := g.g.VG.Clone()
	lv, err := g.newLV(next, o.Name, "lvol")
	if err != nil {
		return err
	}
	lv.Tags = o.Tags
	seg := &meta.Segment{Count: o.Extents, Type: meta.Thin, Pool: o.Pool, Origin: o.Origin}
	if o.Origin != "" {
		origin, err := lookup(next, o.Origin)
		if err != nil {
			return err
		}
		if len(origin.Segments) != 1 || origin.Segments[0].Type != meta.Thin {
			return fmt.Errorf("%s/%s is no thin volume", next.Name, o.Origin)
		}
		seg.Pool, seg.Count = origin.Segments[0].Pool, origin.Segments[0].Count
		lv.SetFlag("ACTIVATION_SKIP", !o.NoSkip)
	}
	if seg.Count == 0 {
		return fmt.Errorf("thin volume %s/%s needs a virtual size", next.Name, lv.Name)
	}
	pool, err := lookup(next, seg.Pool)
	if err != nil {
		return err
	}
	if len(pool.Segments) != 1 || pool.Segments[0].Type != meta.ThinPool {
		return fmt.Errorf("%s/%s is no thin pool", next.Name, seg.Pool)
	}
	if seg.DeviceID, err = freeDevice(next, seg.Pool); err != nil {
		return err
	}
	seg.TransactionID = pool.Segments[0].TransactionID
	lv.Segments = []*meta.Segment{seg}
	next.LVs = append(next.LVs, lv)
	if o.Origin != "" {
		if n := g.nodes[next.LV(o.Origin).ID]; n != nil {
			f, err := n.top.Freeze(ctx)
			if err != nil {
				return fmt.Errorf("snapshot of %s: %w: write leases are open (%w)", o.Origin, blockdev.ErrInUse, err)
			}
			defer f.Thaw(nil)
			// What was acknowledged belongs to the snapshot.
			if err := n.top.Flush(); err != nil {
				return err
			}
		}
	}
	return g.changePool(next, pool.Name, meta.Message{Create: lv.Name}, nil, why)
}

func freeDevice(v *meta.VG, pool string) (uint64, error) {
	var id uint64
	for _, lv := range v.LVs {
		for _, s := range lv.Segments {
			if s.Type == meta.Thin && s.Pool == pool {
				id = max(id, s.DeviceID)
			}
		}
	}
	if id++; bits.Len64(id) > 24 {
		return 0, fmt.Errorf("thin pool %s has no device id left", pool)
	}
	return id, nil
}

// changePool commits next with a message, runs then if not nil, has the pool do
// what the message says, and commits without it. g.mu is held.
func (g *Group) changePool(next *meta.VG, pool string, m meta.Message, then func() error, why string) error {
	n, err := g.activate(g.g.VG.LV(pool))
	if err != nil {
		return err
	}
	defer g.deactivate(n)
	seg := next.LV(pool).Segments[0]
	seg.TransactionID++
	seg.Messages = []meta.Message{m}
	if err := g.commit(next, why); err != nil {
		return err
	}
	if then != nil {
		if err := then(); err != nil {
			return err
		}
	}
	if err := g.do(n.pool, m, seg.TransactionID); err != nil {
		return fmt.Errorf("thin pool %s: %w (it is tried again when the pool is next opened)", pool, err)
	}
	last := g.g.VG.Clone()
	last.LV(pool).Segments[0].Messages = nil
	return g.commit(last, why)
}

func (g *Group) removeThin(lv *meta.LV, why string) error {
	if err := g.idle(lv); err != nil {
		return err
	}
	next := g.g.VG.Clone()
	seg := next.LV(lv.Name).Segments[0]
	next.RemoveLV(next.LV(lv.Name))
	for _, o := range next.LVs {
		for _, s := range o.Segments {
			if s.Type == meta.Thin && s.Origin == lv.Name {
				s.Origin = "" // its snapshots stand on their own
			}
		}
	}
	return g.changePool(next, seg.Pool, meta.Message{Delete: seg.DeviceID}, nil, why)
}

func (g *Group) removePool(lv *meta.LV, why string) error {
	if err := g.idle(lv); err != nil {
		return err
	}
	next := g.g.VG.Clone()
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
	return g.commit(next, why)
}

// growPool extends the data volume of a pool; writes that wait for space go on.
func (g *Group) growPool(next *meta.VG, lv *meta.LV, extents uint64, policy string, from []vg.Range, why string) error {
	seg := lv.Segments[0]
	tdata := next.LV(seg.Pool)
	if err := extendSegments(next, tdata, extents, policy, 0, from); err != nil {
		return err
	}
	seg.Count = tdata.Extents()
	return g.poolGrown(next, lv, tdata, why)
}

// ExtendPoolMetadata is lvextend --poolmetadatasize: to extents in all.
func (g *Group) ExtendPoolMetadata(name string, extents uint64, why string) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	next := g.g.VG.Clone()
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
	if err := extendSegments(next, tmeta, extents, "", 0, nil); err != nil {
		return err
	}
	return g.poolGrown(next, lv, tmeta, why)
}

func (g *Group) poolGrown(next *meta.VG, lv, part *meta.LV, why string) error {
	if err := g.commit(next, why); err != nil {
		return err
	}
	if err := g.reload(part); err != nil {
		return err
	}
	if n := g.nodes[lv.ID]; n != nil {
		return n.pool.Grow()
	}
	return nil
}

// resizeThin changes the virtual size of a thin volume. What lies beyond a new
// end is given back to the pool.
func (g *Group) resizeThin(ctx context.Context, next *meta.VG, lv *meta.LV, extents uint64, why string) error {
	n, err := g.activate(g.g.VG.LV(lv.Name))
	if err != nil {
		return err
	}
	defer g.deactivate(n)
	f, err := n.top.Freeze(ctx)
	if err != nil {
		return fmt.Errorf("%s/%s: %w: leases are open (%w)", next.Name, lv.Name, blockdev.ErrInUse, err)
	}
	d := f.Inner().(*thin.Device)
	size, old := g.bytes(extents), d.Info().Size
	lv.Segments[0].Count = extents
	if err := g.commit(next, why); err != nil {
		f.Thaw(nil)
		return err
	}
	if size < old && d.Info().Discard {
		if err := d.Discard(size, old-size); err != nil {
			g.cfg.notice("%s/%s: what lies beyond its new end stays allocated: %v", next.Name, lv.Name, err)
		}
	}
	f.Thaw(d.Resized(size))
	return f.Drain(ctx)
}

// mergeThin makes a thin volume what its snapshot is: it takes the snapshot's
// device over, and the old one is deleted. The snapshot must not be open.
func (g *Group) mergeThin(ctx context.Context, name, why string) error {
	next := g.g.VG.Clone()
	s := next.LV(name)
	seg := s.Segments[0]
	origin := next.LV(seg.Origin)
	if err := g.idle(s); err != nil {
		return err
	}
	n, err := g.activate(g.g.VG.LV(origin.Name))
	if err != nil {
		return err
	}
	defer g.deactivate(n)
	f, err := n.top.Freeze(ctx)
	if err != nil {
		return fmt.Errorf("merging %s: %w: leases on its origin are open (%w)", name, blockdev.ErrInUse, err)
	}
	old := f.Inner().(*thin.Device)
	oseg := origin.Segments[0]
	gone := oseg.DeviceID
	oseg.DeviceID, oseg.Count, oseg.TransactionID = seg.DeviceID, seg.Count, seg.TransactionID
	next.RemoveLV(s)
	for _, o := range next.LVs {
		for _, x := range o.Segments {
			if x.Type == meta.Thin && x.Origin == name {
				x.Origin = origin.Name
			}
		}
	}
	d, err := n.pool.Device(oseg.DeviceID, g.bytes(oseg.Count), origin.ID.String(), !origin.Is("WRITE"))
	if err != nil {
		f.Thaw(nil)
		return err
	}
	thawed := false
	err = g.changePool(next, oseg.Pool, meta.Message{Delete: gone}, func() error {
		thawed = true
		f.Thaw(d)
		if err := f.Drain(ctx); err != nil {
			return err
		}
		return old.Close() // nobody reads it when it is deleted
	}, why)
	if !thawed {
		f.Thaw(nil)
		return errors.Join(err, d.Close())
	}
	return err
}
