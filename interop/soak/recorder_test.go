package main

import (
	"bytes"
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// What was fsynced through the kernel is in every state that a power cut may leave; with
// flushes forgotten there is a state that does not have it.
func TestRecorder(t *testing.T) {
	for _, drop := range []bool{false, true} {
		r, err := newRecorder(t.TempDir(), 1<<20, drop)
		if errors.Is(err, errNoMeans) {
			t.Skip(err)
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(r.close)
		// Not an os.File: that one asks epoll about the file without giving up its
		// processor, and who answers is in this process.
		fd, err := unix.Open(r.path(), unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		old, next := bytes.Repeat([]byte{'a'}, 1000), bytes.Repeat([]byte{'b'}, 1000)
		if _, err := unix.Pwrite(fd, old, 300); err != nil {
			t.Fatal(err)
		}
		if err := unix.Fsync(fd); err != nil {
			t.Fatal(err)
		}
		if _, err := unix.Pwrite(fd, next, 300); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, 1000)
		if _, err := unix.Pread(fd, got, 300); err != nil || !bytes.Equal(got, next) {
			t.Errorf("read %.10q, %v", got, err)
		}
		if err := unix.Close(fd); err != nil {
			t.Fatal(err)
		}
		lost, states := 0, 0
		for im := range r.disk.States(r.disk.Now(), 100, 1) {
			states++
			if _, err := im.ReadAt(got, 300); err != nil {
				t.Fatal(err)
			}
			if len(bytes.Trim(got, "ab")) != 0 {
				lost++
			}
		}
		if states < 2 || (lost > 0) != drop {
			t.Errorf("flushes forgotten: %v; the bytes are missing in %d of %d states", drop, lost, states)
		}
	}
}

// A load's ledger is read as initiator/bench writes it.
func TestDurable(t *testing.T) {
	l := load{ledger: t.TempDir() + "/l"}
	b := make([]byte, 64+3*12)
	b[64] = 1        // issued
	b[64+12+4] = 1   // acknowledged
	b[64+2*12+8] = 1 // durable
	if err := os.WriteFile(l.ledger, b, 0o600); err != nil {
		t.Fatal(err)
	}
	if n, err := l.durable(); n != 1 || err != nil {
		t.Errorf("%d durable blocks, %v", n, err)
	}
}
