package iscsi

import (
	"math/rand/v2"
	"testing"
)

// Spans against a bitmap: ranges at random, overlapping ones included.
func TestSpans(t *testing.T) {
	r := rand.New(rand.NewPCG(2, 3))
	for range 300 {
		var s Spans
		var have [200]bool
		for range 60 {
			off := r.Uint32N(200)
			n := r.Uint32N(min(200-off, 20) + 1)
			free := true
			for i := off; i < off+n; i++ {
				free = free && !have[i]
			}
			if got := s.Add(off, n); got != free {
				t.Fatalf("Add(%d, %d) = %v with %v", off, n, got, s)
			}
			for i := off; free && i < off+n; i++ {
				have[i] = true
			}
			var model Spans
			for i := uint32(0); i < 200; i++ {
				if !have[i] {
					continue
				}
				if i > 0 && have[i-1] {
					model[len(model)-1].end++
				} else {
					model = append(model, span{i, i + 1})
				}
			}
			if len(model) != len(s) {
				t.Fatalf("%v, want %v", s, model)
			}
			for i := range s {
				if s[i] != model[i] {
					t.Fatalf("%v, want %v", s, model)
				}
			}
		}
	}
	// Gaps are bounded; closing one makes room.
	var s Spans
	for i := range uint32(maxSpans) {
		if !s.Add(2*i, 1) {
			t.Fatalf("span %d was refused", i)
		}
	}
	if s.Add(2*maxSpans, 1) {
		t.Error("the number of gaps is not bounded")
	}
	if !s.Add(1, 1) || !s.Add(2*maxSpans, 1) {
		t.Error("a gap was closed, but there is no room")
	}
}
