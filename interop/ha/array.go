package main

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"softiser/interop/internal/onefile"
)

// array is a shared disk that can refuse a node, as one with persistent reservations or a
// switch with zones does. Each node has a way of its own to it, with a page cache of its own.
type array struct {
	never bool // it refuses nobody: shows that late writes would be seen

	mu      sync.Mutex // held while something takes effect
	refused map[string]bool
	late    map[string]int // writes of each node that were refused
	closes  []func()
	ways    []*onefile.File
}

// way is what a node has of one volume of the array.
type way struct {
	*array
	node string
	file *os.File
}

// connect gives nodes their ways to a volume, at folder/NODE/volume.
func (a *array) connect(folder, volume string, size int64, nodes []string) error {
	f, err := os.OpenFile(filepath.Join(folder, "shared", volume+".img"), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	a.closes = append(a.closes, func() { f.Close() })
	for _, n := range nodes {
		dir := filepath.Join(folder, n, volume)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		m, err := onefile.Mount(dir, size, &way{a, n, f})
		if err != nil {
			return fmt.Errorf("node %s: %w", n, err)
		}
		a.closes = append(a.closes, m.Close)
		a.ways = append(a.ways, m)
	}
	return nil
}

func (a *array) close() {
	for i := len(a.closes) - 1; i >= 0; i-- {
		a.closes[i]()
	}
}

// forget has the nodes read from the disk what they read next.
func (a *array) forget() error {
	for _, w := range a.ways {
		if err := w.Forget(); err != nil {
			return err
		}
	}
	return nil
}

// refuse has nothing of a node take effect any more, from when it returns.
func (a *array) refuse(node string, on bool) {
	a.mu.Lock()
	a.refused[node] = on
	a.mu.Unlock()
}

func (a *array) refuses(node string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.refused[node]
}

// lateWrites is how many writes of a node were refused.
func (a *array) lateWrites(node string) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.late[node]
}

// enter begins an access; EBADE is what Linux makes of a RESERVATION CONFLICT.
func (w *way) enter(writes bool) error {
	w.mu.Lock()
	if w.refused[w.node] {
		if writes {
			w.late[w.node]++
		}
		if !w.never {
			w.mu.Unlock()
			return unix.EBADE
		}
	}
	return nil
}

// ReadAt, WriteAt and Flush implement onefile.Store.
func (w *way) ReadAt(p []byte, off int64) (int, error) {
	if err := w.enter(false); err != nil {
		return 0, err
	}
	defer w.mu.Unlock()
	return w.file.ReadAt(p, off)
}

func (w *way) WriteAt(p []byte, off int64) (int, error) {
	if err := w.enter(true); err != nil {
		return 0, err
	}
	defer w.mu.Unlock()
	return w.file.WriteAt(p, off)
}

func (w *way) Flush() error {
	if err := w.enter(false); err != nil {
		return err
	}
	w.mu.Unlock()
	return nil
}
