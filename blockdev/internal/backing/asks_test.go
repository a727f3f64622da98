package backing

import "testing"

// The kernel is asked as long as it pays, and now and then when it does not.
func TestAsks(t *testing.T) {
	var a asks
	ask := func(n int, inMemory bool) (asked int) {
		for range n {
			if a.worth() {
				asked++
				a.was(inMemory)
			}
		}
		return asked
	}
	for _, c := range []struct {
		what     string
		n        int
		inMemory bool
		want     int
	}{
		{"in vain", vainMost, false, vainMost},
		{"in vain for long", 10 * vainEvery, false, 10},
		{"until the next that is", vainEvery, true, 1},
		{"all are", 100, true, 100},
	} {
		if got := ask(c.n, c.inMemory); got != c.want {
			t.Errorf("%s: asked %d times of %d, want %d", c.what, got, c.n, c.want)
		}
	}
}
