package snap

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/bits"

	"softiser/blockdev"
)

// Store is an exception store. The mu of its Set guards it, but for the end of
// the list.
type Store struct {
	dev    blockdev.Device
	chunk  int64 // bytes
	per    int   // entries of an area
	chunks uint64

	valid bool
	// It is lost, but the header could not be made to say so when it was opened.
	unmarked bool

	table map[uint64]uint64 // old chunk → new chunk
	next  uint64            // next free chunk
	areas int               // that hold entries

	pending map[uint64]*claim // old chunk → who copies it; until it is recorded

	shrinking chan struct{} // closed when it is known what chunks are left; may be nil

	// The end of the list. Who commits writes it, or who merges: nothing is
	// committed to a store that is merged.
	area  int    // current area
	count int    // entries in it
	image []byte // its content
	stale bool   // on disk something follows the end, which a loss of power has left of a commit

	// Chunks that have been merged, but of which the list on disk may or may not
	// say so, because writing it failed.
	doubt map[uint64]bool
}

// OpenStore reads the store on dev; a device that begins with zeroes becomes
// an empty one with chunks of chunk bytes.
func OpenStore(dev blockdev.Device, chunk int64) (*Store, error) {
	i := dev.Info()
	b := make([]byte, max(4096, i.BlockSize))
	if i.Size < int64(len(b)) {
		return nil, fmt.Errorf("snapshot store of %d bytes is too small", i.Size)
	}
	if _, err := dev.ReadAt(b, 0); err != nil {
		return nil, fmt.Errorf("reading the header of a snapshot store: %w", err)
	}
	h, err := parseHeader(b)
	if err != nil {
		return nil, err
	}
	s := &Store{dev: dev, valid: true, table: map[uint64]uint64{}, pending: map[uint64]*claim{}, doubt: map[uint64]bool{}, next: firstChunk}
	if h == nil {
		if err := s.layout(chunk); err != nil {
			return nil, err
		}
		return s, s.format()
	}
	if err := s.layout(int64(h.chunk) * 512); err != nil {
		return nil, err
	}
	if !h.valid {
		s.valid = false
		// As settle: the disk may still say that it is valid. Whoever adds it to a Set has that mended.
		s.unmarked = !i.ReadOnly && s.writeHeader() != nil
		return s, nil
	}
	if err := s.load(); err != nil {
		return nil, err
	}
	return s, s.settle()
}

type header struct {
	valid bool
	chunk uint32 // sectors
}

// parseHeader returns nil for a fresh store.
func parseHeader(b []byte) (*header, error) {
	le := binary.LittleEndian
	switch le.Uint32(b) {
	case 0:
		return nil, nil
	case magic:
	default:
		return nil, fmt.Errorf("snapshot store has magic %#x, neither %#x nor 0: it holds something else", le.Uint32(b), magic)
	}
	if v := le.Uint32(b[8:]); v != version {
		return nil, fmt.Errorf("snapshot store has version %d, only 1 is understood", v)
	}
	return &header{valid: le.Uint32(b[4:]) != 0, chunk: le.Uint32(b[12:])}, nil
}

func (s *Store) layout(chunk int64) error {
	if chunk < minChunk || chunk > maxChunk || bits.OnesCount64(uint64(chunk)) != 1 || chunk < int64(s.dev.Info().BlockSize) {
		return fmt.Errorf("snapshot chunk size of %d bytes is not a power of two from %d to %d, or below the block size", chunk, minChunk, maxChunk)
	}
	s.chunk, s.per = chunk, int(chunk/entrySize)
	s.chunks = uint64(s.dev.Info().Size / chunk)
	s.image = make([]byte, chunk)
	if s.chunks < firstChunk+1 {
		return fmt.Errorf("snapshot store of %d bytes has no room for a chunk of %d", s.dev.Info().Size, chunk)
	}
	return nil
}

// format writes an empty store: area first, so that the header never names one
// with old content.
func (s *Store) format() error {
	if err := s.write(make([]byte, s.chunk), s.areaChunk(0)); err != nil {
		return err
	}
	if err := s.dev.Flush(); err != nil {
		return err
	}
	return s.writeHeader()
}

func (s *Store) writeHeader() error {
	b := make([]byte, s.chunk)
	le := binary.LittleEndian
	le.PutUint32(b, magic)
	if s.valid {
		le.PutUint32(b[4:], 1)
	}
	le.PutUint32(b[8:], version)
	le.PutUint32(b[12:], uint32(s.chunk/512))
	if err := s.write(b, 0); err != nil {
		return err
	}
	return s.dev.Flush()
}

func (s *Store) write(p []byte, chunk uint64) error {
	_, err := s.dev.WriteAt(p, int64(chunk)*s.chunk)
	return err
}

func (s *Store) areaChunk(k int) uint64 { return 1 + uint64(s.per+1)*uint64(k) }

// isArea reports whether a chunk holds entries.
func (s *Store) isArea(c uint64) bool { return c%uint64(s.per+1) == 1 }

// load reads the areas up to the first free entry.
func (s *Store) load() error {
	for s.area = 0; ; s.area++ {
		at := s.areaChunk(s.area)
		if at >= s.chunks {
			// The last area is full and there is no room for another.
			clear(s.image)
			s.count = 0
			break
		}
		if _, err := s.dev.ReadAt(s.image, int64(at)*s.chunk); err != nil {
			return fmt.Errorf("reading exceptions: %w", err)
		}
		n, err := s.parseArea()
		if err != nil {
			return err
		}
		if s.count = n; n < s.per {
			break
		}
	}
	s.areas = s.area
	s.skip()
	return nil
}

// settle makes durable what load has found. Its writer may have been killed before it flushed
// it, or the flush has failed, and then only the page cache has it: the origin would be overwritten
// where the disk has no exception, or would be merged into anew from one that has been taken away.
// It is written again, because after a flush that failed the kernel takes it for written. Only the
// header and the end of the list can be meant: each area was flushed before the next one was begun.
func (s *Store) settle() error {
	if s.dev.Info().ReadOnly {
		return nil
	}
	if s.count == 0 && s.area > 0 {
		full := make([]byte, s.chunk)
		at := s.areaChunk(s.area - 1)
		_, err := s.dev.ReadAt(full, int64(at)*s.chunk)
		if err == nil {
			err = s.write(full, at)
		}
		if err != nil {
			return fmt.Errorf("making exceptions durable: %w", err)
		}
	}
	if at := s.areaChunk(s.area); at < s.chunks {
		if err := s.write(s.image, at); err != nil {
			return fmt.Errorf("making exceptions durable: %w", err)
		}
	}
	if err := s.writeHeader(); err != nil { // flushes
		return fmt.Errorf("making exceptions durable: %w", err)
	}
	s.stale = false
	return nil
}

func (s *Store) parseArea() (int, error) {
	le := binary.LittleEndian
	for i := 0; i < s.per; i++ {
		e := s.image[i*entrySize:]
		from, to := le.Uint64(e), le.Uint64(e[8:])
		if to == 0 {
			rest := s.image[i*entrySize:]
			s.stale = !bytes.Equal(rest, make([]byte, len(rest)))
			clear(rest)
			return i, nil
		}
		if to < firstChunk || to >= s.chunks || s.isArea(to) {
			return 0, fmt.Errorf("snapshot store: exception for chunk %d is said to be in chunk %d of %d", from, to, s.chunks)
		}
		s.table[from] = to
		if to >= s.next {
			s.next = to + 1
		}
	}
	return s.per, nil
}

func (s *Store) skip() {
	if s.isArea(s.next) {
		s.next++
	}
}

// alloc takes the next free chunk; ok is false when the store is full.
func (s *Store) alloc() (c uint64, ok bool) {
	if s.next >= s.chunks {
		return 0, false
	}
	c = s.next
	s.next++
	s.skip()
	return c, true
}

// pair is an exception that is about to be recorded.
type pair struct{ from, to uint64 }

// record makes exceptions durable whose data has been written; has says whether
// the store has a chunk. recordedLocked makes them visible.
func (s *Store) record(ps []pair, has func(chunk uint64) bool) error {
	if s.stale { // a list that grows must not run on into it, should the next commit be torn, too
		if err := s.write(s.image, s.areaChunk(s.area)); err != nil {
			return err
		}
	}
	if err := s.dev.Flush(); err != nil {
		return err
	}
	s.stale = false
	for i := 0; i < len(ps); {
		n := min(len(ps)-i, s.per-s.count)
		for j, p := range ps[i : i+n] {
			e := s.image[(s.count+j)*entrySize:]
			binary.LittleEndian.PutUint64(e, p.from)
			binary.LittleEndian.PutUint64(e[8:], p.to)
		}
		full := s.count+n == s.per
		if full {
			// The list must have an end before it may run on into the next area.
			next := s.areaChunk(s.area + 1)
			if !has(next) {
				return blockdev.ErrNoSpace
			}
			if err := s.write(make([]byte, s.chunk), next); err != nil {
				return err
			}
			if err := s.dev.Flush(); err != nil {
				return err
			}
		}
		if err := s.write(s.image, s.areaChunk(s.area)); err != nil {
			return err
		}
		if err := s.dev.Flush(); err != nil {
			return err
		}
		i, s.count = i+n, s.count+n
		if full {
			s.area, s.count = s.area+1, 0
			clear(s.image)
		}
	}
	return nil
}

// recordedLocked makes exceptions visible.
func (s *Store) recordedLocked(ps []pair) {
	for _, p := range ps {
		s.table[p.from] = p.to
		delete(s.pending, p.from)
	}
	s.areas = s.area
}

// Invalidate marks the store as lost. When that cannot be written the store would
// be taken for valid after a restart: somebody else has to remember it.
func (s *Store) Invalidate() error {
	s.valid = false
	return s.writeHeader()
}

// lastRun returns the exceptions at the end of the list that are contiguous on
// both sides, at most limit of them, in ascending order; none: the store is
// empty.
func (s *Store) lastRun(limit int) (from, to uint64, n int, err error) {
	if s.count == 0 {
		if s.area == 0 {
			return 0, 0, 0, nil
		}
		s.area--
		if _, err := s.dev.ReadAt(s.image, int64(s.areaChunk(s.area))*s.chunk); err != nil {
			s.area++
			return 0, 0, 0, fmt.Errorf("reading exceptions: %w", err)
		}
		s.count = s.per
	}
	le := binary.LittleEndian
	entry := func(i int) (uint64, uint64) {
		e := s.image[i*entrySize:]
		return le.Uint64(e), le.Uint64(e[8:])
	}
	from, to = entry(s.count - 1)
	n = 1
	for n < limit && n < s.count {
		f, t := entry(s.count - 1 - n)
		if f != from-1 || t != to-1 {
			break
		}
		from, to, n = f, t, n+1
	}
	return from, to, n, nil
}

// dropLast forgets the last n exceptions: they have been merged. When that fails
// they are in doubt, and still there.
func (s *Store) dropLast(n int) error {
	left := bytes.Clone(s.image)
	clear(left[(s.count-n)*entrySize : s.count*entrySize])
	err := s.write(left, s.areaChunk(s.area))
	if err == nil {
		err = s.dev.Flush()
	}
	for i := s.count - n; i < s.count; i++ {
		c := binary.LittleEndian.Uint64(s.image[i*entrySize:])
		if err != nil {
			s.doubt[c] = true
			continue
		}
		delete(s.doubt, c)
		delete(s.table, c)
	}
	if err != nil {
		return err
	}
	s.image = left
	s.count -= n
	s.areas = s.area
	return nil
}

// Usage is how full a store is.
type Usage struct {
	Valid       bool   // false: it has overflowed or failed, and is lost
	Used, Total uint64 // bytes
	Metadata    uint64 // bytes of header and areas
	Exceptions  int    // chunks that differ from the origin
	Chunk       int64  // bytes
}

func (s *Store) usage() Usage {
	return Usage{Valid: s.valid, Used: min(s.next, s.chunks) * uint64(s.chunk), Total: s.chunks * uint64(s.chunk),
		Metadata: uint64(s.areas+2) * uint64(s.chunk), Exceptions: len(s.table), Chunk: s.chunk}
}

// Percent is what lvm2 shows as Data%.
func (u Usage) Percent() float64 {
	switch {
	case !u.Valid || u.Used >= u.Total:
		return 100
	case u.Used <= u.Metadata:
		return 0
	}
	return float64(u.Used) * 100 / float64(u.Total)
}
