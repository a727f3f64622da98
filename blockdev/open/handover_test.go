package open

import (
	"bytes"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"softiser/blockdev"
)

// TestHandOver: a second opening goes on with what the first one has, as the next process
// does: content, identity, holes, the lock, the record of the cache.
func TestHandOver(t *testing.T) {
	dir := t.TempDir()
	for _, s := range []Spec{
		{Type: Memory, Name: "m", Size: 8 << 20},
		{Type: File, Path: filepath.Join(dir, "f"), Size: 8 << 20, EpochDir: dir},
	} {
		t.Run(s.Type.String(), func(t *testing.T) {
			old, err := Open(s)
			if err != nil {
				t.Fatal(err)
			}
			pattern := bytes.Repeat([]byte("softiser"), 1024)
			if _, err := old.WriteAt(pattern, 1<<20); err != nil {
				t.Fatal(err)
			}
			o, err := old.(blockdev.HandsOver).HandOver()
			if err != nil {
				t.Fatal(err)
			}
			next := s
			next.Size, next.Opened = 4<<20, &o // what the configuration says does not count
			now, err := Open(next)
			if err != nil {
				t.Fatal(err)
			}
			defer now.Close()
			if a, b := old.Info(), now.Info(); a.ID != b.ID || a.CacheID != b.CacheID || a.Size != b.Size || s.EpochDir != "" && a.CacheID == "" {
				t.Fatalf("%+v has become %+v", a, b)
			}
			b := make([]byte, len(pattern))
			if _, err := now.ReadAt(b, 1<<20); err != nil || !bytes.Equal(b, pattern) {
				t.Fatal("the content is gone", err)
			}
			var l blockdev.Lease
			err = now.LeaseRead(&l, 1<<20, 8192, blockdev.NoWait)
			if err == nil {
				l.Release()
			} else if s.Type == Memory {
				t.Fatal("memory has become unknown:", err)
			}
			ext, err := now.Extents(0, 8<<20)
			if err != nil || len(ext) != 3 || ext[0].Data || !ext[1].Data || ext[2].Data || ext[1].Off != 1<<20 {
				t.Fatalf("%+v, %v", ext, err)
			}
			if s.Type == Memory {
				old.Close()
				return
			}
			if _, err := Open(s); err == nil {
				t.Fatal("opened by a third one")
			}
			// The old process ends without another word: its descriptors go, the lock stays.
			p, err := now.(blockdev.HandsOver).HandOver()
			if err != nil {
				t.Fatal(err)
			}
			p.Discard()
			if _, err := Open(s); err == nil {
				t.Fatal("opened by a third one")
			}
			old.Close()
			if _, err := Open(s); err == nil {
				t.Fatal("the lock has gone with the old opening")
			}
		})
	}
}

// TestHandOverPoison: a store that has lost writes stays one.
func TestHandOverPoison(t *testing.T) {
	dir := t.TempDir()
	s := Spec{Type: File, Path: filepath.Join(dir, "f"), Size: 1 << 20, EpochDir: dir}
	old, err := Open(s)
	if err != nil {
		t.Fatal(err)
	}
	defer old.Close()
	o, err := old.(blockdev.HandsOver).HandOver()
	if err != nil {
		t.Fatal(err)
	}
	o.Poisoned = true
	s.Opened = &o
	now, err := Open(s)
	if err != nil {
		t.Fatal(err)
	}
	defer now.Close()
	if err := now.Flush(); err == nil {
		t.Fatal("flushed")
	}
}

// TestHandOverFails: a descriptor that cannot be used is not kept.
func TestHandOverFails(t *testing.T) {
	for _, s := range []Spec{{Type: File, Path: "x"}, {Type: Memory}, {Type: Memory, Size: 1 << 20}} {
		var p [2]int
		if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
			t.Fatal(err)
		}
		s.Opened = &blockdev.Opened{FD: p[0], Size: 4096}
		if d, err := Open(s); err == nil {
			d.Close()
			t.Fatalf("%+v: a pipe has become a volume", s)
		}
		if _, err := unix.FcntlInt(uintptr(p[0]), unix.F_GETFD, 0); err == nil {
			t.Errorf("%+v: the descriptor is still open", s)
		}
		unix.Close(p[1])
	}
}
