package meta

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"softiser/lvm/internal/ondisk"
)

// MaxExtentSize is the largest extent size that is understood, sectors: 512 GiB.
const MaxExtentSize = 1 << 30

// maxExtents bounds every extent number, so that sums never overflow, and maxSectors what extents are in
// sectors, so that they do not in bytes either.
const (
	maxExtents = math.MaxUint32
	maxSectors = math.MaxInt64 / ondisk.SectorSize
)

// Load reads a volume group from a text.
func Load(text []byte) (*VG, error) {
	root, err := Parse(text)
	if err != nil {
		return nil, err
	}
	if v, ok := root.Get("contents"); ok && v.Text != "Text Format Volume Group" {
		return nil, fmt.Errorf("%w: contents are %q", ErrSyntax, v.Text)
	}
	if v, ok := root.Get("version"); ok && v.Text != "1" {
		return nil, fmt.Errorf("metadata text has version %s, only 1 is understood", v.Text)
	}
	subs := root.Subs()
	if len(subs) != 1 {
		return nil, fmt.Errorf("%w: %d volume groups in one text", ErrSyntax, len(subs))
	}
	vg := &VG{root: root, sec: subs[0], Name: subs[0].Name}
	// Files are called like groups, and what people and scripts read is full of names.
	if err := CheckName(vg.Name); err != nil {
		return nil, fmt.Errorf("%w: volume group: %w", ErrSyntax, err)
	}
	if err := vg.load(); err != nil {
		return nil, fmt.Errorf("volume group %q: %w", vg.Name, err)
	}
	return vg, nil
}

// reader collects the first error of a row of field reads.
type reader struct {
	s   *Section
	err error
}

func (r *reader) fail(key, what string) {
	if r.err == nil {
		r.err = fmt.Errorf("%w: %s.%s: %s", ErrSyntax, r.s.Name, key, what)
	}
}

// num reads a number that must be there.
func (r *reader) num(key string) uint64 {
	if _, ok := r.s.Get(key); !ok {
		r.fail(key, "missing")
	}
	return r.optionalNum(key)
}

// optionalNum reads a number; 0 where it is not there.
func (r *reader) optionalNum(key string) uint64 {
	v, ok := r.s.Get(key)
	if !ok {
		return 0
	}
	n, err := strconv.ParseUint(v.Text, 10, 63)
	if v.Kind != Number || err != nil {
		r.fail(key, "not a number")
	}
	return n
}

func (r *reader) extents(key string) uint64 {
	n := r.num(key)
	if n > maxExtents {
		r.fail(key, "too many extents")
		return 0
	}
	return n
}

// chunk reads the chunk size of a snapshot or pool, sectors.
func (r *reader) chunk() uint64 {
	const key = "chunk_size"
	n := r.num(key)
	if r.err == nil && (n == 0 || n > 1<<30) {
		r.fail(key, "not a sensible size")
	}
	return n
}

func (r *reader) str(key string) string {
	v, ok := r.s.Get(key)
	if ok && v.Kind != String {
		r.fail(key, "not a string")
	}
	return v.Text
}

// words reads a list of strings; lvm2 also accepts a single string.
func (r *reader) words(key string) []string {
	v, ok := r.s.Get(key)
	if !ok {
		return nil
	}
	if v.Kind == String {
		return []string{v.Text}
	}
	var out []string
	for _, e := range v.List {
		if e.Kind != String {
			r.fail(key, "list element is not a string")
		}
		out = append(out, e.Text)
	}
	return out
}

func (r *reader) uuid(key string) ondisk.UUID {
	u, err := ondisk.ParseUUID(r.str(key))
	if err != nil {
		r.fail(key, err.Error())
	}
	return u
}

// load fills the model from the tree, and refuses what makes no sense.
func (vg *VG) load() error {
	r := &reader{s: vg.sec}
	vg.ID, vg.Seqno = r.uuid("id"), r.num("seqno")
	vg.Format, vg.Alloc = r.str("format"), r.str("allocation_policy")
	vg.Status, vg.Flags, vg.Tags = r.words("status"), r.words("flags"), r.words("tags")
	vg.SystemID, vg.LockType = r.str("system_id"), r.str("lock_type")
	vg.ExtentSize = r.num("extent_size")
	vg.MaxLV, vg.MaxPV, vg.Copies = r.optionalNum("max_lv"), r.optionalNum("max_pv"), r.optionalNum("metadata_copies")
	if r.err == nil && (vg.ExtentSize == 0 || vg.ExtentSize > MaxExtentSize) {
		r.fail("extent_size", "not a sensible size")
	}
	if r.err != nil {
		return r.err
	}
	names, ids := map[string]bool{}, map[ondisk.UUID]bool{}
	if s := vg.sec.Sub("physical_volumes"); s != nil {
		for _, p := range s.Subs() {
			r := &reader{s: p}
			pv := &PV{Name: p.Name, sec: p, ID: r.uuid("id"), Device: r.str("device"),
				Status: r.words("status"), Flags: r.words("flags"), Tags: r.words("tags"),
				DevSize: r.optionalNum("dev_size"), PEStart: r.num("pe_start"), PECount: r.extents("pe_count")}
			if r.err != nil {
				return r.err
			}
			if names[pv.Name] || ids[pv.ID] {
				return fmt.Errorf("%w: physical volume %q (%s) twice", ErrSyntax, pv.Name, pv.ID)
			}
			names[pv.Name], ids[pv.ID] = true, true
			vg.PVs = append(vg.PVs, pv)
		}
	}
	clear(names)
	clear(ids)
	if s := vg.sec.Sub("logical_volumes"); s != nil {
		for _, l := range s.Subs() {
			lv, err := loadLV(l)
			if err != nil {
				return err
			}
			if names[lv.Name] || ids[lv.ID] {
				return fmt.Errorf("%w: logical volume %q (%s) twice", ErrSyntax, lv.Name, lv.ID)
			}
			names[lv.Name], ids[lv.ID] = true, true
			vg.LVs = append(vg.LVs, lv)
		}
	}
	return vg.Check()
}

// loadLV reads one volume with its segments.
func loadLV(l *Section) (*LV, error) {
	if err := CheckName(l.Name); err != nil {
		return nil, fmt.Errorf("%w: logical volume: %w", ErrSyntax, err)
	}
	r := &reader{s: l}
	lv := &LV{Name: l.Name, sec: l, ID: r.uuid("id"), Status: r.words("status"), Flags: r.words("flags"),
		Tags: r.words("tags"), Alloc: r.str("allocation_policy"), Created: int64(r.optionalNum("creation_time")), Host: r.str("creation_host")}
	n := r.num("segment_count")
	if r.err != nil {
		return nil, r.err
	}
	subs := map[string]*Section{}
	for _, s := range l.Subs() {
		if subs[s.Name] == nil {
			subs[s.Name] = s
		}
	}
	for i := uint64(1); i <= n; i++ {
		s := subs["segment"+strconv.FormatUint(i, 10)]
		if s == nil {
			return nil, fmt.Errorf("%w: logical volume %q has no segment%d", ErrSyntax, lv.Name, i)
		}
		seg, err := loadSegment(s)
		if err != nil {
			return nil, fmt.Errorf("logical volume %q: %w", lv.Name, err)
		}
		lv.Segments = append(lv.Segments, seg)
	}
	return lv, nil
}

// loadSegment reads one segment. Types that are not known keep their section and get no
// areas.
func loadSegment(s *Section) (*Segment, error) {
	r := &reader{s: s}
	seg := &Segment{sec: s, Start: r.extents("start_extent"), Count: r.extents("extent_count"), Tags: r.words("tags")}
	seg.Type, seg.TypeFlags, _ = strings.Cut(r.str("type"), "+")
	switch seg.Type {
	case Striped:
		n := r.num("stripe_count")
		if n > 1 {
			seg.StripeSize = r.num("stripe_size")
		}
		v, _ := s.Get("stripes")
		seg.Stripes = r.areas("stripes", v)
		if r.err == nil && (n == 0 || uint64(len(seg.Stripes)) != n || seg.Count%n != 0) {
			r.fail("stripe_count", "does not fit the stripes or the extents")
		}
		if r.err == nil && n > 1 && (seg.StripeSize == 0 || seg.StripeSize > 1<<30) {
			r.fail("stripe_size", "not a sensible size")
		}
	case Snapshot:
		seg.ChunkSize, seg.Origin = r.chunk(), r.str("origin")
		if seg.COW = r.str("cow_store"); seg.COW == "" {
			seg.COW, seg.Merging = r.str("merging_store"), true
		}
		if seg.Origin == "" || seg.COW == "" {
			r.fail("origin", "snapshot without origin or store")
		}
	case ThinPool:
		seg.Metadata, seg.Pool = r.str("metadata"), r.str("pool")
		seg.TransactionID, seg.ChunkSize = r.num("transaction_id"), r.chunk()
		seg.Discards, seg.ZeroNew = r.str("discards"), r.optionalNum("zero_new_blocks") != 0
		for i := 1; ; i++ {
			m := s.Sub("message" + itoa(i))
			if m == nil {
				break
			}
			mr := &reader{s: m}
			seg.Messages = append(seg.Messages, Message{Create: mr.str("create"), Delete: mr.optionalNum("delete")})
			if mr.err != nil {
				return nil, mr.err
			}
		}
		if seg.Metadata == "" || seg.Pool == "" {
			r.fail("pool", "thin pool without data or metadata")
		}
	case Thin:
		seg.Pool, seg.TransactionID, seg.DeviceID = r.str("thin_pool"), r.num("transaction_id"), r.num("device_id")
		seg.Origin, seg.External, seg.Merge = r.str("origin"), r.str("external_origin"), r.str("merge")
		if seg.Pool == "" || seg.DeviceID >= 1<<24 {
			r.fail("thin_pool", "thin volume without pool, or with a bad device_id")
		}
	case "":
		r.fail("type", "missing")
	}
	return seg, r.err
}

func (r *reader) areas(key string, v Value) []Area {
	if v.Kind != List || len(v.List)%2 != 0 {
		r.fail(key, "not a list of pairs")
		return nil
	}
	var out []Area
	for i := 0; i < len(v.List); i += 2 {
		n, err := strconv.ParseUint(v.List[i+1].Text, 10, 32)
		if v.List[i].Kind != String || v.List[i+1].Kind != Number || err != nil {
			r.fail(key, "not pairs of name and extent")
			return nil
		}
		out = append(out, Area{v.List[i].Text, n})
	}
	return out
}
