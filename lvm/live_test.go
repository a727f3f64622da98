package lvm

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"softiser/blockdev"
	"softiser/lvm/internal/lvmtest"
	"softiser/lvm/vg"
)

const (
	cellSize    = 4096
	liveExtents = 24
	liveCells   = liveExtents * ext / cellSize
)

// cell is a block of a volume that many write to. Whoever does has turn.
type cell struct {
	turn sync.Mutex

	mu       sync.Mutex
	versions []uint64 // what was written so far, 0 zeroes
	acked    int      // the last that was acknowledged
	durable  int      // the last that is on the disk for good
}

func (c *cell) issue(id uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.versions = append(c.versions, id)
}

func (c *cell) ack(durable bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.acked = len(c.versions) - 1; durable {
		c.durable = c.acked
	}
}

// stamped is n bytes with a number all over.
func stamped(id uint64, n int) []byte {
	return bytes.Repeat(binary.LittleEndian.AppendUint64(nil, id), n/8)
}

// live is a volume "o" in use, and what it may hold.
type live struct {
	t     *testing.T
	v     *Volume
	disk  *lvmtest.Disk // one of those below it
	cells [liveCells]cell
	pause sync.RWMutex // who writes or flushes has it for reading
	over  bool         // guarded by pause: nothing is written any more

	mu sync.Mutex
	id uint64 // guarded by mu: of the last content
}

func (l *live) next() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.id++
	return l.id
}

// numbers tells one version of each cell.
func (l *live) numbers(which func(*cell) int) (all [liveCells]int) {
	for i := range l.cells {
		c := &l.cells[i]
		c.mu.Lock()
		all[i] = which(c)
		c.mu.Unlock()
	}
	return all
}

func lastAcked(c *cell) int   { return c.acked }
func lastDurable(c *cell) int { return c.durable }
func last(c *cell) int        { return len(c.versions) - 1 }

// check looks whether each sector holds a version that is not older than the one of from, nor newer than
// that of to.
func (l *live) check(what string, content []byte, from, to [liveCells]int) {
	l.t.Helper()
	for at := 0; at < len(content); at += 512 {
		i := at / cellSize
		c := &l.cells[i]
		c.mu.Lock()
		may := slices.Clone(c.versions[from[i] : to[i]+1])
		c.mu.Unlock()
		id := binary.LittleEndian.Uint64(content[at:])
		if !slices.Contains(may, id) || !bytes.Equal(content[at:at+512], stamped(id, 512)) {
			l.t.Errorf("%s: block %d holds %d, and may hold %v", what, i, id, may)
			return
		}
	}
}

// step writes a few blocks, and reports whether to go on.
func (l *live) step(r *rand.Rand, fuas int) bool {
	l.pause.RLock()
	defer l.pause.RUnlock()
	n := 1 + r.IntN(12)
	first := r.IntN(liveCells - n)
	mine := l.cells[first:][:n]
	for i := range mine {
		mine[i].turn.Lock()
		defer mine[i].turn.Unlock()
	}
	off, size, fua := int64(first)*cellSize, n*cellSize, r.IntN(100) < fuas
	p := make([]byte, 0, size)
	how := r.IntN(4)
	for i := range mine {
		id := uint64(0)
		if how > 0 {
			id = l.next()
		}
		mine[i].issue(id)
		p = append(p, stamped(id, cellSize)...)
	}
	if l.over {
		return false
	}
	err := l.write(p, off, how, fua)
	for i := range mine {
		if err == nil {
			mine[i].ack(fua)
		}
	}
	if err != nil && !l.cut() {
		l.t.Error(err)
	}
	return err == nil
}

// cut reports whether the power is gone.
func (l *live) cut() bool { return errors.Is(l.disk.Flush(), lvmtest.ErrCut) }

// write is that of step: as zeroes, by a lease or as it is.
func (l *live) write(p []byte, off int64, how int, fua bool) (err error) {
	switch how {
	case 0:
		err = l.v.WriteZeroes(off, int64(len(p)), true)
	case 1:
		var x blockdev.Lease
		if err = l.v.LeaseWrite(&x, off, len(p), blockdev.Wait); err != nil {
			return err
		}
		defer x.Release()
		for _, s := range x.Segs {
			p = p[copy(s, p):]
		}
		return x.Commit(fua)
	default:
		_, err = l.v.WriteAt(p, off)
	}
	if err == nil && fua {
		err = l.v.FlushRange(off, int64(len(p)))
	}
	return err
}

// flush makes durable what was acknowledged before.
func (l *live) flush() bool {
	l.pause.RLock()
	defer l.pause.RUnlock()
	if l.over {
		return false
	}
	was := l.numbers(lastAcked)
	if l.v.Flush() != nil {
		return false
	}
	for i := range l.cells {
		c := &l.cells[i]
		c.mu.Lock()
		c.durable = max(c.durable, was[i])
		c.mu.Unlock()
	}
	return true
}

// becomes makes the volume what a merged snapshot was.
func (l *live) becomes(content []byte) {
	for i := range l.cells {
		l.cells[i].issue(binary.LittleEndian.Uint64(content[i*cellSize:]))
		l.cells[i].ack(true)
	}
}

// changes are what happens to the group of a live volume.
type changes struct {
	l     *live
	g     *Group
	r     *rand.Rand
	thin  bool
	n     int
	snaps map[string][]byte
	torn  bool // a merge has failed: it may have been done
}

// pick returns one of the snapshots, "" if there is none.
func (c *changes) pick() string {
	names := make([]string, 0, len(c.snaps))
	for n := range c.snaps {
		names = append(names, n)
	}
	if slices.Sort(names); len(names) > 0 {
		return names[c.r.IntN(len(names))]
	}
	return ""
}

// next makes one of them; err ends them all.
func (c *changes) next() (err error) {
	name := c.pick()
	switch k := c.r.IntN(10); {
	case k < 4 && len(c.snaps) < 4:
		err = c.snapshot()
	case k < 5 && name != "":
		err = c.look(c.g, name)
	case k < 6 && name != "":
		delete(c.snaps, name)
		err = c.g.Remove(bg, name, "lvremove")
	case k < 8 && name != "":
		err = c.merge(name)
	case k < 9:
		from := vg.Range{PV: fmt.Sprintf("pv%d", c.r.IntN(2)), Off: uint64(c.r.IntN(200)), Len: uint64(1 + c.r.IntN(40))}
		if e := c.g.Move(bg, MoveOptions{From: from}, "pvmove"); errors.Is(e, lvmtest.ErrCut) {
			err = e // others: there is nothing
		}
	default:
		err = c.g.Extend("o", ExtendOptions{Extents: c.g.Metadata().LV("o").Extents() + 2}, "lvextend")
	}
	return err
}

// snapshot takes one, which has what was acknowledged before, and nothing that is written later.
func (c *changes) snapshot() (err error) {
	c.n++
	name, was := fmt.Sprintf("s%d", c.n), c.l.numbers(lastAcked)
	if c.thin {
		err = c.g.CreateThin(bg, ThinOptions{Name: name, Origin: "o", NoSkip: true}, "lvcreate")
	} else {
		err = c.g.Snapshot(bg, SnapshotOptions{Origin: "o", Name: name, Extents: liveExtents + 8, Chunk: 4096 << c.r.IntN(4)}, "lvcreate")
	}
	if err != nil {
		return err
	}
	now := c.l.numbers(last)
	content, err := c.read(c.g, name)
	if err != nil {
		return err
	}
	c.l.check(name, content, was, now)
	c.snaps[name] = content
	return nil
}

func (c *changes) read(g *Group, name string) ([]byte, error) {
	v, err := g.Volume(name)
	if err != nil {
		return nil, err
	}
	p := make([]byte, liveCells*cellSize)
	_, err = v.ReadAt(p, 0)
	return p, errors.Join(err, v.Close())
}

// look compares a snapshot with what it was when it was taken.
func (c *changes) look(g *Group, name string) error {
	p, err := c.read(g, name)
	if err == nil && !bytes.Equal(p, c.snaps[name]) {
		c.l.t.Errorf("%s is not what it was", name)
	}
	return err
}

// merge begins one while nothing is written, and waits for its end while everybody writes.
func (c *changes) merge(name string) error {
	c.l.pause.Lock()
	content := c.snaps[name]
	delete(c.snaps, name)
	done, err := c.g.Merge(bg, name, "lvconvert")
	if c.l.over, c.torn = err != nil, err != nil; err == nil {
		c.l.becomes(content)
	}
	c.l.pause.Unlock()
	if err == nil {
		err = <-done
	}
	return err
}

// TestLive: snapshots are taken, merged and removed of a volume that many write to, its extents move, and
// the power goes. Each snapshot has all writes that had been acknowledged when it was begun, and none that
// was begun when it was there, and stays as it is; what was durable is there afterwards.
func TestLive(t *testing.T) {
	for seed := range uint64(4) {
		testLive(t, seed, false)
		testLive(t, seed, true)
	}
}

func testLive(t *testing.T, seed uint64, thin bool) {
	disks := []*lvmtest.Disk{lvmtest.New(48 << 20), lvmtest.New(48 << 20)}
	disks[0].Tie(disks[1])
	g, _ := groupOn(t, map[string]blockdev.Device{"/d0": disks[0], "/d1": disks[1]})
	r := rand.New(rand.NewPCG(seed, 99))
	if thin {
		must(t, g.CreatePool(PoolOptions{Name: "pool", Extents: 300, Chunk: 65536 << r.IntN(3)}, "lvcreate"))
		must(t, g.CreateThin(bg, ThinOptions{Pool: "pool", Name: "o", Extents: liveExtents}, "lvcreate"))
	} else {
		must(t, g.Create(CreateOptions{Name: "o", Extents: liveExtents}, "lvcreate"))
	}
	l := &live{t: t, v: volume(t, g, "o"), disk: disks[0]}
	must(t, l.v.WriteZeroes(0, liveCells*cellSize, false))
	must(t, l.v.Flush())
	l.becomes(make([]byte, liveCells*cellSize))
	fuas, flushes := []int{0, 2, 25}[r.IntN(3)], r.IntN(2) == 0
	var writers sync.WaitGroup
	for w := range uint64(3) {
		writers.Go(func() {
			for r, n := rand.New(rand.NewPCG(seed, w)), 1; l.step(r, fuas); n++ {
				if w == 0 && flushes && n%20 == 0 && !l.flush() {
					return
				}
			}
		})
	}
	c := &changes{l: l, g: g, r: r, thin: thin, snaps: map[string][]byte{}}
	var err error
	for i, cut := 0, r.IntN(20); i < 25 && err == nil && !t.Failed(); i++ {
		if i == cut {
			disks[0].CutAfter(1 + r.IntN(400))
		}
		err = c.next()
	}
	if err != nil && !l.cut() {
		t.Errorf("seed %d: %v", seed, err)
	}
	disks[0].CutAfter(0)
	disks[1].CutAfter(0)
	writers.Wait()
	_, _ = l.v.Close(), g.Close() // the power is gone
	after := map[string]blockdev.Device{"/d0": disks[0].Crash(r), "/d1": disks[1].Crash(r)}
	h, err := Open(testConfig(t, after), []string{"/d0", "/d1"}, "vg0")
	must(t, err)
	content, err := c.read(h, "o")
	must(t, err)
	if !c.torn {
		l.check(fmt.Sprintf("seed %d, thin %v, after the cut", seed, thin), content, l.numbers(lastDurable), l.numbers(last))
	}
	for name := range c.snaps {
		must(t, c.look(h, name))
	}
	must(t, h.Close())
}
