package mem

import (
	"errors"
	"math"
	"slices"
	"testing"
)

// bed is a table with a region, opened for one stream over 100 bytes from offset 1000.
type bed struct {
	table         Table
	dom, otherDom Domain
	stream, other Stream
	r             Region
	stag          uint32
	opened        int // less those closed
	revoked       []*Region
}

const base, length = 1000, 100

func newBed(t *testing.T, shared bool, a Access) *bed {
	t.Helper()
	b := &bed{}
	b.table.Limit(4)
	b.dom.Revoked = func(r *Region) { b.revoked = append(b.revoked, r) }
	b.stream = Stream{Opened: func(*Region) { b.opened++ }, Closed: func(*Region) { b.opened-- }, Revoked: b.dom.Revoked}
	b.r.Init(&b.dom)
	if err := b.table.Insert(&b.r); err != nil {
		t.Fatal(err)
	}
	s := &b.stream
	if shared {
		s = nil
	}
	b.stag, _ = b.r.Open(s, [][]byte{make([]byte, 60), make([]byte, 40)}, a)
	b.r.base = base
	return b
}

func (b *bed) check(d *Domain, s *Stream, stag uint32, to, n uint64, want Access) (uint64, Fault) {
	r := b.table.Lookup(stag)
	if r == nil {
		return 0, NoRegion
	}
	r.Hold()
	defer r.Release()
	return r.Check(d, s, stag, to, n, want)
}

// TestCheck: each condition of the gate alone keeps a peer out.
func TestCheck(t *testing.T) {
	b := newBed(t, false, LocalWrite|RemoteWrite)
	for _, c := range []struct {
		name string
		dom  *Domain
		s    *Stream
		stag uint32
		to   uint64
		n    uint64
		want Access
		off  uint64
		f    Fault
	}{
		{"all of it", &b.dom, &b.stream, b.stag, base, length, RemoteWrite, 0, None},
		{"first byte", &b.dom, &b.stream, b.stag, base, 1, RemoteWrite, 0, None},
		{"last byte", &b.dom, &b.stream, b.stag, base + length - 1, 1, RemoteWrite, length - 1, None},
		{"one byte too many", &b.dom, &b.stream, b.stag, base, length + 1, RemoteWrite, 0, Outside},
		{"over the end", &b.dom, &b.stream, b.stag, base + length - 1, 2, RemoteWrite, 0, Outside},
		{"behind the end", &b.dom, &b.stream, b.stag, base + length, 1, RemoteWrite, 0, Outside},
		{"far behind the end", &b.dom, &b.stream, b.stag, base + 10*length, 1, RemoteWrite, 0, Outside},
		{"in front", &b.dom, &b.stream, b.stag, base - 1, 1, RemoteWrite, 0, Outside},
		{"from in front", &b.dom, &b.stream, b.stag, base - 1, 2, RemoteWrite, 0, Outside},
		{"offset 0", &b.dom, &b.stream, b.stag, 0, length, RemoteWrite, 0, Outside},
		{"wraps into it", &b.dom, &b.stream, b.stag, math.MaxUint64 - 9, base + 20, RemoteWrite, 0, Wrapped},
		{"wraps from inside", &b.dom, &b.stream, b.stag, base, math.MaxUint64, RemoteWrite, 0, Wrapped},
		{"another right", &b.dom, &b.stream, b.stag, base, 1, RemoteRead, 0, Denied},
		{"one right of two", &b.dom, &b.stream, b.stag, base, 1, RemoteWrite | RemoteRead, 0, Denied},
		{"atomic", &b.dom, &b.stream, b.stag, base, 8, RemoteAtomic, 0, Denied},
		{"sink", &b.dom, &b.stream, b.stag, base, 8, Sink, 0, Denied},
		{"another stream", &b.dom, &b.other, b.stag, base, 1, RemoteWrite, 0, Foreign},
		{"another domain", &b.otherDom, &b.stream, b.stag, base, 1, RemoteWrite, 0, Foreign},
		{"another key", &b.dom, &b.stream, b.stag ^ 1, base, 1, RemoteWrite, 0, NoRegion},
		{"another index", &b.dom, &b.stream, b.stag ^ 1<<keyBits, base, 1, RemoteWrite, 0, NoRegion},
	} {
		if off, f := b.check(c.dom, c.s, c.stag, c.to, c.n, c.want); off != c.off || f != c.f {
			t.Errorf("%s: offset %d, %v; want %d, %v", c.name, off, f, c.off, c.f)
		}
	}
	b.r.Revoke()
	if _, f := b.check(&b.dom, &b.stream, b.stag, base, 1, RemoteWrite); f != NoRegion {
		t.Errorf("after it was revoked: %v", f)
	}
	b.table.Remove(&b.r)
	if b.table.Lookup(b.stag) != nil || b.table.Count() != 0 {
		t.Error("the STag of a removed region still leads to it")
	}
}

// TestCheckShared: a region of no stream is open to every stream of its domain alone.
func TestCheckShared(t *testing.T) {
	b := newBed(t, true, RemoteRead)
	for _, c := range []struct {
		d *Domain
		s *Stream
		f Fault
	}{{&b.dom, &b.stream, None}, {&b.dom, &b.other, None}, {&b.otherDom, &b.stream, Foreign}} {
		if _, f := b.check(c.d, c.s, b.stag, base, 1, RemoteRead); f != c.f {
			t.Errorf("%v, want %v", f, c.f)
		}
	}
}

// TestRevoke: what was open is told of once, and readers' regions are announced.
func TestRevoke(t *testing.T) {
	for _, c := range []struct {
		access Access
		told   int
	}{{RemoteWrite, 0}, {RemoteRead, 1}, {RemoteRead | RemoteWrite, 1}} {
		for _, shared := range []bool{false, true} {
			b := newBed(t, shared, c.access)
			if want := map[bool]int{false: 1}[shared]; b.opened != want {
				t.Errorf("shared %v: opened %d times, want %d", shared, b.opened, want)
			}
			gen := b.r.Gen()
			b.r.Revoke()
			b.r.Revoke()
			if b.opened != 0 || len(b.revoked) != c.told || len(b.r.Pieces()) != 0 || b.r.State().Valid {
				t.Errorf("access %v, shared %v: %d left open, told %d times, %d pieces", c.access, shared, b.opened, len(b.revoked), len(b.r.Pieces()))
			}
			if told, _ := b.r.Faulted(gen); told || b.r.Faults() != 0 {
				t.Error("a fault is counted for a region that has been revoked")
			}
		}
	}
}

// TestMatches: only who may use a region may invalidate it.
func TestMatches(t *testing.T) {
	b := newBed(t, false, RemoteWrite)
	if !b.r.Matches(&b.dom, &b.stream, b.stag) {
		t.Error("its own stream may not invalidate it")
	}
	if b.r.Matches(&b.dom, &b.other, b.stag) || b.r.Matches(&b.otherDom, &b.stream, b.stag) || b.r.Matches(&b.dom, &b.stream, b.stag^1) {
		t.Error("somebody else may invalidate it")
	}
	b.r.Revoke()
	if b.r.Matches(&b.dom, &b.stream, b.stag) {
		t.Error("it can be invalidated twice")
	}
}

// TestLocal: an SGE lies inside the memory of its key, all of it.
func TestLocal(t *testing.T) {
	var d, other Domain
	var s Stream
	s.Opened, s.Closed = func(*Region) {}, func(*Region) {}
	all := make([]byte, 120)
	p := all[10:110]
	open := func(s *Stream, a Access, segs ...[]byte) (*Region, uint32) {
		r := new(Region)
		r.Init(&d)
		stag, _ := r.Open(s, segs, a)
		return r, stag
	}
	r, key := open(nil, LocalWrite, p)
	ro, roKey := open(nil, 0, p)
	bound, boundKey := open(&s, LocalWrite, p)
	two, twoKey := open(nil, LocalWrite, p[:50], p[50:])
	for name, c := range map[string]struct {
		r     *Region
		d     *Domain
		key   uint32
		p     []byte
		write bool
		want  bool
	}{
		"all":                     {r, &d, key, p, true, true},
		"last byte":               {r, &d, key, all[109:110], true, true},
		"over the end":            {r, &d, key, all[100:111], false, false},
		"behind":                  {r, &d, key, all[111:112], false, false},
		"in front":                {r, &d, key, all[9:12], false, false},
		"another key":             {r, &d, key ^ 1, p, false, false},
		"another domain":          {r, &other, key, p, false, false},
		"reading what is ro":      {ro, &d, roKey, p, false, true},
		"writing what is ro":      {ro, &d, roKey, p, true, false},
		"a window":                {bound, &d, boundKey, p, false, false},
		"memory in two pieces":    {two, &d, twoKey, p[:10], false, false},
		"more than the memory is": {r, &d, key, all, false, false},
	} {
		if got := c.r.Local(c.d, c.key, c.p, c.write); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

func TestTableFull(t *testing.T) {
	var d Domain
	var table Table
	table.Limit(3)
	var rs [4]Region
	seen := map[uint32]bool{}
	for i := range rs {
		rs[i].Init(&d)
		err := table.Insert(&rs[i])
		if full := i == 3; errors.Is(err, ErrFull) != full || !full && err != nil {
			t.Errorf("region %d: %v", i, err)
		}
		if i < 3 {
			stag := rs[i].State().STag
			if stag>>keyBits == 0 || seen[stag>>keyBits] || table.Lookup(stag) != &rs[i] {
				t.Errorf("region %d has STag %#x", i, stag)
			}
			seen[stag>>keyBits] = true
		}
	}
	table.Remove(&rs[0])
	if err := table.Insert(&rs[3]); err != nil {
		t.Error(err)
	}
}

// TestIndexesAreDrawn: the STags of one table tell nothing about those of another, or about the next
// ones (RFC 5040 §8.1.1).
func TestIndexesAreDrawn(t *testing.T) {
	const n = 32
	var d Domain
	draw := func() (stags []uint32) {
		var table Table
		table.Limit(n)
		var rs [n]Region
		for i := range rs {
			rs[i].Init(&d)
			if err := table.Insert(&rs[i]); err != nil {
				t.Fatal(err)
			}
			stags = append(stags, rs[i].State().STag>>keyBits)
		}
		return stags
	}
	a, b := draw(), draw()
	if slices.Equal(a, b) {
		t.Error("two tables give the same STags")
	}
	if slices.IsSorted(a) {
		t.Error("STags are given in ascending order")
	}
}

// TestBase: a region's tagged offsets count from the address of its first byte, or from zero.
func TestBase(t *testing.T) {
	p := make([]byte, 8)
	for name, tt := range map[string]struct {
		segs [][]byte
		a    Access
		base uint64
	}{
		"addressed":  {[][]byte{p[4:], p[:4]}, RemoteRead, AddrOf(p[4:])},
		"zero based": {[][]byte{p}, RemoteRead | ZeroBased, 0},
		"of nothing": {nil, RemoteRead, 0},
	} {
		b := newBed(t, false, RemoteRead)
		b.r.Revoke()
		stag, base := b.r.OpenKey(&b.stream, tt.segs, tt.a, uint8(b.stag)+1)
		if base != tt.base || stag != b.stag&^keyMask|uint32(uint8(b.stag)+1) {
			t.Errorf("%s: base %#x, key %#08x after %#08x", name, base, stag, b.stag)
		}
		for to, want := range map[uint64]Fault{base: None, base + 7: None, base + 8: Outside, base - 1: Outside} {
			if tt.segs == nil {
				want = Outside
			}
			if base == 0 && to > base+8 {
				want = Wrapped // and more than there is
			}
			off, f := b.check(&b.dom, &b.stream, stag, to, 1, RemoteRead)
			if f != want || f == None && off != to-base {
				t.Errorf("%s: byte %#x: offset %d, %v, want %v", name, to, off, f, want)
			}
		}
	}
}

// TestFaulted: a placement that failed counts for the opening of the region that it was for.
func TestFaulted(t *testing.T) {
	for _, shared := range []bool{false, true} {
		b := newBed(t, shared, RemoteWrite)
		before := b.r.Gen()
		for n := uint64(1); n <= 2; n++ {
			if told, s := b.r.Faulted(before); !told || s != shared || b.r.Faults() != n {
				t.Errorf("told %v, shared %v, %d faults", told, s, b.r.Faults())
			}
		}
		b.r.Revoke()
		if told, _ := b.r.Faulted(before); told || b.r.Faults() != 2 {
			t.Errorf("of a region that was revoked: told %v, %d faults", told, b.r.Faults())
		}
		b.r.Open(&b.stream, [][]byte{make([]byte, 8)}, RemoteWrite)
		if told, s := b.r.Faulted(before); told || s || b.r.Faults() != 0 {
			t.Errorf("of the opening before: told %v, shared %v, %d faults", told, s, b.r.Faults())
		}
	}
}

// TestRevokeTells: a region that the peer may read is told of once, to the stream that it is of or to its domain.
func TestRevokeTells(t *testing.T) {
	for _, tt := range []struct {
		shared bool
		a      Access
		told   string
	}{{false, RemoteRead, "stream"}, {true, RemoteRead, "domain"}, {false, RemoteWrite, ""}, {true, RemoteWrite, ""}} {
		b := newBed(t, tt.shared, tt.a)
		var told string
		b.dom.Revoked = func(*Region) { told += "domain" }
		b.stream.Revoked = func(*Region) { told += "stream" }
		b.r.Revoke()
		b.r.Revoke()
		if told != tt.told || b.opened != 0 {
			t.Errorf("%+v: told %q, %d regions of the stream are open", tt, told, b.opened)
		}
		if b.r.Matches(&b.dom, &b.stream, b.stag) || b.r.RevokeNamed(&b.dom, &b.stream, b.stag) {
			t.Errorf("%+v: its key is still good", tt)
		}
	}
	named := newBed(t, false, RemoteRead)
	if named.r.RevokeNamed(&named.dom, &named.other, named.stag) || !named.r.State().Valid {
		t.Error("a stream has revoked another's region")
	}
	if !named.r.RevokeNamed(&named.dom, &named.stream, named.stag) || named.r.State().Valid || len(named.revoked) != 1 || named.opened != 0 {
		t.Errorf("by its name: %+v, told %d times", named.r.State(), len(named.revoked))
	}
	b := newBed(t, true, RemoteRead) // of no stream: whichever asks
	if !b.r.Matches(&b.dom, &b.other, b.stag) || b.r.Matches(&b.otherDom, &b.other, b.stag) || b.r.Matches(&b.dom, &b.other, b.stag^1) {
		t.Error("a region of the domain")
	}
}
