package plots

import (
	"os"
	"path/filepath"
	"testing"
)

func TestDrawLoss(t *testing.T) {
	dir := t.TempDir()
	table, file := filepath.Join(dir, "t.csv"), filepath.Join(dir, "t.svg")
	for content, fits := range map[string]bool{
		"lost,RC B/s,more\n0,2e9,1\n0.01,1e8,2\n":      true,
		"lost,UC a B/s,UC b B/s\n0,2e9,1\n0.1,1e8,2\n": true,
		"lost,RC B/s\n":        false,
		"lost,RC B/s\nx,1\n":   false,
		"lost,RC B/s\n0,x\n":   false,
		"lost,messages\n0,1\n": false,
	} {
		if err := os.WriteFile(table, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := DrawLoss([]string{table, table}, file); (err == nil) != fits {
			t.Errorf("%q: %v", content, err)
		}
	}
	if fi, err := os.Stat(file); err != nil || fi.Size() < 500 {
		t.Errorf("no plot: %v", err)
	}
	if err := DrawLoss([]string{filepath.Join(dir, "none")}, file); err == nil {
		t.Error("a table that is not there")
	}
}
