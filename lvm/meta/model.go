package meta

import (
	"reflect"
	"slices"
)

// VG is a volume group. Sizes are in sectors of 512 bytes or in extents, as in
// the text.
type VG struct {
	Name       string
	ID         UUID
	Seqno      uint64
	Format     string
	Status     []string // RESIZEABLE READ WRITE EXPORTED ...
	Flags      []string
	Tags       []string
	ExtentSize uint64 // sectors
	MaxLV      uint64
	MaxPV      uint64
	Copies     uint64 // metadata_copies
	Alloc      string // allocation_policy; "" is normal
	SystemID   string // the machine it belongs to; "" any
	LockType   string // "" or "none": of one machine
	PVs        []*PV
	LVs        []*LV

	root *Section // the whole text
	sec  *Section // this group in it
}

// PV is a physical volume of a group.
type PV struct {
	Name    string // "pv0": the name used by segments of this text
	ID      UUID
	Device  string // hint: the path it was last seen at
	Status  []string
	Flags   []string // MISSING ...
	Tags    []string
	DevSize uint64 // sectors
	PEStart uint64 // sectors
	PECount uint64 // extents

	sec *Section
}

// LV is a logical volume.
type LV struct {
	Name     string
	ID       UUID
	Status   []string // READ WRITE VISIBLE ...
	Flags    []string // compatible flags: ACTIVATION_SKIP ERROR_WHEN_FULL ...
	Tags     []string
	Alloc    string // allocation_policy; "" inherits
	Created  int64  // Unix seconds, 0 unknown
	Host     string
	Segments []*Segment

	sec *Section
}

// Area is one stripe's place: extent Off of the PV or LV called Name.
type Area struct {
	Name string
	Off  uint64
}

// Segment types that are served.
const (
	Striped  = "striped" // linear when there is one stripe
	Snapshot = "snapshot"
	ThinPool = "thin-pool"
	Thin     = "thin"
)

// Segment is a run of logical extents. Which fields count depends on Type.
type Segment struct {
	Start, Count uint64 // extents
	Type         string
	TypeFlags    string // what follows the type behind a '+'
	Tags         []string

	StripeSize uint64 // striped, sectors; 0 with one stripe
	Stripes    []Area // striped

	ChunkSize uint64 // snapshot, thin-pool: sectors
	Origin    string // snapshot; thin: the LV it is a snapshot of, or ""
	COW       string // snapshot: the LV that holds the exceptions
	Merging   bool   // snapshot: merging_store instead of cow_store
	Merge     string // thin: the LV being merged into

	Metadata      string // thin-pool: LVs
	Pool          string // thin-pool: the data LV; thin: the pool
	TransactionID uint64 // thin-pool, thin
	Discards      string // thin-pool: ignore nopassdown passdown
	Messages      []Message
	ZeroNew       bool   // thin-pool
	DeviceID      uint64 // thin
	External      string // thin: external_origin

	sec *Section
}

// Message is a change of a thin pool that the metadata already describes, and
// that its transaction_id counts, but that the pool may not have made yet.
type Message struct {
	Create string // a thin LV
	Delete uint64 // or the device id to delete
}

// Same reports whether two segments mean the same; tags do not count.
func (s *Segment) Same(o *Segment) bool {
	a, b := *s, *o
	if !slices.Equal(a.Stripes, b.Stripes) || !slices.Equal(a.Messages, b.Messages) {
		return false
	}
	for _, x := range []*Segment{&a, &b} {
		x.sec, x.Stripes, x.Messages, x.Tags = nil, nil, nil, nil
	}
	return reflect.DeepEqual(a, b)
}

// Known reports whether this package understands the segment's type.
func (s *Segment) Known() bool {
	switch s.Type {
	case Striped, Snapshot, ThinPool, Thin:
		return true
	}
	return false
}

// AreaLen is the number of extents each stripe contributes.
func (s *Segment) AreaLen() uint64 {
	if n := uint64(len(s.Stripes)); n > 1 {
		return s.Count / n
	}
	return s.Count
}

// Extents is the size of the LV.
func (lv *LV) Extents() uint64 {
	var n uint64
	for _, s := range lv.Segments {
		n += s.Count
	}
	return n
}

// Is reports a status word or compatible flag.
func (lv *LV) Is(word string) bool { return has(lv.Status, word) || has(lv.Flags, word) }

// Value is what the text has for a key of the LV that this package does not
// interpret.
func (lv *LV) Value(key string) (Value, bool) {
	if lv.sec == nil { // a new one
		return Value{}, false
	}
	return lv.sec.Get(key)
}

// Value is what the text has for a key of the group that this package does not
// interpret.
func (vg *VG) Value(key string) (Value, bool) {
	if vg.sec == nil {
		return Value{}, false
	}
	return vg.sec.Get(key)
}

// Visible reports whether the LV is shown to users.
func (lv *LV) Visible() bool { return has(lv.Status, "VISIBLE") }

// Shown reports whether users see the LV: the store of a snapshot is shown in
// the place of the snapshot, though the text calls it the other way round.
func (vg *VG) Shown(lv *LV) bool {
	if len(lv.Segments) > 0 && lv.Segments[0].Type == Snapshot {
		return false
	}
	if _, s := vg.SnapshotSegment(lv.Name); s != nil {
		return true
	}
	return lv.Visible()
}

// SetStatus adds or removes a status word.
func (lv *LV) SetStatus(word string, on bool) { lv.Status = setWord(lv.Status, word, on) }

// SetFlag adds or removes a compatible flag.
func (lv *LV) SetFlag(word string, on bool) { lv.Flags = setWord(lv.Flags, word, on) }

// Missing reports whether the PV was absent when the text was written.
func (pv *PV) Missing() bool { return has(pv.Flags, "MISSING") || has(pv.Status, "MISSING") }

// Allocatable reports whether new extents may come from the PV.
func (pv *PV) Allocatable() bool { return has(pv.Status, "ALLOCATABLE") && !pv.Missing() }

// Is reports a status word of the group.
func (vg *VG) Is(word string) bool { return has(vg.Status, word) }

// LV returns the logical volume of that name, or nil.
func (vg *VG) LV(name string) *LV {
	for _, lv := range vg.LVs {
		if lv.Name == name {
			return lv
		}
	}
	return nil
}

// PV returns the physical volume with that name in the text, or nil.
func (vg *VG) PV(name string) *PV {
	for _, pv := range vg.PVs {
		if pv.Name == name {
			return pv
		}
	}
	return nil
}

// PVByID returns the physical volume with that UUID, or nil.
func (vg *VG) PVByID(id UUID) *PV {
	for _, pv := range vg.PVs {
		if pv.ID == id {
			return pv
		}
	}
	return nil
}

// AddPV appends a physical volume under a fresh name.
func (vg *VG) AddPV(pv *PV) {
	for i := 0; ; i++ {
		pv.Name = "pv" + itoa(i)
		if vg.PV(pv.Name) == nil {
			break
		}
	}
	vg.PVs = append(vg.PVs, pv)
}

// RemoveLV takes lv out of the group.
func (vg *VG) RemoveLV(lv *LV) {
	for i, o := range vg.LVs {
		if o == lv {
			vg.LVs = append(vg.LVs[:i:i], vg.LVs[i+1:]...)
			return
		}
	}
}

// RemovePV takes pv out of the group.
func (vg *VG) RemovePV(pv *PV) {
	for i, o := range vg.PVs {
		if o == pv {
			vg.PVs = append(vg.PVs[:i:i], vg.PVs[i+1:]...)
			return
		}
	}
}

// SnapshotsOf returns the snapshot segments whose origin is lv.
func (vg *VG) SnapshotsOf(lv string) []*Segment {
	var out []*Segment
	for _, o := range vg.LVs {
		for _, s := range o.Segments {
			if s.Type == Snapshot && s.Origin == lv {
				out = append(out, s)
			}
		}
	}
	return out
}

// SnapshotSegment returns the hidden LV and segment that make cow a snapshot,
// or nil.
func (vg *VG) SnapshotSegment(cow string) (*LV, *Segment) {
	for _, o := range vg.LVs {
		for _, s := range o.Segments {
			if s.Type == Snapshot && s.COW == cow {
				return o, s
			}
		}
	}
	return nil, nil
}

// UsersOf lists the LVs that have lv as a part: stripes on it, its snapshots,
// pools and thin volumes over it.
func (vg *VG) UsersOf(lv string) []*LV {
	var out []*LV
	disk := vg.PV(lv) != nil // stripes of that name lie on it
	for _, o := range vg.LVs {
		if o.Name != lv && o.uses(lv, disk) {
			out = append(out, o)
		}
	}
	return out
}

// uses reports whether an LV of that name is a part of lv; disk, that there is a PV of that name, too.
func (lv *LV) uses(name string, disk bool) bool {
	for _, s := range lv.Segments {
		for _, a := range s.Stripes {
			if a.Name == name && !disk {
				return true
			}
		}
		if s.Metadata == name || s.Pool == name || s.COW == name || s.Origin == name || s.External == name {
			return true
		}
	}
	return false
}

// RenameLV changes the name of an LV everywhere it is referred to.
func (vg *VG) RenameLV(old, name string) {
	sub := func(s *string) {
		if *s == old {
			*s = name
		}
	}
	disk := vg.PV(old) != nil // stripes of that name lie on it
	for _, lv := range vg.LVs {
		sub(&lv.Name)
		for _, s := range lv.Segments {
			for i := range s.Stripes {
				if !disk {
					sub(&s.Stripes[i].Name)
				}
			}
			for i := range s.Messages {
				sub(&s.Messages[i].Create)
			}
			for _, f := range []*string{&s.Origin, &s.COW, &s.Metadata, &s.Pool, &s.External, &s.Merge} {
				sub(f)
			}
		}
	}
}

func has(words []string, w string) bool {
	for _, x := range words {
		if x == w {
			return true
		}
	}
	return false
}

func setWord(words []string, w string, on bool) []string {
	if has(words, w) == on {
		return words
	}
	if on {
		return append(words[:len(words):len(words)], w)
	}
	var out []string
	for _, x := range words {
		if x != w {
			out = append(out, x)
		}
	}
	return out
}

// Copy returns a segment with the same content and no place in a text yet.
func (s *Segment) Copy() *Segment {
	c := *s
	c.sec = nil
	c.Stripes = append([]Area(nil), s.Stripes...)
	c.Tags = append([]string(nil), s.Tags...)
	return &c
}

// SetTag adds or removes a tag.
func (lv *LV) SetTag(tag string, on bool) { lv.Tags = setWord(lv.Tags, tag, on) }
