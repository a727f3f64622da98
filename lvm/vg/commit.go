package vg

import (
	"errors"
	"fmt"
	"os"
	"slices"

	"softiser/lvm/internal/ondisk"
	"softiser/lvm/meta"
)

// Commit makes next the content of the group on all its disks, as one
// transaction: after a power cut at any point the disks hold the old text or
// the new one.
//
//	1  the new text goes into each ring, beside the old one        flush
//	2  slot 1 of each header names it: precommitted                flush
//	3  slot 0 names it and slot 1 is cleared: committed            flush
//
// Readers take the highest sequence number with a valid checksum, so the first
// header of step 3 is the commit point; areas that were not reached are stale
// and brought up by the next commit, or by Repair.
//
// why goes into the text as its description. g.VG is next afterwards.
func (g *Group) Commit(next *meta.VG, why string) error { return g.commit(next, why, false) }

// CommitWherePossible is Commit for what must not wait for a disk that fails: one
// area is enough. The others stay behind, as after a power cut.
func (g *Group) CommitWherePossible(next *meta.VG, why string) error {
	return g.commit(next, why, true)
}

// commit makes next the metadata of the group, under lvm2's lock. partly lets it succeed
// on some of the disks.
func (g *Group) commit(next *meta.VG, why string, partly bool) error {
	if err := next.Check(); err != nil {
		return err
	}
	unlock, err := g.cfg.lock(g.VG.Name)
	if err != nil {
		return err
	}
	defer unlock()
	if err := g.verifyUnchanged(); err != nil {
		return err
	}
	if !g.fresh {
		if err := g.cfg.archive(g.VG, "Created *before* "+why); err != nil {
			return wrapf(err, "keeping an archive of volume group %q", g.VG.Name)
		}
	}
	next.Seqno = g.VG.Seqno + 1
	if err := g.write(next, "Created *after* "+why, partly); err != nil {
		return err
	}
	g.VG, g.fresh, g.Stale = next, false, nil
	// The commit stands. After an error callers would undo what they did, so a failed backup is only a note.
	if err := g.cfg.backup(next, "Created *after* "+why); err != nil {
		g.note("volume group %q is changed, but not its backup file: %v", next.Name, err)
	}
	return nil
}

// Repair makes the current text durable, and rewrites damaged and old copies from it.
func (g *Group) Repair() error {
	if err := g.settle(); err != nil || len(g.Stale) == 0 {
		return err
	}
	return g.Commit(g.VG.Clone(), "repairing damaged metadata")
}

// settle makes the text that was found durable. Whoever committed it may have been killed between the
// write of a header and its flush, or the flush has failed, and then only the page cache has it: what
// volumes promise to keep may lie in extents that the text on the disks, which a power cut brings back,
// does not give them, and the next text may be put where that one is. The headers are written again, because after a flush that failed the kernel takes
// them for written; the text need not be, as it was flushed before a header named it. One area is enough,
// as in CommitWherePossible.
func (g *Group) settle() error {
	unlock, err := g.cfg.lockToSettle(g.VG.Name)
	if err != nil {
		return err
	}
	defer unlock()
	if err := g.verifyUnchanged(); err != nil {
		return err
	}
	areas := slices.DeleteFunc(g.areas(g.VG), func(a *Area) bool { return slices.Contains(g.Stale, a) })
	var errs []error
	for i, a := range areas {
		if err := a.writeAgain(); err != nil {
			errs = append(errs, err)
			areas[i] = nil
		}
	}
	step, durable := flush(), 0
	for i, a := range areas {
		if a == nil {
			continue
		}
		if err := step(i, a); err != nil {
			errs = append(errs, err)
			continue
		}
		durable++
	}
	if durable == 0 {
		return errors.Join(errs...)
	}
	for _, err := range errs {
		g.note("%v; the other copies are on disk", err)
	}
	return nil
}

// writeAgain stores the header of an area as it is.
func (a *Area) writeAgain() error {
	if a.Disk.Dev.Info().ReadOnly {
		return nil
	}
	b := make([]byte, ondisk.MDAHeaderLen)
	err := a.Disk.readAt(b, int64(a.loc.Offset))
	if err == nil {
		err = a.Disk.writeAt(b, int64(a.loc.Offset))
	}
	return wrapf(err, "%s: making metadata durable", a.Disk.Path)
}

// areas are the writable metadata areas of the group.
func (g *Group) areas(vg *meta.VG) []*Area {
	var out []*Area
	for _, pv := range vg.PVs {
		if d := g.Disks[pv.ID]; d != nil {
			for _, a := range d.Areas {
				if !a.Ignored() {
					out = append(out, a)
				}
			}
		}
	}
	return out
}

// verifyUnchanged reads the headers again: another process may have committed
// since this one read them.
func (g *Group) verifyUnchanged() error {
	if g.fresh {
		return nil
	}
	for _, a := range g.areas(g.VG) {
		b := make([]byte, ondisk.MDAHeaderLen)
		if err := a.Disk.readAt(b, int64(a.loc.Offset)); err != nil {
			continue // write deals with damaged areas
		}
		h, err := ondisk.ParseMDAHeader(b, a.loc.Offset)
		if err != nil || a.header == nil {
			continue
		}
		if h.Committed != a.header.Committed {
			return fmt.Errorf("volume group %q on %s: %w; read it again", g.VG.Name, a.Disk.Path, ErrChanged)
		}
	}
	return nil
}

// write does the three steps of a commit in every metadata area. partly lets some of them
// fail.
func (g *Group) write(next *meta.VG, why string, partly bool) error {
	t := transaction{g: g, next: next, partly: partly, areas: g.areas(next)}
	if len(t.areas) == 0 {
		return fmt.Errorf("volume group %q has no metadata area on the devices present", next.Name)
	}
	t.headers = make([]ondisk.MDAHeader, len(t.areas))
	t.text = next.Text(&meta.Stamp{Description: why, Host: g.cfg.HostName(), Time: g.cfg.now(), Tool: Tool})
	for _, step := range []func(int, *Area) error{t.writeText, flush(), t.precommit, flush()} {
		if err := t.do(step); err != nil {
			return err
		}
	}
	return t.commit()
}

// transaction is a commit on its way through the metadata areas of a group.
type transaction struct {
	g       *Group
	next    *meta.VG
	text    []byte             // of next
	partly  bool               // areas may fail, as long as there is one left
	areas   []*Area            // nil: it has failed, and stays behind
	headers []ondisk.MDAHeader // of the areas: next is precommitted
}

// do does a step in every area that has not failed.
func (t *transaction) do(step func(i int, a *Area) error) error {
	var err error
	failed := 0
	for i, a := range t.areas {
		if a == nil {
			failed++
			continue
		}
		if err = step(i, a); err == nil {
			continue
		}
		if !t.partly {
			return err
		}
		t.g.note("%v; it stays behind", err)
		t.areas[i] = nil
		failed++
	}
	if failed == len(t.areas) {
		return fmt.Errorf("volume group %q: no metadata area can be written: %w", t.next.Name, err)
	}
	return nil
}

// writeText is step 1.
func (t *transaction) writeText(i int, a *Area) (err error) {
	t.headers[i], err = a.writeText(t.text)
	return err
}

// precommit is step 2.
func (t *transaction) precommit(i int, a *Area) error {
	return wrapf(a.Disk.writeAt(t.headers[i].Append(nil), int64(a.loc.Offset)), "%s: precommitting metadata", a.Disk.Path)
}

// commit is step 3. Once the first header is out there is no way back: a disk that fails
// now is reported and stays behind.
func (t *transaction) commit() error {
	var late []error
	done := 0
	for i, a := range t.areas {
		if a == nil {
			continue
		}
		h := t.headers[i]
		h.Committed, h.Precommit = h.Precommit, ondisk.Locn{}
		if err := a.writeHeader(h); err != nil {
			late = append(late, wrapf(err, "%s: committing metadata", a.Disk.Path))
			continue
		}
		done++
		a.header, a.VG, a.Err = &h, t.next, nil
	}
	if done == 0 {
		// Callers go on with what was there before. A header that could not be flushed would be found all
		// the same by whoever opens the group next.
		for i, a := range t.areas {
			if a != nil {
				late = append(late, a.takeBack(t.headers[i]))
			}
		}
		return errors.Join(late...)
	}
	for _, err := range late {
		t.g.note("%v; the other copies are current", err)
	}
	return nil
}

// writeHeader writes the header of an area, durably.
func (a *Area) writeHeader(h ondisk.MDAHeader) error {
	if err := a.Disk.writeAt(h.Append(nil), int64(a.loc.Offset)); err != nil {
		return err
	}
	return a.Disk.Dev.Flush()
}

// takeBack makes the header of an area again what it was before h was committed.
func (a *Area) takeBack(h ondisk.MDAHeader) error {
	h.Precommit = ondisk.Locn{}
	return wrapf(a.writeHeader(h), "%s: taking back what could not be committed", a.Disk.Path)
}

// writeText puts a text into the ring of an area, beside the current one, and
// returns a header in which it is precommitted. A header that was damaged is laid
// out anew.
func (a *Area) writeText(text []byte) (ondisk.MDAHeader, error) {
	h := ondisk.MDAHeader{Start: a.loc.Offset, Size: a.loc.Size}
	if a.header != nil {
		h = *a.header
		if a.Err != nil || a.VG == nil {
			h.Committed = ondisk.Locn{} // the current text is unusable and may be overwritten
		}
	}
	n := uint64(len(text))
	off, err := h.Next(n)
	if err != nil {
		return h, wrapf(err, "%s", a.Disk.Path)
	}
	p, q := h.Split(off, n)
	err = a.Disk.writeText(text[:p.Size], int64(p.Offset))
	if err == nil && q.Size > 0 {
		err = a.Disk.writeText(text[p.Size:], int64(q.Offset))
	}
	h.Precommit = ondisk.Locn{Offset: off, Size: n, Checksum: ondisk.CRC(text)}
	return h, wrapf(err, "%s: writing metadata", a.Disk.Path)
}

// writeText pads a piece of text to whole sectors.
func (d *Disk) writeText(p []byte, off int64) error {
	n := (len(p) + ondisk.SectorSize - 1) &^ (ondisk.SectorSize - 1)
	b := make([]byte, n)
	copy(b, p)
	return d.writeAt(b, off)
}

// flush is a step that flushes every disk once.
func flush() func(int, *Area) error {
	done := map[*Disk]error{}
	return func(_ int, a *Area) error {
		err, ok := done[a.Disk]
		if !ok {
			err = wrapf(a.Disk.Dev.Flush(), "%s: flushing metadata", a.Disk.Path)
			done[a.Disk] = err
		}
		return err
	}
}

// HostName is the name that goes into metadata.
func (c *Config) HostName() string {
	if c.Host != "" {
		return c.Host
	}
	h, err := os.Hostname()
	if err != nil {
		return "localhost"
	}
	return h
}
