package bench

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// Payload says what writes carry. Zero values and the names are fio's.
//
//	default            random bytes, drawn once; scrambled for each write
//	zero_buffers       zeroes, written: memory nobody has written is one page of the kernel's, and always cached
//	buffer_pattern     the pattern over and over
//	refill_buffers     random bytes, drawn for each write
//	buffer_compress_…  each chunk is random at its front, pattern or zeroes behind
//	dedupe_percentage  so many writes carry what another one carries, too
type Payload struct {
	zero         bool
	pattern      []byte
	refill       bool
	scramble     int // 1: on, 0: by default on, -1: off
	compress     int // percent
	chunk        int // bytes of one compressible piece
	dedupe       int // percent of the writes
	fromSet      bool
	workingSet   int  // percent of the range that the duplicates are taken from
	dedupeGlobal bool // the working set is that of all jobs together
}

// refills reports whether each write gets its content anew.
func (j *Job) refills() bool {
	p := &j.Payload
	return p.refill || p.drawn() || p.pattern != nil && j.mixed() // reads overwrite the pattern in the buffers
}

// drawn reports whether content is made piece by piece.
func (p *Payload) drawn() bool { return p.compress > 0 && p.compress < 100 || p.dedupe > 0 }

// scrambles reports whether a little of each block is made its own, so that
// nothing can be stored once for all of them.
func (j *Job) scrambles() bool {
	p := &j.Payload
	if j.Verify != VerifyNone || j.refills() || p.compress > 0 {
		return false
	}
	return p.scramble > 0 || p.scramble == 0 && !p.zero && p.pattern == nil
}

// filler makes the content of one clone's writes.
type filler struct {
	p         *Payload
	refills   bool // each write gets its content anew
	scrambles bool // each write is made its own, but for most of its content

	draws   rng    // which are duplicates, and of what
	seed    uint64 // of this clone; that of the next one is one more
	made    uint64 // contents made that are no duplicates
	block   int    // bytes of the smallest write
	pages   uint64 // contents in the working set
	clone   uint64 // number of this clone in the run, from 0
	clones  uint64 // in the run
	written uint64 // for scramble
}

func newFiller(j *Job, size int64) filler {
	f := filler{
		p: &j.Payload, refills: j.refills(), scrambles: j.scrambles(), seed: j.Seed, block: j.BS[dirWrite].Min,
		clone: uint64(max(j.thread, 1) - 1), clones: uint64(max(j.threads, 1)),
	}
	f.draws = rng(mix64(j.Seed + uint64(j.thread)<<48))
	f.pages = max(uint64(size)/100*uint64(j.Payload.workingSet)/uint64(f.block), 1)
	return f
}

// content is the seed of the n-th content of a clone.
func (f *filler) content(clone, n uint64) uint64 {
	return mix64(mix64(f.seed+clone) + n)
}

// choose returns the seed of the next write's content.
func (f *filler) choose() uint64 {
	p := f.p
	if p.dedupe > 0 && (p.dedupe == 100 || f.draws.below(100) < uint64(p.dedupe)) {
		switch {
		case !p.fromSet:
			return f.content(f.clone, max(f.made, 1)-1) // the last one again
		case p.dedupeGlobal:
			page, each := f.draws.below(f.pages), max(f.pages/f.clones, 1)
			return f.content((f.clone+page/each)%f.clones, page%each)
		}
		return f.content(f.clone, f.draws.below(f.pages))
	}
	f.made++
	return f.content(f.clone, f.made-1)
}

// renew makes buf, which fill has filled once, the content of a write at off.
func (f *filler) renew(buf []byte, off int64) {
	switch {
	case f.refills:
		f.fill(buf)
	case f.scrambles:
		f.scramble(buf, off)
	}
}

// fill makes buf the content of one write.
func (f *filler) fill(buf []byte) {
	p := f.p
	switch {
	case p.drawn():
		f.pieces(buf, f.choose())
	case p.pattern != nil:
		repeat(buf, p.pattern)
	case p.zero || p.compress == 100:
		clear(buf)
	default:
		fillRandom(buf, f.choose())
	}
}

// pieces fills buf with chunks of which only the front is random.
func (f *filler) pieces(buf []byte, seed uint64) {
	n := f.block
	if f.p.chunk > 0 {
		n = min(n, f.p.chunk)
	}
	for i := uint64(0); len(buf) > 0; i++ {
		piece := buf[:min(n, len(buf))]
		buf = buf[len(piece):]
		front := len(piece) * (100 - f.p.compress) / 100
		if f.p.dedupe == 100 {
			i = 0 // fio repeats not only the write, but also its pieces
		}
		fillRandom(piece[:front], mix64(seed+i))
		repeat(piece[front:], f.p.pattern)
	}
}

// scramble makes each 512 bytes of a write of its own: its offset, and a number
// that no other write of the clone has, in one cache line each.
func (f *filler) scramble(buf []byte, off int64) {
	f.written++
	line := int(mix64(f.written)&7) << 6
	for ; len(buf) >= 512; buf, off = buf[512:], off+512 {
		binary.LittleEndian.PutUint64(buf[line:], uint64(off))
		binary.LittleEndian.PutUint64(buf[48:], f.clone)
		binary.LittleEndian.PutUint64(buf[56:], f.written)
	}
}

// maxPattern is fio's limit.
const maxPattern = 512

// setPattern reads fio's patterns: any sequence of strings in double quotes,
// hexadecimal numbers of any length (0x…, first byte first), decimal numbers of 32
// bits (lowest byte first) and names of files in single quotes.
func setPattern(j *Job, v string) error {
	var out []byte
	for rest := v; rest != ""; {
		piece, behind, err := patternPiece(rest)
		if err != nil {
			return err
		}
		out, rest = append(out, piece...), behind
	}
	if len(out) == 0 || len(out) > maxPattern {
		return fmt.Errorf("a pattern of %d bytes (expected 1 to %d)", len(out), maxPattern)
	}
	j.Payload.pattern = out
	return nil
}

// patternPiece parses the first piece of a buffer pattern: a text in double quotes, a
// file in single ones, or a number.
func patternPiece(s string) (piece []byte, rest string, err error) {
	if s[0] == '"' || s[0] == '\'' {
		text, behind, ok := strings.Cut(s[1:], s[:1])
		if !ok {
			return nil, "", fmt.Errorf("no closing %s", s[:1])
		}
		if s[0] == '"' {
			return []byte(text), behind, nil
		}
		b, err := os.ReadFile(text)
		if len(b) > maxPattern {
			b = b[:maxPattern]
		}
		return b, behind, err
	}
	low := strings.ToLower(s)
	end := strings.IndexAny(low, `"'`)
	if end < 0 {
		end = len(s)
	}
	if digits, hexadecimal := strings.CutPrefix(low[:end], "0x"); hexadecimal {
		if k := strings.Index(digits, "0x"); k >= 0 {
			digits = digits[:k]
		}
		for i := -(len(digits) % 2); i < len(digits); i += 2 {
			b, err := strconv.ParseUint(digits[max(i, 0):i+2], 16, 8)
			if err != nil {
				return nil, "", errors.New("expected strings in quotes, 0x… and decimal numbers")
			}
			piece = append(piece, byte(b))
		}
		return piece, s[2+len(digits):], nil
	}
	if k := strings.Index(low[:end], "0x"); k > 0 {
		end = k
	}
	n, err := strconv.ParseInt(low[:end], 10, 32)
	if err != nil {
		return nil, "", errors.New("expected strings in quotes, 0x… and decimal numbers of 32 bits")
	}
	for u := uint32(n); u != 0 || piece == nil; u >>= 8 {
		piece = append(piece, byte(u))
	}
	return piece, s[end:], nil
}

func setScramble(j *Job, v string) error {
	on, err := parseBool(v)
	if j.Payload.scramble = -1; on {
		j.Payload.scramble = 1
	}
	return err
}

func setDedupeMode(j *Job, v string) error {
	switch strings.ToLower(v) {
	case "repeat":
		j.Payload.fromSet = false
	case "working_set":
		j.Payload.fromSet = true
	default:
		return errors.New("expected repeat or working_set")
	}
	return nil
}

func (j *Job) checkPayload(fail func(string, ...any) error) error {
	p := &j.Payload
	for _, v := range []struct {
		key   string
		value int
	}{{"buffer_compress_percentage", p.compress}, {"dedupe_percentage", p.dedupe}, {"dedupe_working_set_percentage", p.workingSet}} {
		if v.value < 0 || v.value > 100 {
			return fail("%s %d must lie between 0 and 100", v.key, v.value)
		}
	}
	switch {
	case p.chunk < 0:
		return fail("buffer_compress_chunk %d must not be negative", p.chunk)
	case p.dedupe > 0 && p.fromSet && j.Size == (Size{}):
		return fail("dedupe_mode=working_set needs a size")
	case p.dedupe > 0 && p.fromSet && p.dedupe+p.workingSet > 100:
		return fail("dedupe_percentage %d cannot be had with a dedupe_working_set_percentage of %d, whose blocks are no duplicates: together at most 100", p.dedupe, p.workingSet)
	case p.dedupe > 0 && j.Verify != VerifyNone && j.writes():
		return fail("dedupe_percentage cannot be used with verify: every block has its own header")
	}
	return nil
}
