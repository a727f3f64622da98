package raw

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// smallFolder is a folder with room for so many bytes.
func smallFolder(t *testing.T, room string) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("mounting a file system and loop devices need root")
	}
	dir := t.TempDir()
	if err := unix.Mount("none", dir, "tmpfs", 0, "size="+room); err != nil {
		t.Skipf("cannot mount a tmpfs: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Errorf("unmount: %v", err)
		}
	})
	return dir
}

// TestConcurrentFUAOnAFullStore: what many writers were told is durable is on the
// store, when the store fails some of them. The kernel tells only one of the syncs
// that overlap of a failure, and not always the one that it concerns.
func TestConcurrentFUAOnAFullStore(t *testing.T) {
	const trials = 30
	name := filepath.Join(smallFolder(t, "512k"), "loop.img")
	var all fuaTrial
	for n := range trials {
		all.add(runFUATrial(t, name, n))
	}
	t.Logf("%d blocks acknowledged, %d refused", all.acked, all.refused)
	if all.lost != 0 {
		t.Errorf("%d of %d acknowledged blocks are not on the store", all.lost, all.acked)
	}
	if all.acked == 0 || all.refused == 0 {
		t.Error("the store had no room, or room for everything")
	}
}

type fuaTrial struct{ acked, refused, lost int }

func (a *fuaTrial) add(b fuaTrial) {
	a.acked, a.refused, a.lost = a.acked+b.acked, a.refused+b.refused, a.lost+b.lost
}

// runFUATrial fills a fresh loop device over a sparse file by 16 writers, and looks into the
// file for what they were told is durable.
func runFUATrial(t *testing.T, name string, trial int) (r fuaTrial) {
	t.Helper()
	const (
		block   = 4096
		writers = 16
		each    = 16 // blocks of a writer; the file system has room for half of all
	)
	file, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if err := file.Truncate(writers * each * block); err != nil {
		t.Fatal(err)
	}
	dev, detach := attach(t, name)
	defer detach()
	d, err := Open(Config{Path: dev, WriteThrough: true})
	if err != nil {
		t.Fatal(err)
	}
	content := func(i int) []byte {
		var word [8]byte
		binary.LittleEndian.PutUint64(word[:], uint64(trial)<<32|uint64(i+1))
		return bytes.Repeat(word[:], block/8)
	}
	var durable [writers * each]bool
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for k := range each {
				i := k*writers + w
				_, err := d.WriteAt(content(i), int64(i)*block)
				durable[i] = err == nil
			}
		})
	}
	wg.Wait()
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	p := make([]byte, block)
	for i, ok := range durable {
		if !ok {
			r.refused++
			continue
		}
		r.acked++
		if _, err := file.ReadAt(p, int64(i)*block); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(p, content(i)) {
			r.lost++
		}
	}
	return r
}
