package lvm

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"softiser/blockdev"
	"softiser/lvm/meta"
)

// ImportedTag begins the tag of a volume that says which volume's content it was
// given by an import and still has: the UUID follows. The first write takes it
// away, so that no increment is imported over what has changed since.
const ImportedTag = "imported."

// ImportingTag begins the tag of a volume that an import, or a copy, has begun to write:
// UUID.BASE.OFFSET follow, and what lies before the offset is there. When somebody else
// writes to it, writtenTag takes the place of the offset: it is still not whole, but
// nobody goes on with it.
const (
	ImportingTag = "importing."
	writtenTag   = "written"
)

// tellsContent reports whether a tag says what the volume holds, which a write ends.
func tellsContent(tag string) bool {
	return strings.HasPrefix(tag, ImportedTag) || strings.HasPrefix(tag, ImportingTag) && !strings.HasSuffix(tag, "."+writtenTag)
}

func isImported(lv *meta.LV) bool { return slices.ContainsFunc(lv.Tags, tellsContent) }

func dropImported(lv *meta.LV) {
	for _, t := range slices.Clone(lv.Tags) {
		if !tellsContent(t) {
			continue
		}
		lv.SetTag(t, false)
		if strings.HasPrefix(t, ImportingTag) {
			lv.SetTag(t[:strings.LastIndexByte(t, '.')+1]+writtenTag, true)
		}
	}
}

// keepKnown gives lv, of an older text of the group, the tags that tell of what the volume holds now: data
// stays where it is. was is the volume of today, nil if there is none.
func keepKnown(lv, was *meta.LV) {
	dropImported(lv)
	if was == nil || !slices.EqualFunc(lv.Segments, was.Segments, (*meta.Segment).Same) {
		return
	}
	known := func(tag string) bool {
		return strings.HasPrefix(tag, ImportedTag) || strings.HasPrefix(tag, ImportingTag)
	}
	lv.Tags = slices.DeleteFunc(lv.Tags, known)
	for _, t := range was.Tags {
		if known(t) {
			lv.SetTag(t, true)
		}
	}
}

// ErrPartial marks a volume that holds a part of what was to be imported or copied into it.
var ErrPartial = errors.New("is half imported")

// Whole fails with ErrPartial if an import or a copy into lv has begun and not ended. One that somebody has
// written to since is taken as what that made of it.
func Whole(v *meta.VG, lv *meta.LV) error {
	for _, t := range lv.Tags {
		if strings.HasPrefix(t, ImportingTag) && tellsContent(t) {
			return fmt.Errorf("%s/%s %w: an import or clone into it has not ended, or was interrupted. Import again, or remove it (lvremove); to have it as it is, take its tag away (lvchange --deltag %s)",
				v.Name, lv.Name, ErrPartial, t)
		}
	}
	return nil
}

// Fills says that what is written through v is what the tag tells of: it is not somebody else who
// writes. One fills a volume at a time, until v is closed: with ErrInUse it is another. Preconditions:
// nothing has been written through v.
func (v *Volume) Fills() error {
	v.g.mu.Lock()
	defer v.g.mu.Unlock()
	if v.n.filled {
		return fmt.Errorf("%s/%s is being imported into already: %w", v.g.md.group.VG.Name, v.n.name, blockdev.ErrInUse)
	}
	v.n.filled, v.fills = true, true
	return nil
}

// writtenWait is how long the first write waits for the tag to be gone. Whoever
// changes the group may be waiting for that write; the tag goes then.
const writtenWait = 10 * time.Second

// written is called before a volume that was imported, or is only in part, is written.
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
	case v.fills || !v.n.imported.Load():
		return nil
	case m != blockdev.Wait:
		return blockdev.ErrWouldBlock
	}
	v.g.written(v.n)
	return nil
}
