package nbd

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// Partitions are written back, then the device; what cannot be is reported.
func TestWriteBack(t *testing.T) {
	dir := t.TempDir()
	dev := filepath.Join(dir, "nbd0")
	for _, name := range []string{dev, dev + "p1", dev + "px"} {
		if err := os.WriteFile(name, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	err := WriteBack(dev)
	if !errors.Is(err, syscall.ENOTTY) || !strings.Contains(err.Error(), dev+"p1:") || strings.Contains(err.Error(), "nbd0px") {
		t.Errorf("no block device: %v", err)
	}
	if err := WriteBack(dev + "x"); err != nil {
		t.Errorf("no such node: %v", err)
	}
}
