package mem

import (
	"sync"
	"sync/atomic"
	"unsafe"
)

// Domain is a protection domain as far as memory is concerned: an identity.
type Domain struct {
	// Revoked is called, without locks, after a region of the domain that any of its
	// streams may have been reading for its peer has been revoked.
	Revoked func(*Region)
}

// Stream is a queue pair as far as memory is concerned: an identity, and who wants
// to know what is open to its peer.
type Stream struct {
	// Opened and Closed are called, with the region locked, when it has been opened
	// for this stream alone and when it is about to be closed.
	Opened, Closed func(*Region)
	// Revoked is as in Domain, of a region of this stream.
	Revoked func(*Region)
}

// Link is a place in a list of regions, for whoever keeps one. Its lock, not the
// region's, guards it.
type Link struct {
	Prev, Next *Region
	Listed     bool
}

// Region is memory behind an STag: a memory region, a window, or the sink of an
// RDMA Read.
//
// Whoever places bytes into the memory or copies there holds the region from before
// Check until it is done; revoking excludes that. So when Revoke returns, nothing is
// placed there any more, and what the revoker waited for was at most one system call: one
// that does not wait, or, where Go had one processor when the connection began, one that
// waits for the socket, for 5 ms at most (sockio.InCall.Flags). Sending by reference is not covered: Revoked tells those
// who do it.
type Region struct {
	dom   *Domain
	index uint32
	// Remote says that the peer may invalidate the region; it does not change.
	Remote bool
	// Link is for a list of regions that are open.
	Link Link

	mu      sync.RWMutex // guards what follows
	valid   bool
	discard bool // placements go to scratch
	stag    uint32
	gen     uint64  // counts what the region has been aimed at: a key comes again after a while
	stream  *Stream // only this one may use it; nil: any of the domain
	access  Access
	base    uint64 // tagged offset of the first byte
	size    uint64
	segs    [][]byte
	one     [1][]byte // backing of segs for a single piece

	open   atomic.Bool   // valid, for readers without the lock of r: false says that nothing is touched any more
	faults atomic.Uint64 // placements that failed because the memory cannot be touched
}

// Init prepares a region of a domain, which Table.Insert then gives an STag.
func (r *Region) Init(d *Domain) {
	r.dom = d
	r.segs = r.one[:0]
}

// AddrOf is the address of the first byte of p, as a tagged offset.
func AddrOf(p []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(p)))) }

// Open aims the region at segs under a fresh random key, for the peer of one stream
// or, with nil, of any of the domain. The slice of pieces is copied. A region that is
// open is to be revoked before.
func (r *Region) Open(s *Stream, segs [][]byte, a Access) (stag uint32, base uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.openLocked(s, segs, a, uint8(nextKey(r.stag)))
}

// OpenKey is Open under a given key.
func (r *Region) OpenKey(s *Stream, segs [][]byte, a Access, key uint8) (stag uint32, base uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.openLocked(s, segs, a, key)
}

// openLocked aims a region at segs under key.
func (r *Region) openLocked(s *Stream, segs [][]byte, a Access, key uint8) (uint32, uint64) {
	if r.valid {
		r.closedLocked() // two have opened it at the same time
	}
	r.gen++
	r.segs, r.size = r.segs[:0], 0
	for _, p := range segs {
		r.segs = append(r.segs, p)
		r.size += uint64(len(p))
	}
	r.access, r.discard = a, false
	r.base = 0
	if a&ZeroBased == 0 && len(segs) > 0 {
		r.base = AddrOf(segs[0])
	}
	r.stag = r.stag&^keyMask | uint32(key)
	r.stream, r.valid = s, true
	r.open.Store(true)
	if r.faults.Load() != 0 {
		r.faults.Store(0)
	}
	if s != nil {
		s.Opened(r)
	}
	return r.stag, r.base
}

func (r *Region) closedLocked() {
	if r.stream != nil {
		r.stream.Closed(r)
	}
}

// Revoke makes the region unusable, waits until nothing touches its memory, and
// forgets the memory, so that the collector may have it.
func (r *Region) Revoke() {
	if !r.open.Load() {
		return
	}
	r.mu.Lock()
	r.revokeLocked(r.valid)
}

// RevokeNamed is Revoke if stag names r for a stream, and reports whether it does.
func (r *Region) RevokeNamed(d *Domain, s *Stream, stag uint32) bool {
	r.mu.Lock()
	named := r.namedLocked(d, s, stag)
	r.revokeLocked(named)
	return named
}

// revokeLocked unlocks r, and revokes it if it is to be.
func (r *Region) revokeLocked(yes bool) {
	if !yes {
		r.mu.Unlock()
		return
	}
	told := r.dom.Revoked
	if r.stream != nil {
		told = r.stream.Revoked
	}
	readable := r.access&RemoteRead != 0
	r.closedLocked()
	r.segs = Drop(r.segs)
	r.size, r.access, r.stream = 0, 0, nil
	r.valid = false
	r.open.Store(false)
	r.mu.Unlock()
	if readable {
		told(r)
	}
}

// Discard makes further placements go to scratch. It waits for one in progress.
func (r *Region) Discard() {
	r.mu.Lock()
	r.discard = true
	r.mu.Unlock()
}

// Hold keeps the region and its memory as they are until Release.
func (r *Region) Hold() { r.mu.RLock() }

// TryHold is Hold unless that would wait.
func (r *Region) TryHold() bool { return r.mu.TryRLock() }

// Release ends a Hold.
func (r *Region) Release() { r.mu.RUnlock() }

// Check decides whether a stream may get at [to, to+n) of the memory that stag names.
// n must not be 0: operations of no length check nothing (RFC 5040 §5.2). The result
// is the offset into the pieces.
//
// Preconditions: r is held.
func (r *Region) Check(d *Domain, s *Stream, stag uint32, to, n uint64, want Access) (off uint64, f Fault) {
	switch {
	case !r.valid || r.stag != stag:
		return 0, NoRegion
	case r.dom != d || (r.stream != nil && r.stream != s):
		return 0, Foreign
	case r.access&want != want:
		return 0, Denied
	case to+n < to:
		return 0, Wrapped
	case to < r.base:
		return 0, Outside
	}
	off = to - r.base
	if off > r.size || n > r.size-off {
		return 0, Outside
	}
	return off, None
}

// Local reports whether p lies inside the one piece of a region of the domain that
// lkey names, which this end uses as the source or, with write, the sink of its own
// work.
func (r *Region) Local(d *Domain, lkey uint32, p []byte, write bool) bool {
	return Within(p, r.Own(d, lkey, write))
}

// Own is that one piece; nil when there is none.
func (r *Region) Own(d *Domain, lkey uint32, write bool) (p []byte) {
	r.mu.RLock()
	if r.valid && r.stag == lkey && r.dom == d && len(r.segs) == 1 && r.stream == nil && (!write || r.access&LocalWrite != 0) {
		p = r.segs[0]
	}
	r.mu.RUnlock()
	return p
}

// Within reports whether p lies inside of the memory have, which is not nil.
func Within(p, have []byte) bool {
	at, from := AddrOf(p), AddrOf(have)
	return have != nil && at >= from && at-from <= uint64(len(have)) && uint64(len(p)) <= uint64(len(have))-(at-from)
}

// Matches reports whether stag names r for a stream, as local and remote
// invalidation require.
func (r *Region) Matches(d *Domain, s *Stream, stag uint32) bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.namedLocked(d, s, stag)
}

func (r *Region) namedLocked(d *Domain, s *Stream, stag uint32) bool {
	return r.valid && r.stag == stag && r.dom == d && (r.stream == nil || r.stream == s)
}

// Faulted counts a placement that failed, for the owner of the memory at which r was
// aimed as gen tells. told is false when r has been revoked since: whoever did so
// waits for no data. shared says that r belongs to no stream.
func (r *Region) Faulted(gen uint64) (told, shared bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if !r.valid || r.gen != gen {
		return false, false
	}
	r.faults.Add(1)
	return true, r.stream == nil
}

// Faults counts the placements that failed since the region was opened.
func (r *Region) Faults() uint64 { return r.faults.Load() }

// State is what a region is open for.
type State struct {
	Valid bool
	STag  uint32
	Base  uint64 // tagged offset of the first byte
}

// State returns it.
func (r *Region) State() State {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return State{r.valid, r.stag, r.base}
}

// What follows is for a caller that holds the region, or is called by Opened or Closed.

// Names reports whether stag and offset to are those of the first byte.
func (r *Region) Names(stag uint32, to uint64) bool { return r.stag == stag && r.base == to }

// Placeable reports whether the region is still what it was when gen was taken, and
// wants its data; revoked tells the two apart.
func (r *Region) Placeable(gen uint64) (ok, revoked bool) {
	same := r.valid && r.gen == gen
	return same && !r.discard, !same && !r.discard
}

// Pieces is the memory.
func (r *Region) Pieces() [][]byte { return r.segs }

// Gen changes whenever the region is aimed at other memory.
func (r *Region) Gen() uint64 { return r.gen }

// Size is the length of the memory, bytes.
func (r *Region) Size() uint64 { return r.size }

// Access returns the rights.
func (r *Region) Access() Access { return r.access }

// Discarding reports whether placements go to scratch.
func (r *Region) Discarding() bool { return r.discard }
