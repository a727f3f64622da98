package iscsi

import "fmt"

// EncodeLUN returns the eight wire bytes of a single-level logical unit number
// (SAM-5 §4.7): peripheral addressing below 256, flat space up to 16383.
func EncodeLUN(n int) uint64 {
	if n < 256 {
		return uint64(n) << 48
	}
	return uint64(0x4000|n&0x3fff) << 48
}

// DecodeLUN returns the number of a single-level LUN; ok is false for other
// addressing methods, buses other than 0 and further levels.
func DecodeLUN(w uint64) (n int, ok bool) {
	if w<<16 != 0 {
		return 0, false
	}
	top := uint16(w >> 48)
	switch top >> 14 {
	case 0: // peripheral: bus in the low six bits
		return int(top & 0xff), top>>8 == 0
	case 1: // flat space
		return int(top & 0x3fff), true
	}
	return 0, false
}

// FormatLUN formats the eight wire bytes for people.
func FormatLUN(w uint64) string {
	if n, ok := DecodeLUN(w); ok {
		return fmt.Sprint(n)
	}
	return fmt.Sprintf("%#016x", w)
}
