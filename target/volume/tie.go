package volume

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"softiser/blockdev"
)

// The undo journal and the marks of bad blocks lie in a folder, and are of the content that the
// device has. If the volume were served without that folder meanwhile, an undo when it is back would
// go over what has been written since, and good blocks would be unreadable. So where the device keeps
// a mark (blockdev.Marker: files) the folder is tied to it before either matters: a
// record of the volume and the mark have one token. It is made with the first atomic write of a life, or the
// first bad block, and nothing is done for later ones. An orderly end takes it away, if no block is marked.
//
//	record: new, old or none --> mark: new --> record: new --> ... --> no mark --> no record
//
//	at the next start | no record | the record has it | it has another
//	no mark           | serve     | serve             | stale
//	a mark            | refuse    | serve, renewed    | refuse
//
// Stale is what the folder has: a journal with an entry that is not undone yet, or marks, keep the
// volume from being served; without either there is nothing to lose. Files that an
// earlier version has left, or that are of a volume that takes no mark, are used as they are: there is no
// record.
// A device that is opened to be read only is not looked at: nobody writes past the folder by that.

// tieNone stands for no mark in a record.
const tieNone = "-"

// tie is the part of a volume that ties the folder of its state to the device.
type tie struct {
	medium *medium
	state  *state

	held atomic.Bool // nothing is left to be done in this life; changed under mu

	mu    sync.Mutex // held across what is saved; taken before state.mu, behind Journal.mu
	known []string   // guarded by mu: what the record says that the mark may be; nil: there is none
	token string     // guarded by mu: what the mark has; "": there is none
	stale bool       // guarded by mu: the device is not the one that the folder was tied to
}

// marker returns the device, if it can be tied to the folder.
func (t *tie) marker() (m blockdev.Marker, ok bool) {
	if m, ok = t.medium.dev.(blockdev.Marker); ok {
		ok = !t.medium.Geo().Info.ReadOnly
	}
	return m, ok
}

func (t *tie) record() string { return t.state.record(".tie") }

// look compares record and mark, when the volume is opened.
func (t *tie) look() error {
	m, ok := t.marker()
	if !ok {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.known, t.token, t.stale = nil, "", false
	t.held.Store(false)
	mark, err := m.Mark(blockdev.MarkState)
	if err != nil && !errors.Is(err, blockdev.ErrNotSupported) {
		return err
	}
	if t.state.keeps() {
		b, err := t.state.store.Load(t.record())
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		t.known = strings.Fields(string(b))
	}
	token, dir, _ := strings.Cut(mark, " ")
	switch {
	case slices.Contains(t.known, token):
		t.token = token
		t.held.Store(len(t.known) == 1)
	case token != "":
		where := "there is no admin.state_dir now"
		if t.state.keeps() {
			where = t.state.store.Dir() + " does not know of it"
		}
		return fmt.Errorf("blocks marked as bad, or what an interrupted WRITE ATOMIC has to put back, are kept in %s, and %s: serve the volume with that admin.state_dir; "+
			"or, if this is a copy, or to give them up and keep what the blocks hold now: %s", dir, where, m.Unmark(blockdev.MarkState))
	case len(t.known) > 0:
		t.stale = !slices.Contains(t.known, tieNone)
	}
	return nil
}

// isStale reports whether what the folder has is of another device, or of what this one held before.
func (t *tie) isStale() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.stale
}

// staleError is the error for what a file of the folder has; without is what to do to serve the volume without it.
func (t *tie) staleError(what, file, without string) error {
	return fmt.Errorf("%s has %s, and the mark that ties it to %s is gone: somebody has given that up, or this is a copy, and what has been written since would be lost; "+
		"to keep what the blocks hold now, %s; to have it as the file says, remove %s", file, what, t.medium.Geo().Info.ID, without, t.state.file(".tie"))
}

// settle ends the opening: what was tied is tied anew, so that a copy of the folder as it was is stale
// from now on. goesOn: another process may still go on with it as it is.
func (t *tie) settle(goesOn bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.token != "" && !goesOn {
		_ = t.renew() // what cannot be saved is as it was, and the next to need it tries again
	}
}

// hold ties the folder, if it is not. An error says that the folder cannot be written, or the mark not be read.
func (t *tie) hold() error {
	if t.held.Load() {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.held.Load() {
		return nil
	}
	err := blockdev.ErrNotSupported
	if m, ok := t.marker(); ok {
		_, err = m.Mark(blockdev.MarkState)
	}
	switch {
	case errors.Is(err, blockdev.ErrNotSupported):
		t.held.Store(true) // it stays without
		return nil
	case err != nil:
		return err
	}
	return t.renew()
}

// renew makes the mark another one. Preconditions: mu is held, the device takes marks.
func (t *tie) renew() error {
	t.held.Store(false)
	m, _ := t.marker()
	now := t.token
	if now == "" {
		now = tieNone
	}
	token := rand.Text()
	if err := t.save([]string{token, now}); err != nil {
		return err
	}
	if m.SetMark(blockdev.MarkState, token+" "+t.state.store.Dir()) != nil {
		t.held.Store(true) // no room for attributes: whatever is there now is known
		return nil
	}
	t.token = token
	if err := t.save([]string{token}); err != nil {
		return err
	}
	t.held.Store(true)
	return nil
}

func (t *tie) save(known []string) error {
	err := t.state.store.Save(t.record(), []byte(strings.Join(known, " ")+"\n"))
	if err == nil {
		t.known = known
	}
	return err
}

// release unties the folder, which has nothing that is of the content any more. What fails leaves
// it tied. Preconditions: nothing uses the volume.
func (t *tie) release() {
	t.mu.Lock()
	defer t.mu.Unlock()
	m, ok := t.marker()
	if !ok || t.known == nil || m.SetMark(blockdev.MarkState, "") != nil {
		return
	}
	if t.state.store.Remove(t.record()) == nil {
		t.known, t.token = nil, ""
		t.held.Store(false)
	}
}
