package onefile

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os/exec"
	"sync"
	"testing"
)

// TestSizes: the structures are as long as the kernel's.
func TestSizes(t *testing.T) {
	for _, tt := range []struct {
		name string
		v    any
		want int
	}{
		{"fuse_in_header", inHeader{}, 40},
		{"fuse_out_header", outHeader{}, 16},
		{"fuse_init_out", initOut{}, 64},
		{"fuse_attr", attr{}, 88},
		{"fuse_entry_out", entryOut{}, 128},
		{"fuse_attr_out", attrOut{}, 104},
		{"fuse_setattr_in", setattrIn{}, 88},
		{"fuse_open_out", openOut{}, 16},
		{"fuse_read_in", readIn{}, 40},
		{"fuse_write_in", writeIn{}, 40},
		{"fuse_write_out", writeOut{}, 8},
		{"fuse_statfs_out", statfsOut{}, 80},
		{"fuse_out_header and fuse_notify_inval_inode_out", invalInode{}, 40},
	} {
		if got := binary.Size(tt.v); got != tt.want {
			t.Errorf("%s: %d bytes, want %d", tt.name, got, tt.want)
		}
	}
}

// memory is a store that counts flushes.
type memory struct {
	mu      sync.Mutex // guards what follows
	b       []byte
	flushes int
}

func (m *memory) ReadAt(p []byte, off int64) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return copy(p, m.b[off:]), nil
}

func (m *memory) WriteAt(p []byte, off int64) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return copy(m.b[off:], p), nil
}

func (m *memory) Flush() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.flushes++
	return nil
}

// TestFile: what another process writes and syncs is in the store, it reads what the store has, and it
// cannot change the length of the file.
func TestFile(t *testing.T) {
	const size = 1 << 20
	m := &memory{b: make([]byte, size)}
	f, err := Mount(t.TempDir(), size, m)
	if errors.Is(err, ErrNoMeans) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	dd := func(args ...string) []byte {
		t.Helper()
		out, err := exec.Command("dd", append([]string{"bs=4096", "status=none"}, args...)...).Output()
		if err != nil {
			t.Fatalf("dd %v: %v", args, err)
		}
		return out
	}
	dd("if=/dev/zero", "of="+f.Path(), "count=1", "seek=3", "conv=notrunc,fsync")
	m.mu.Lock()
	if m.flushes == 0 {
		t.Error("a sync did not flush the store")
	}
	copy(m.b[3*4096:], "ours")
	m.mu.Unlock()
	if err := f.Forget(); err != nil {
		t.Fatal(err)
	}
	if got := dd("if="+f.Path(), "count=1", "skip=3"); len(got) != 4096 || !bytes.HasPrefix(got, []byte("ours")) {
		t.Errorf("read back %d bytes, %.8q", len(got), got)
	}
	if err := exec.Command("truncate", "-s", "1", f.Path()).Run(); err == nil {
		t.Error("the file was truncated")
	}
	if out, err := exec.Command("stat", "-c", "%s %h", f.Path()).Output(); err != nil || string(out) != "1048576 1\n" {
		t.Errorf("stat: %q, %v", out, err)
	}
}
