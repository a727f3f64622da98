package pdustream_test

import (
	"bytes"
	"slices"
	"testing"

	"softiser/internal/await"
	"softiser/internal/loopback"
	"softiser/internal/sockio"
)

// TestEarlyBatch: of the PDUs that end a wait a quarter is answered before the rest, where they are many: those
// that are read ahead, and those whose data has been guessed.
func TestEarlyBatch(t *testing.T) {
	for _, tc := range []struct {
		name  string
		guess bool
		apart bool // an answer follows the data of each read
		many  int  // PDUs, or reads
		want  []int
	}{
		{"few", false, false, sockio.Many - 1, []int{sockio.Many - 1}},
		{"many", false, false, 32, []int{8, 24}},
		{"few guessed", true, false, sockio.Many - 1, []int{sockio.Many - 1}},
		{"guessed", true, false, 16, []int{4, 12}},
		{"guessed with answers", true, true, 16, []int{8, 24}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			a, b := loopback.Pair(t)
			defer a.Close()
			p := newParty(t, b)
			if tc.guess {
				p.Foresee(p)
			}
			flag := byte(endsRead)
			if tc.apart {
				flag = 0
			}
			for range 6 { // the first ones teach how many to guess
				var all []byte
				for range tc.many {
					id := len(p.reads)
					p.reads = append(p.reads, &read{mem: [][]byte{make([]byte, 16)}})
					all = append(all, frame(kindData, flag, uint16(id), pattern(id, 16), false)...)
					if tc.apart {
						all = append(all, frame(kindEnd, 0, uint16(id), nil, false)...)
					}
				}
				p.batches = nil
				if _, err := a.Write(all); err != nil {
					t.Fatal(err)
				}
				if !await.Until(func() bool { return p.Ready() || p.reads[len(p.reads)-1].over }) {
					t.Fatal("not all has come")
				}
			}
			if !slices.Equal(p.batches, tc.want) {
				t.Errorf("answered in parts of %v, want %v", p.batches, tc.want)
			}
			for id, r := range p.reads {
				if !r.over || !bytes.Equal(r.mem[0], pattern(id, 16)) {
					t.Errorf("read %d has % x", id, r.mem[0])
				}
			}
			if guessed := p.guessed > 0; guessed != tc.guess {
				t.Errorf("%d PDUs were guessed", p.guessed)
			}
		})
	}
}
