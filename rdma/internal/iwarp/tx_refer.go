package iwarp

import (
	"slices"
	"unsafe"

	"softiser/internal/resident"
	"softiser/rdma/internal/mem"
	"softiser/rdma/internal/wire"
)

// askMin is how long a message is at least of which it is asked whether it is in memory. If it is, the
// scheduler is not told of the call, even where the message has been sent lately and is not read:
// of a call of more than 20 µs, as these are, the scheduler would take the processor away, by waking
// a thread up, and the transmitter would have to get it back (ADR 78). Answers that have been sent
// lately are not asked for: 1 MiB writes over iSER had 0.97 of their IOPS (0.91 to 1.10).
const askMin = 16 << 10

// lately is where the last long messages began that have been sent. Memory that is sent again
// soon is still in a cache, and what is in a cache the kernel copies as fast as it can be read.
type lately struct {
	at   [8]uintptr
	next int
}

// again reports whether a message from where c stands has been sent lately, and enters it.
func (l *lately) again(c mem.Cursor) bool {
	at := uintptr(unsafe.Pointer(unsafe.SliceData(c.Next(1))))
	if slices.Contains(l.at[:], at) {
		return true
	}
	l.at[l.next] = at
	l.next = (l.next + 1) % len(l.at)
	return false
}

// refer adds n bytes of payload from c to the round by reference, and continues crc over them. What
// the kernel is going to copy is asked for, or read, beforehand; see askMin and lately.
func (t *transmitter) refer(n int, c *mem.Cursor, crc uint32) uint32 {
	m, r := &t.cur, &t.round
	if m.off == 0 {
		byRef := r.mayRef && !m.resp // see zerocopy.write
		long := !t.form.crc && !byRef && m.length >= askMin
		m.load = long && !t.lately.again(*c)
		if m.ask = m.load || long && !m.resp; m.ask {
			t.there = resident.Asked{}
		}
	}
	for left := n; left > 0; {
		if m.ask { // once false, the rest is not asked for: that would be a call for each piece
			rest := *c
			m.ask = t.there.There(rest.Next(int(m.length-m.off)-(n-left)), left)
		}
		p := c.Next(left)
		switch {
		case t.form.crc:
			crc = wire.CRC(crc, p) // reads all of it, so that it is resident
		case m.ask && m.load:
			resident.Load(p) // likewise
			r.limit = roundRead
		case !m.ask:
			r.soon = r.soon && resident.Holds(p)
		}
		r.put(p)
		left -= len(p)
	}
	r.bytes += n
	r.off += uint64(n)
	r.open = false
	t.stats.Direct += uint64(n)
	return crc
}
