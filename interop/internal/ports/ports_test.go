package ports

import "testing"

// A port comes once, and is none that the system hands out itself.
func TestFree(t *testing.T) {
	seen := map[int]bool{}
	for range 100 {
		p := Free()
		if seen[p] || p < first || p >= last {
			t.Fatalf("port %d, after %d others", p, len(seen))
		}
		seen[p] = true
	}
}
