package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A device where a file is expected does not fill the memory.
func TestFilesAreBounded(t *testing.T) {
	if _, err := Load("/dev/zero"); err == nil || !strings.Contains(err.Error(), "longer than") {
		t.Errorf("%v", err)
	}
	path := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(path, make([]byte, maxSecret), 0o600); err != nil {
		t.Fatal(err)
	}
	if b, err := readFile(path, maxSecret); err != nil || len(b) != maxSecret {
		t.Errorf("as long as allowed: %d bytes, %v", len(b), err)
	}
	if _, err := readFile(path, maxSecret-1); err == nil {
		t.Error("a byte too long, and accepted")
	}
}
