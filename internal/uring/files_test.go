package uring

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

func newFiles(t *testing.T, n int) *Files {
	f, err := NewFiles(n)
	if errors.Is(err, ErrUnavailable) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	return f
}

// Many goroutines read and sync a file at once, more than there is room for: each gets its own
// bytes, and who finds no room is told.
func TestFiles(t *testing.T) {
	f := newFiles(t, 4)
	path := filepath.Join(t.TempDir(), "file")
	data := make([]byte, 1<<20)
	for i := range data {
		data[i] = byte(i >> 9)
	}
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	fd := int(file.Fd())
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			for round := range 100 {
				n := 512 * (1 + round%8)
				off := int64(i*100+round) * 512
				p := make([]byte, n)
				switch k, err := f.Read(fd, p, off); {
				case errors.Is(err, ErrBusy):
				case err != nil || k != n || !bytes.Equal(p, data[off:off+int64(n)]):
					t.Errorf("%d bytes at %d: %d, %v", n, off, k, err)
				}
				if err := f.SyncData(fd, off, int64(n)); err != nil && !errors.Is(err, ErrBusy) {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if k, err := f.Read(fd, make([]byte, 1024), int64(len(data))-512); k != 512 || err != nil {
		t.Errorf("across the end: %d, %v", k, err)
	}
	if err := f.SyncData(fd, 0, 0); err != nil {
		t.Errorf("all of it: %v", err)
	}
	if k, err := f.Read(fd, nil, 0); k != 0 || err != nil {
		t.Errorf("nothing: %d, %v", k, err)
	}
}

// A call that waits is told of by the poller, not by who comes next; with it the ring is full.
func TestFilesWait(t *testing.T) {
	f := newFiles(t, 1)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	got := make([]byte, 4)
	ended := make(chan error)
	go func() {
		// At an offset of -1 a pipe is read as by read.
		_, err := f.Read(int(r.Fd()), got, -1)
		ended <- err
	}()
	for { // until it is under way
		f.mu.Lock()
		free := len(f.free)
		f.mu.Unlock()
		if free == 0 {
			break
		}
		runtime.Gosched()
	}
	if _, err := f.Read(int(r.Fd()), make([]byte, 4), -1); !errors.Is(err, ErrBusy) {
		t.Errorf("a call too many: %v", err)
	}
	if _, err := w.Write([]byte("here")); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil || string(got) != "here" {
		t.Errorf("%q, %v", got, err)
	}
}

// What the kernel finds is the call's error.
func TestFilesErrors(t *testing.T) {
	f := newFiles(t, 2)
	if _, err := f.Read(-1, make([]byte, 4), 0); !errors.Is(err, unix.EBADF) {
		t.Errorf("no file: %v", err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	if err := f.SyncData(int(r.Fd()), 0, 0); !errors.Is(err, unix.EINVAL) {
		t.Errorf("a pipe: %v", err)
	}
}
