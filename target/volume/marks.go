package volume

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"softiser/blockdev"
	"softiser/target/internal/statefile"
)

// Blocks that an initiator has marked (Write Uncorrectable of NVMe) fail every read until
// they are written:
//
//	           MarkBad: saved, then answered
//	readable ------------------------------> marked
//	    ^                                      |
//	    +--------------------------------------+
//	      written: data, flush, mark taken out of the state file, then answered
//
// The marks are kept with the volume's saved state. Whoever reads does so through ReadAt and
// LeaseRead below, and whoever writes through WriteAt, WriteZeroes, Discard, the volume's
// Lender, its Journal or its Rewriter, so that no front end has to know of them. What a
// volume without marks pays is one look at a pointer.
//
// A mark is set with its blocks held exclusively. So of a command that has its blocks the
// answer to "is any of them marked" changes while it runs in one direction only, to no.
//
// Marks are not in the device. Where its content goes without the volume (a snapshot or an
// export of a logical volume, a copy of the file, another node) they do not go along, so
// logical volumes and volumes that move between nodes do not offer them.

const (
	// MaxMarks is how many ranges apart from each other may be marked.
	MaxMarks = 4096
	// maxPieces is how many there may be after writes have taken blocks out of the middle of
	// some. A write that would leave more fails with blockdev.ErrNoSpace.
	maxPieces = 2 * MaxMarks
)

// ErrTooManyMarks is that of a mark for which there is no room.
var ErrTooManyMarks = fmt.Errorf("volume: %d ranges of blocks are marked already", MaxMarks)

// MarkedError ends a read of blocks of which one is marked. It is a blockdev.ErrMedium.
type MarkedError struct{ Off int64 } // where the first of them begins, bytes

// Error says which.
func (e *MarkedError) Error() string {
	return fmt.Sprintf("volume: the block at %d has been marked as bad by an initiator", e.Off)
}

// Unwrap returns the kind of error.
func (e *MarkedError) Unwrap() error { return blockdev.ErrMedium }

// badBlocks is the part of a volume that knows what is marked, and reads and writes the medium accordingly.
type badBlocks struct {
	medium *medium
	state  *state
	tie    *tie
	marks  atomic.Pointer[marks] // nil: none; changed under state.mu
}

// span is a range of bytes, [off, end).
type span struct{ off, end int64 }

// marks are ascending and apart. A set is never changed, but replaced.
type marks []span

// first returns where the first marked byte of [off, off+n) is.
func (m marks) first(off, n int64) (at int64, ok bool) {
	i, _ := slices.BinarySearchFunc(m, off, func(s span, off int64) int { return cmp.Compare(s.end, off+1) })
	if i == len(m) || m[i].off >= off+n {
		return 0, false
	}
	return max(m[i].off, off), true
}

// with returns the set and [off, end).
func (m marks) with(off, end int64) marks {
	next := make(marks, 0, len(m)+1)
	i := 0
	for ; i < len(m) && m[i].end < off; i++ {
		next = append(next, m[i])
	}
	for ; i < len(m) && m[i].off <= end; i++ {
		off, end = min(off, m[i].off), max(end, m[i].end)
	}
	return append(append(next, span{off, end}), m[i:]...)
}

// without returns the set less [off, end).
func (m marks) without(off, end int64) marks {
	next := make(marks, 0, len(m)+1)
	for _, s := range m {
		if s.end <= off || s.off >= end {
			next = append(next, s)
			continue
		}
		if s.off < off {
			next = append(next, span{s.off, off})
		}
		if s.end > end {
			next = append(next, span{end, s.end})
		}
	}
	return next
}

// bytes is how much is marked.
func (m marks) bytes() (n int64) {
	for _, s := range m {
		n += s.end - s.off
	}
	return n
}

// MarshalText writes the set as the state file has it: off-end, in bytes, one after the other.
func (m marks) MarshalText() ([]byte, error) {
	var b []byte
	for i, s := range m {
		if i > 0 {
			b = append(b, ' ')
		}
		b = fmt.Appendf(b, "%d-%d", s.off, s.end)
	}
	return b, nil
}

var errMarks = errors.New("volume: the marked blocks in the state file are not ranges in ascending order")

// UnmarshalText reads what MarshalText has written.
func (m *marks) UnmarshalText(b []byte) error {
	*m = nil
	before := int64(-1)
	for f := range strings.FieldsSeq(string(b)) {
		from, to, _ := strings.Cut(f, "-")
		off, err := strconv.ParseUint(from, 10, 63)
		end, err2 := strconv.ParseUint(to, 10, 63)
		s := span{int64(off), int64(end)}
		if err != nil || err2 != nil || s.off <= before || s.end <= s.off || len(*m) == maxPieces {
			return errMarks
		}
		*m = append(*m, s)
		before = s.end
	}
	return nil
}

// Marked returns how many bytes are marked.
func (b *badBlocks) Marked() int64 {
	if m := b.marks.Load(); m != nil {
		return m.bytes()
	}
	return 0
}

// marked reports whether any of [off, off+n) is marked.
func (b *badBlocks) marked(off, n int64) bool {
	return b.marks.Load() != nil && b.readable(off, n) != nil
}

// readable returns why [off, off+n) cannot be read; nil: no mark keeps it from being.
func (b *badBlocks) readable(off, n int64) error {
	if m := b.marks.Load(); m != nil {
		if at, ok := m.first(off, n); ok {
			return &MarkedError{at}
		}
	}
	return nil
}

// LeaseRead is LeaseRead of the device; marked blocks fail it.
func (b *badBlocks) LeaseRead(l *blockdev.Lease, off int64, n int, m blockdev.Mode) error {
	if b.marks.Load() != nil {
		if err := b.readable(off, int64(n)); err != nil {
			return err
		}
	}
	return b.medium.dev.LeaseRead(l, off, n, m)
}

// ReadAt is ReadAt of the device; marked blocks fail it.
func (b *badBlocks) ReadAt(p []byte, off int64) (int, error) {
	if b.marks.Load() != nil {
		if err := b.readable(off, int64(len(p))); err != nil {
			return 0, err
		}
	}
	return b.medium.dev.ReadAt(p, off)
}

// MarkBad makes reads of [off, off+n) fail until the blocks are written. After an error nothing
// is marked, unless it is statefile.ErrUncertain: then the blocks are at least until the volume
// ends, and a write ends it for good. Preconditions: MayMark, and the caller holds the blocks
// exclusively.
func (b *badBlocks) MarkBad(off, n int64) error {
	if err := b.tie.hold(); err != nil {
		return err
	}
	b.state.mu.Lock()
	defer b.state.mu.Unlock()
	if size := b.medium.Geo().Info.Size; off > size || n > size-off {
		return blockdev.ErrOutOfRange
	}
	now := b.marksNow().with(off, off+n)
	if len(now) > MaxMarks && len(now) > len(b.marksNow()) {
		return ErrTooManyMarks
	}
	next := b.state.kept
	next.Marks = now
	err := b.state.save(next)
	if err == nil || errors.Is(err, statefile.ErrUncertain) {
		b.publishMarks(now)
	}
	return err
}

// mend makes [off, off+n), which has been written, readable if it was not. It is called
// before the write is answered; an error is the write's, and the blocks stay marked.
func (b *badBlocks) mend(off, n int64) error { return b.mendAtomic(off, n, 0) }

// mendAtomic is mend for an atomic write, which is over when the marks are gone: done is the
// sum of the entry in the undo journal that is not to be put back from then on; 0: there is none.
func (b *badBlocks) mendAtomic(off, n int64, done uint64) error {
	if !b.marked(off, n) {
		return nil
	}
	if err := b.medium.dev.FlushRange(off, n); err != nil {
		return err
	}
	b.state.mu.Lock()
	defer b.state.mu.Unlock()
	was := b.marksNow()
	now := was.without(off, off+n)
	if len(now) > maxPieces && len(now) > len(was) {
		return fmt.Errorf("marked blocks would be in more than %d pieces: %w", maxPieces, blockdev.ErrNoSpace)
	}
	next := b.state.kept
	next.Marks = now
	if done != 0 {
		next.Done = done
	}
	if err := b.state.save(next); err != nil {
		return fmt.Errorf("the blocks are written, and stay marked as bad: %w", err)
	}
	b.publishMarks(now)
	return nil
}

// cutMarks forgets the marks behind a new end: what is there when the volume grows again has
// never been marked. If that cannot be saved they stay, as a later life would have them too.
func (b *badBlocks) cutMarks(size int64) {
	if b.marks.Load() == nil {
		return
	}
	b.state.mu.Lock()
	defer b.state.mu.Unlock()
	was := b.marksNow()
	if len(was) == 0 || was[len(was)-1].end <= size {
		return
	}
	next := b.state.kept
	next.Marks = was.without(size, math.MaxInt64)
	if b.state.save(next) == nil {
		b.publishMarks(next.Marks)
	}
}

// marksNow returns the marks. Preconditions: state.mu is held.
func (b *badBlocks) marksNow() marks {
	if m := b.marks.Load(); m != nil {
		return *m
	}
	return nil
}

// publishMarks puts marks in force. Preconditions: state.mu is held.
func (b *badBlocks) publishMarks(m marks) {
	if len(m) == 0 {
		b.marks.Store(nil)
		return
	}
	b.marks.Store(&m)
}

// WriteAt is WriteAt of the device; stop ends a wait for space. Marked blocks are readable
// afterwards, as they are after WriteZeroes and Discard.
func (b *badBlocks) WriteAt(p []byte, off int64, stop blockdev.Stop) error {
	if err := b.write(p, off, stop); err != nil {
		return err
	}
	return b.mend(off, int64(len(p)))
}

// write is WriteAt that leaves marks as they are.
func (b *badBlocks) write(p []byte, off int64, stop blockdev.Stop) error {
	var err error
	if w, ok := b.medium.dev.(blockdev.SpaceWaiter); ok {
		_, err = w.WriteAtUntil(p, off, stop)
	} else {
		_, err = b.medium.dev.WriteAt(p, off)
	}
	return err
}

// WriteZeroes is WriteZeroes of the device; stop ends a wait for space.
func (b *badBlocks) WriteZeroes(off, n int64, mayUnmap bool, stop blockdev.Stop) error {
	if err := b.zero(off, n, mayUnmap, stop); err != nil {
		return err
	}
	return b.mend(off, n)
}

// zero is WriteZeroes that leaves marks as they are.
func (b *badBlocks) zero(off, n int64, mayUnmap bool, stop blockdev.Stop) error {
	if w, ok := b.medium.dev.(blockdev.SpaceWaiter); ok {
		return w.WriteZeroesUntil(off, n, mayUnmap, stop)
	}
	return b.medium.dev.WriteZeroes(off, n, mayUnmap)
}

// Discard is Discard of the device; stop ends a wait for space.
func (b *badBlocks) Discard(off, n int64, stop blockdev.Stop) (err error) {
	if w, ok := b.medium.dev.(blockdev.SpaceWaiter); ok {
		err = w.DiscardUntil(off, n, stop)
	} else {
		err = b.medium.dev.Discard(off, n)
	}
	if err != nil {
		return err
	}
	return b.mend(off, n)
}
