// Package segs walks the segments of a transfer: memory in pieces. They may belong to the mapping
// of a file that has been truncated, so functions that touch them survive a fault and report it.
package segs

import (
	"runtime/debug"

	"softiser/internal/crc32c"
	"softiser/internal/memfault"
)

// View is a range of memory in pieces, found once and then walked. The list of
// segments is borrowed and not changed.
type View struct {
	segs [][]byte
	off  int // into segs[0]
	n    int // bytes
}

// Of returns the view of [off, off+n) of list, which must contain it.
func Of(list [][]byte, off, n int) View {
	for len(list) > 0 && off >= len(list[0]) {
		off -= len(list[0])
		list = list[1:]
	}
	return View{list, off, n}
}

// Len returns the bytes that are left.
func (v *View) Len() int { return v.n }

// Pieces returns how many segments are left at most.
func (v *View) Pieces() int { return len(v.segs) }

// First returns the first n bytes of v, at most Len.
func (v View) First(n int) View {
	v.n = n
	return v
}

// Skip drops the first k bytes, at most Len.
func (v *View) Skip(k int) {
	v.n -= k
	v.off += k
	for len(v.segs) > 0 && v.off >= len(v.segs[0]) {
		v.off -= len(v.segs[0])
		v.segs = v.segs[1:]
	}
}

// Next returns the first piece that is contiguous; empty at the end.
func (v *View) Next() []byte {
	if v.n == 0 {
		return nil
	}
	s := v.segs[0][v.off:]
	return s[:min(len(s), v.n)]
}

// Append adds the pieces of v to dst.
func (v View) Append(dst [][]byte) [][]byte {
	for v.n > 0 {
		s := v.Next()
		dst = append(dst, s)
		v.Skip(len(s))
	}
	return dst
}

// Total returns the bytes of list.
func Total(list [][]byte) int {
	n := 0
	for _, s := range list {
		n += len(s)
	}
	return n
}

// Checksum continues a CRC32C over what is left of v. ok is false if the memory
// cannot be read.
func (v View) Checksum(crc uint32) (sum uint32, ok bool) {
	defer memfault.Guard(debug.SetPanicOnFault(true), &ok)
	for v.n > 0 {
		s := v.Next()
		crc = crc32c.Update(crc, s)
		v.Skip(len(s))
	}
	return crc, true
}

// Copy is copy for memory that may fault.
func Copy(dst, src []byte) (n int, ok bool) {
	defer memfault.Guard(debug.SetPanicOnFault(true), &ok)
	return copy(dst, src), true
}
