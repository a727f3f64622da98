package main

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"testing"
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
		// Another process writes: one that waits for itself cannot even be killed.
		dd := func(content []byte, more ...string) {
			t.Helper()
			cmd := exec.Command("dd", append([]string{"of=" + r.path(), "bs=1000", "oflag=seek_bytes", "seek=300"}, more...)...)
			cmd.Stdin = bytes.NewReader(content)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("dd: %v: %s", err, out)
			}
		}
		dd(bytes.Repeat([]byte{'a'}, 1000), "conv=notrunc,fsync")
		dd(bytes.Repeat([]byte{'b'}, 1000), "conv=notrunc")
		got := make([]byte, 1000)
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
