package iwarp

import (
	"fmt"
	"slices"
	"testing"

	"softiser/internal/sockio"
)

// TestEarly: of the messages that end a wait a quarter is handed up before the rest, where they are many;
// of what is read without a wait, nothing.
func TestEarly(t *testing.T) {
	for _, tc := range []struct {
		come int // messages that end the wait
		want []int
	}{
		{1, []int{1}},
		{sockio.Many - 1, []int{sockio.Many - 1}},
		{sockio.Many, []int{2, sockio.Many - 2}},
		{8, []int{2, 6}},
		{32, []int{8, 24}},
	} {
		for _, crc := range rigModes {
			t.Run(fmt.Sprintf("%d/crc=%v", tc.come, crc), func(t *testing.T) {
				r := newRig(t, crc)
				parts := r.parts()
				for range 3 {
					var b []byte
					for range tc.come {
						b = append(b, r.send(fill(48, uint64(tc.come)), 0)...)
					}
					*parts = nil
					r.feed(b)
					if !slices.Equal(*parts, tc.want) {
						t.Fatalf("handed up in parts of %v, want %v", *parts, tc.want)
					}
				}
			})
		}
	}
}

// TestEarlyBesideData: the answers of READs, of which most bytes are put to their places, are counted as well.
func TestEarlyBesideData(t *testing.T) {
	r := newRig(t, true)
	r.warm()
	parts := r.parts()
	for range 3 {
		var b []byte
		k := r.lend(4<<10, 8, 3)
		for i := range k {
			b = append(b, r.answer(&k[i], 1<<16, false)...)
		}
		*parts = nil
		r.feed(b)
		r.verify(k)
		if len(*parts) < 2 || (*parts)[0] != 2 {
			t.Fatalf("handed up in parts of %v, want 2 first", *parts)
		}
	}
}

// TestEarlyOnce: what is read behind the first call of a turn ends no wait, so it stays together.
func TestEarlyOnce(t *testing.T) {
	r := newRig(t, true)
	parts := r.parts()
	var b []byte
	for range 16 {
		b = append(b, r.send(fill(48, 1), 0)...)
	}
	first := true
	r.qp.RecvCQ.Init(1024, r.handler(parts, func() {
		if first {
			first = false // before the socket is found empty: the next read brings it at once
			more := slices.Clone(b[:0])
			for range 16 {
				more = append(more, r.send(fill(48, 1), 0)...)
			}
			if _, err := r.peer.Write(more); err != nil {
				t.Error(err)
			}
		}
	}))
	r.feed(b)
	if want := []int{4, 12, 16}; !slices.Equal(*parts, want) {
		t.Errorf("handed up in parts of %v, want %v", *parts, want)
	}
}

// parts makes the rig note how many messages are handed up at a time.
func (r *rxRig) parts() *[]int {
	n := new([]int)
	r.qp.RecvCQ.Init(1024, r.handler(n, func() {}))
	return n
}

// handler takes completions as a user does who posts a buffer for each, appends their number to
// parts, and calls then.
func (r *rxRig) handler(parts *[]int, then func()) func() {
	return func() {
		n := len(r.poll())
		r.post(64)
		if n > 0 {
			*parts = append(*parts, n)
			then()
		}
	}
}
