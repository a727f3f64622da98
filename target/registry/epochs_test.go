package registry

import (
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/zap"
)

// TestEpochDir: the folder of the state comes first, that of the running system second;
// one that cannot be made is done without.
func TestEpochDir(t *testing.T) {
	state, run := filepath.Join(t.TempDir(), "state"), filepath.Join(t.TempDir(), "run")
	log := zap.NewNop()
	t.Setenv("RUNTIME_DIRECTORY", run+":/elsewhere")
	for given, want := range map[string]string{state: state, "": run} {
		if got := epochDir(given, log); got != want {
			t.Errorf("with state_dir %q: %q, want %q", given, got, want)
		}
		if fi, err := os.Stat(want); err != nil || fi.Mode().Perm() != 0o700 {
			t.Errorf("%v, %v", fi, err)
		}
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("RUNTIME_DIRECTORY", filepath.Join(file, "below"))
	if got := epochDir("", log); got != "" {
		t.Errorf("below a file: %q", got)
	}
}
