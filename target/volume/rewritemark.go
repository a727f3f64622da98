package volume

import (
	"crypto/rand"
	"errors"
	"fmt"
	"strings"

	"softiser/blockdev"
)

// What is saved of a rewrite lies in a folder. If the volume were served without that folder
// meanwhile, a rewrite that goes on when the folder is back would destroy what has been written
// since. So where the device keeps one (blockdev.Marker: files) it has a mark for as long as a
// rewrite runs or has failed, with the token of the record:
//
//	record saved --> marked --> ... --> record says that it has ended --> mark taken away
//
//	at the next start  | no rewrite in the record | one with that token | one with another token
//	no mark            | serve                    |            it has not begun: forget it; else refuse
//	mark               | refuse, but if it ended  | go on               | refuse
//
// A rewrite without a token (saved by an earlier version, or on a file system that keeps no marks)
// goes on as it is.

// begun reports whether blocks may have been changed.
func (o *Rewrite) begun() bool { return o.Failed || o.Pass > 0 || o.Offset > 0 }

// mark saves o, with a token where the volume can be marked, and marks it then.
func (z *Rewriter) mark(o *Rewrite) error {
	m, marks := z.vol.dev.(blockdev.Marker)
	if !marks || !z.vol.state.keeps() {
		return z.save(o)
	}
	mark, err := m.Mark(blockdev.MarkRewrite)
	switch {
	case errors.Is(err, blockdev.ErrNotSupported):
		return z.save(o)
	case err != nil:
		return err
	}
	if o.Token = rand.Text(); z.vol.Gates()&(SanitizeFailed|Corrupt) != 0 {
		z.mu.Lock()
		o.Token = z.now.Token // the mark is that of the one that has failed
		z.mu.Unlock()
	}
	if err := z.save(o); err != nil || o.Token == "" {
		return err
	}
	if token, _, _ := strings.Cut(mark, " "); token == o.Token || m.SetMark(blockdev.MarkRewrite, o.Token+" "+z.vol.state.store.Dir()) == nil {
		return nil
	}
	_ = m.SetMark(blockdev.MarkRewrite, "") // it may be there in part; the rewrite can be carried out all the same
	o.Token = ""
	return z.save(o)
}

// saved returns what has been saved of a rewrite; nil: nothing.
func (z *Rewriter) saved() *Rewrite {
	z.vol.state.mu.Lock()
	defer z.vol.state.mu.Unlock()
	return z.vol.state.kept.Op
}

// takeBack has what is saved tell of before again, after a rewrite that does not begin, for something of
// it may have been saved. While that cannot be saved either, the next change does.
func (z *Rewriter) takeBack(before *Rewrite) {
	s := &z.vol.state
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.kept.Op == before && !s.unsaved {
		return
	}
	next := s.kept
	next.Op = before
	if s.save(next) != nil {
		s.kept, s.unsaved = next, true
	}
}

// save keeps o (nil: none) through power loss.
func (z *Rewriter) save(o *Rewrite) error {
	if !z.vol.state.keeps() {
		return nil
	}
	z.vol.state.mu.Lock()
	defer z.vol.state.mu.Unlock()
	next := z.vol.state.kept
	if o == nil {
		return z.saveEnded(next)
	}
	op := *o // o goes on being its caller's
	next.Op = &op
	return z.vol.state.save(next)
}

// saveEnded saves next without a rewrite, and takes the mark away. One that stays is known to be of
// a rewrite that has ended. Preconditions: state.mu is held.
func (z *Rewriter) saveEnded(next savedState) error {
	marked := next.Op != nil && next.Op.Token != ""
	if marked {
		next.Ended = next.Op.Token
	}
	next.Op = nil
	if err := z.vol.state.save(next); err != nil {
		return err
	}
	if m, marks := z.vol.dev.(blockdev.Marker); marked && marks {
		_ = m.SetMark(blockdev.MarkRewrite, "")
	}
	return nil
}

// checkMark compares what was saved with the mark. It takes a rewrite that has not begun out of kept.
func (z *Rewriter) checkMark(kept *savedState) error {
	m, marks := z.vol.dev.(blockdev.Marker)
	if !marks || kept.Op != nil && kept.Op.Token == "" {
		return nil
	}
	mark, err := m.Mark(blockdev.MarkRewrite)
	if err != nil && !errors.Is(err, blockdev.ErrNotSupported) {
		return err
	}
	token, dir, _ := strings.Cut(mark, " ")
	switch {
	case kept.Op != nil && token == kept.Op.Token:
		return nil
	case token != "" && token != kept.Ended:
		return fmt.Errorf("a sanitize or format of the volume has begun and not ended, and its state is kept in %s: serve the volume with that admin.state_dir; or, to give that up and keep what the blocks hold now: %s",
			dir, m.Unmark(blockdev.MarkRewrite))
	case token != "":
		_ = m.SetMark(blockdev.MarkRewrite, "")
	}
	if kept.Op == nil {
		return nil
	}
	if kept.Op.begun() {
		return fmt.Errorf("%s tells of a %s that has begun, and the volume has no mark of it: it has been given up, or this is a copy; to serve it as it is, remove the file, with the unit's reservations and saved mode pages",
			z.vol.state.file(".json"), kept.Op.Kind)
	}
	kept.Op = nil
	return nil
}
