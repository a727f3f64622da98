package lvm

import (
	"bytes"
	"errors"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"softiser/blockdev"
	"softiser/lvm/meta"
)

// TestFullPoolIsExtended: while a write waits for space in its pool, and a change of
// its volume waits for the writes, the pool is extended: the change does not keep the
// group locked until the write gives up.
func TestFullPoolIsExtended(t *testing.T) {
	for name, change := range map[string]func(g *Group) error{
		"snapshot": func(g *Group) error { return g.CreateThin(bg, ThinOptions{Name: "s", Origin: "a"}, "lvcreate") },
		"extend":   func(g *Group) error { return g.Extend("a", ExtendOptions{Extents: 200}, "lvextend") },
		"reduce":   func(g *Group) error { return g.Reduce(bg, "a", 90, "lvreduce") },
		"merge":    func(g *Group) error { _, err := g.Merge(bg, "old", "lvconvert"); return err },
	} {
		for _, lease := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				g, _ := newGroup(t, 1, 64<<20)
				g.cfg.FullWait = time.Hour
				full := make(chan struct{}, 100)
				g.cfg.Notice = func(string) { full <- struct{}{} }
				must(t, g.CreatePool(PoolOptions{Name: "p", Extents: 2}, "lvcreate"))
				must(t, g.CreateThin(bg, ThinOptions{Pool: "p", Name: "a", Extents: 100}, "lvcreate"))
				must(t, g.CreateThin(bg, ThinOptions{Name: "old", Origin: "a"}, "lvcreate"))
				a := volume(t, g, "a")
				p := make([]byte, 4096)
				for i := range int64(2) {
					_, err := a.WriteAt(p, i*65536)
					must(t, err)
				}
				<-full // the mark
				p[0] = 5
				wrote := waits(t, "the write", func() error {
					if !lease {
						_, err := a.WriteAt(p, 2*65536)
						return err
					}
					var l blockdev.Lease
					if err := a.LeaseWrite(&l, 2*65536, len(p), blockdev.Wait); err != nil {
						return err
					}
					defer l.Release()
					copy(l.Segs[0], p)
					return l.Commit(true)
				})
				<-full // it found no space
				changed := make(chan error, 1)
				go func() { changed <- change(g) }()
				for len(changed) == 0 && g.mu.TryLock() { // until the change has the group
					g.mu.Unlock()
					runtime.Gosched()
				}
				goesOn(t, "the extension", func() error { return g.Extend("p", ExtendOptions{Extents: 8}, "lvextend") })
				must(t, <-changed)
				wrote()
				q := make([]byte, 512)
				_, err := a.ReadAt(q, 2*65536)
				must(t, err)
				if q[0] != 5 {
					t.Error("the write is lost")
				}
				must(t, a.Close())
				must(t, g.Close())
			})
		}
	}
}

// TestFullPoolReduce: a volume that ends within a block that it shares is made smaller at once, also when
// its pool has no block left to zero the rest of that. What it gives back itself is used for it.
func TestFullPoolReduce(t *testing.T) {
	for _, own := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			g, _ := newGroup(t, 1, 64<<20)
			defer func() { must(t, g.Close()) }()
			g.cfg.FullWait = time.Hour
			var notices []string
			g.cfg.Notice = func(s string) { notices = append(notices, s) }
			must(t, g.CreatePool(PoolOptions{Name: "p", Extents: 6, Chunk: 128 << 10}, "lvcreate"))
			must(t, g.CreateThin(bg, ThinOptions{Pool: "p", Name: "a", Extents: 100}, "lvcreate"))
			must(t, g.CreateThin(bg, ThinOptions{Pool: "p", Name: "b", Extents: 100}, "lvcreate"))
			a, b := volume(t, g, "a"), volume(t, g, "b")
			p := bytes.Repeat([]byte{7}, 4*65536)
			_, err := a.WriteAt(p, 0)
			must(t, err)
			must(t, g.CreateThin(bg, ThinOptions{Name: "s", Origin: "a"}, "lvcreate"))
			last := b
			if own {
				last = a
			}
			_, err = last.WriteAt(p[:128<<10], 4*65536)
			must(t, err)
			notices = nil
			begun := time.Now()
			must(t, g.Reduce(bg, "a", 3, "lvreduce"))
			if d := time.Since(begun); d > time.Second {
				t.Errorf("own block %v: the group was locked for %v", own, d)
			}
			said := strings.Join(notices, "\n")
			if strings.Contains(said, "stays allocated") == own {
				t.Errorf("own block %v: %q", own, said)
			}
			must(t, g.Extend("a", ExtendOptions{Extents: 6}, "lvextend"))
			q := make([]byte, 6*65536)
			_, err = a.ReadAt(q, 0)
			must(t, err)
			if !bytes.Equal(q[:3*65536], p[:3*65536]) {
				t.Errorf("own block %v: what is left differs", own)
			}
			if own && !bytes.Equal(q[3*65536:], make([]byte, 3*65536)) {
				t.Error("what was behind the end is there again")
			}
			must(t, a.Close())
			must(t, b.Close())
		})
	}
}

// TestFullPoolFails: a pool that is told to fail writes when it is full fails those that wait already.
func TestFullPoolFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, _ := newGroup(t, 1, 64<<20)
		g.cfg.FullWait = time.Hour
		must(t, g.CreatePool(PoolOptions{Name: "p", Extents: 2}, "lvcreate"))
		must(t, g.CreateThin(bg, ThinOptions{Pool: "p", Name: "a", Extents: 100}, "lvcreate"))
		a := volume(t, g, "a")
		_, err := a.WriteAt(make([]byte, 2*65536), 0)
		must(t, err)
		wrote := make(chan error, 1)
		begun := time.Now()
		go func() { _, err := a.WriteAt(make([]byte, 4096), 2*65536); wrote <- err }()
		synctest.Wait()
		must(t, g.Change("p", func(lv *meta.LV) error { lv.SetFlag("ERROR_WHEN_FULL", true); return nil }, "lvchange"))
		if err := <-wrote; !errors.Is(err, blockdev.ErrNoSpace) {
			t.Error(err)
		}
		if d := time.Since(begun); d > time.Second {
			t.Errorf("the write failed after %v", d)
		}
		must(t, a.Close())
		must(t, g.Close())
	})
}
