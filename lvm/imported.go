package lvm

import (
	"strings"
	"time"

	"softiser/blockdev"
	"softiser/lvm/meta"
)

// ImportedTag begins the tag of a volume that says which volume's content it was
// given by an import and still has: the UUID follows. The first write takes it
// away, so that no increment is imported over what has changed since.
const ImportedTag = "imported."

func isImported(lv *meta.LV) bool {
	for _, t := range lv.Tags {
		if strings.HasPrefix(t, ImportedTag) {
			return true
		}
	}
	return false
}

func dropImported(lv *meta.LV) {
	for _, t := range append([]string(nil), lv.Tags...) {
		if strings.HasPrefix(t, ImportedTag) {
			lv.SetTag(t, false)
		}
	}
}

// writtenWait is how long the first write waits for the tag to be gone. Whoever
// changes the group may be waiting for that write; the tag goes then.
const writtenWait = 10 * time.Second

// written is called before a volume that was imported is written.
func (g *Group) written(n *node) {
	done := make(chan struct{})
	g.background.Go(func() {
		defer close(done)
		g.mu.Lock()
		defer g.mu.Unlock()
		lv := g.md.byID(n.id)
		if lv == nil || !isImported(lv) {
			n.imported.Store(false)
			return
		}
		next := g.md.group.VG.Clone()
		dropImported(next.LV(lv.Name))
		if err := g.md.commitBy(g.md.group.CommitWherePossible, next, lv.Name+" is written"); err != nil {
			g.md.cfg.notice("%s/%s is written, but its tag still says that it is as it was imported: %v", next.Name, lv.Name, err)
		}
	})
	t := time.NewTimer(writtenWait)
	defer t.Stop()
	select {
	case <-done:
	case <-t.C:
	}
}

// beforeWrite is what every write to the volume begins with.
func (v *Volume) beforeWrite(m blockdev.Mode) error {
	switch {
	case v.closed.Load():
		return blockdev.ErrClosed
	case !v.n.imported.Load():
		return nil
	case m == blockdev.NoWait:
		return blockdev.ErrWouldBlock
	}
	v.g.written(v.n)
	return nil
}
