package sockio

import "testing"

// TestEarly: of n messages of the same length the first quarter is over once, if they are many and
// end a wait.
func TestEarly(t *testing.T) {
	for _, tc := range []struct {
		many, first int
	}{{1, 0}, {2, 0}, {Many - 1, 0}, {Many, 2}, {8, 2}, {11, 2}, {12, 3}, {32, 8}, {128, 32}} {
		for _, waited := range []bool{true, false} {
			var e Early
			want := 0
			if waited {
				e.Waited()
				want = tc.first
			}
			got := 0
			for n := range tc.many + 1 {
				if e.Over(n, n*100, tc.many*100) {
					if got != 0 {
						t.Errorf("%d messages: over after %d, and again after %d", tc.many, got, n)
					}
					got = n
				}
			}
			if got != want {
				t.Errorf("%d messages, waited %v: over after %d, want %d", tc.many, waited, got, want)
			}
		}
	}
}
