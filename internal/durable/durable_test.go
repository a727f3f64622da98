package durable

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// TestPut: the new content is synced before it has the name; after a failure the old one
// is there, and nothing else.
func TestPut(t *testing.T) {
	broken := errors.New("broken")
	real := SyncFile
	t.Cleanup(func() { SyncFile = real })
	for what, c := range map[string]struct {
		written, sync error
		folder        string
	}{
		"it succeeds":          {},
		"it was not written":   {written: broken},
		"it cannot be synced":  {sync: broken},
		"it cannot be renamed": {folder: "gone"},
	} {
		t.Run(what, func(t *testing.T) {
			dir := t.TempDir()
			name := filepath.Join(dir, "name")
			if err := os.WriteFile(name, []byte("old"), 0o600); err != nil {
				t.Fatal(err)
			}
			SyncFile = func(f *os.File) error {
				if b, err := os.ReadFile(name); err != nil || string(b) != "old" {
					t.Errorf("%q, %v before the sync", b, err)
				}
				return errors.Join(c.sync, real(f))
			}
			f, err := os.CreateTemp(dir, "new-*")
			if err != nil {
				t.Fatal(err)
			}
			if _, err := f.WriteString("new"); err != nil {
				t.Fatal(err)
			}
			want := "old"
			switch err := Put(f, filepath.Join(dir, c.folder, "name"), c.written); {
			case what == "it succeeds":
				want = "new"
				if err != nil {
					t.Error(err)
				}
			case err == nil:
				t.Error("no error")
			}
			if b, err := os.ReadFile(name); err != nil || string(b) != want {
				t.Errorf("%q, %v; want %q", b, err, want)
			}
			if files, err := os.ReadDir(dir); err != nil || len(files) != 1 {
				t.Errorf("files: %v, %v", files, err)
			}
			if f.Close() == nil {
				t.Error("the file is open")
			}
		})
	}
}

func TestSyncDir(t *testing.T) {
	dir := t.TempDir()
	if err := SyncDir(dir); err != nil {
		t.Error(err)
	}
	if err := SyncDir(filepath.Join(dir, "gone")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a folder that is not there: %v", err)
	}
}
