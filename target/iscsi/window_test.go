package iscsi

import (
	"math/rand/v2"
	"testing"

	"softiser/internal/iscsi"
)

func TestWindowEdges(t *testing.T) {
	for _, start := range []uint32{0, 1, 0xfffffff0, 0x7ffffffe} {
		var w window
		w.init(32, start)
		for _, c := range []struct {
			sn   uint32
			want bool
		}{{start, true}, {start + 31, true}, {start + 32, false}, {start - 1, false}} {
			if got := w.Accepts(c.sn); got != c.want {
				t.Errorf("start %#x: Accepts(%#x) = %v", start, c.sn, got)
			}
		}
	}
}

// The window never shrinks, never has more than size commands answerable at
// once, and closes completely when nothing is answered or nothing is drained.
func TestWindowModel(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		size := 1 + rng.IntN(16)
		var w window
		w.init(size, rng.Uint32())
		for range 500 {
			before := w.MaxCmdSN
			switch rng.IntN(3) {
			case 0:
				if w.Accepts(w.ExpCmdSN) {
					w.Advance()
					w.active++
					w.used++
				}
			case 1:
				if w.active > 0 {
					w.active--
				}
			case 2:
				if w.used > w.active {
					w.used--
				}
			}
			w.update()
			if iscsi.SerialLess(w.MaxCmdSN, before) {
				t.Fatalf("MaxCmdSN went back from %d to %d", before, w.MaxCmdSN)
			}
			open := w.Size()
			if open < 0 || w.active+open > size {
				t.Fatalf("active %d + open %d > size %d", w.active, open, size)
			}
			if w.used+open > w.slots {
				t.Fatalf("used %d + open %d > slots %d", w.used, open, w.slots)
			}
		}
	}
}
