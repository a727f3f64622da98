package lvm

import (
	"runtime"
	"testing"
	"time"

	"softiser/blockdev"
)

// TestFullPoolIsExtended: while a write waits for space in its pool, and a change of
// its volume waits for the writes, the pool is extended: the change does not keep the
// group locked until the write gives up.
func TestFullPoolIsExtended(t *testing.T) {
	for name, change := range map[string]func(g *Group) error{
		"snapshot": func(g *Group) error { return g.CreateThin(bg, ThinOptions{Name: "s", Origin: "a"}, "lvcreate") },
		"extend":   func(g *Group) error { return g.Extend("a", 200, "", 0, nil, "lvextend") },
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
				goesOn(t, "the extension", func() error { return g.Extend("p", 8, "", 0, nil, "lvextend") })
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
