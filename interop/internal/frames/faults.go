package frames

import (
	"math/rand/v2"
	"time"
)

// Faults are the shares of RoCE's packets, of each direction, to which something happens.
// What was sent in between may arrive before a packet that is Late; of a Damaged one a bit of
// what UDP carries is another.
type Faults struct{ Lost, Twice, Late, Damaged float64 }

// Counts are packets of RoCE of one direction.
type Counts struct {
	Seen, Lost, Twice, Late, Damaged int
	Joined                           int // with an identification that is not 0: cut from a message by the kernel
}

// A packet that is late comes after so many others, or when none has come for a moment.
const (
	mostLate = 8
	idle     = 5 * time.Millisecond
)

// dice decides for one direction, packet by packet, by a seed.
type dice struct {
	Faults
	rand *rand.Rand
	held []held
}

type held struct {
	frame []byte
	after int // frames
}

func newDice(f Faults, seed, direction uint64) *dice {
	return &dice{Faults: f, rand: rand.New(rand.NewPCG(seed, direction))}
}

// throw says which frames go on now that one has come. Each fault takes a number of its own,
// so that another share of one leaves the others where they were.
func (d *dice) throw(frame, body []byte, c *Counts) [][]byte {
	lost, twice, late, damaged := d.rand.Float64() < d.Lost, d.rand.Float64() < d.Twice, d.rand.Float64() < d.Late, d.rand.Float64() < d.Damaged
	at, bit, after := d.rand.IntN(len(body)), d.rand.IntN(8), 1+d.rand.IntN(mostLate)
	if damaged {
		c.Damaged++
		body[at] ^= 1 << bit
	}
	var out [][]byte
	switch {
	case lost:
		c.Lost++
	case late:
		c.Late++
		d.held = append(d.held, held{append([]byte(nil), frame...), after})
	case twice:
		c.Twice++
		out = append(out, frame, frame)
	default:
		out = append(out, frame)
	}
	return append(out, d.due(1)...)
}

// due are the frames that have been held for long enough after n more.
func (d *dice) due(n int) (out [][]byte) {
	keep := d.held[:0]
	for _, h := range d.held {
		if h.after -= n; h.after < 0 {
			out = append(out, h.frame)
		} else {
			keep = append(keep, h)
		}
	}
	d.held = keep
	return out
}
