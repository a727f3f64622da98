package statedir

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A folder is one process's until that has left it, or whoever has inherited it has; to take it does not make it a folder of
// an earlier version.
func TestClaim(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	if err := InUse(dir); err != nil {
		t.Error(err)
	}
	c, err := Take(dir)
	if err != nil || c == nil {
		t.Fatal(c, err)
	}
	if had, err := Open(dir, "1"); had != Current() || err != nil {
		t.Errorf("version %d, %v", had, err)
	}
	taken := func(when string, want bool) {
		t.Helper()
		again, err := Take(dir)
		again.Release()
		for _, err := range []error{err, InUse(dir)} {
			if (err != nil) != want || want && !strings.HasPrefix(err.Error(), dir+" is in use by this process: ") {
				t.Errorf("%s: %v", when, err)
			}
		}
	}
	taken("with it", true)
	fd, err := c.Dup()
	if err != nil {
		t.Fatal(err)
	}
	c.file.Close() // as the end of a process does
	taken("when it has been handed over", true)
	Inherit(fd).Release()
	taken("afterwards", false)
}

// Where the file cannot be made the folder is used all the same.
func TestClaimOfNothing(t *testing.T) {
	dir := t.TempDir()
	if err := os.Symlink(lockName, filepath.Join(dir, lockName)); err != nil {
		t.Fatal(err)
	}
	c, err := Take(dir)
	if c != nil || err != nil {
		t.Fatal(c, err)
	}
	if fd, err := c.Dup(); fd != -1 || err != nil {
		t.Error(fd, err)
	}
	c.Release()
}
