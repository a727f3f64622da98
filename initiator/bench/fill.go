package bench

import "encoding/binary"

// fillRandom fills p with the stream of seed.
func fillRandom(p []byte, seed uint64) {
	r := rng(seed)
	for len(p) >= 8 {
		binary.LittleEndian.PutUint64(p, r.next())
		p = p[8:]
	}
	for last := r.next(); len(p) > 0; p, last = p[1:], last>>8 {
		p[0] = byte(last)
	}
}

// repeat fills p with the pattern; without one, with zeroes.
func repeat(p, pattern []byte) {
	if len(pattern) == 0 {
		clear(p)
		return
	}
	n := copy(p, pattern)
	for n < len(p) {
		n += copy(p[n:], p[:n])
	}
}
