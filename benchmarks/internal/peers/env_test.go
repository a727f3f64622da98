package peers

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// What a killed run has left goes, what belongs to a living one stays.
func TestNewScratchCleansUp(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	dead := filepath.Join(os.TempDir(), prefix+"4194305-x") // above the largest process id
	mine := filepath.Join(os.TempDir(), fmt.Sprintf("%s%d-x", prefix, os.Getpid()))
	other := filepath.Join(os.TempDir(), prefix+"notes")
	for _, d := range []string{dead, mine, other} {
		if err := os.Mkdir(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	dir, err := NewScratch()
	if err != nil {
		t.Fatal(err)
	}
	for d, want := range map[string]bool{dead: false, mine: true, other: true, dir: true} {
		if _, err := os.Stat(d); (err == nil) != want {
			t.Errorf("%s: %v", d, err)
		}
	}
}
