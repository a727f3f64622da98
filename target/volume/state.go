package volume

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"path/filepath"
	"sync"

	"softiser/target/internal/statefile"
)

// What survives a restart (parameters that initiators have saved, reservations that are
// to persist, a rewrite that has begun or failed) is one JSON file for each volume, named
// by its NAA designator. It is replaced crash-safely, and only then does the command that
// asked for it end.

// stateVersion is that of a file with marks, which a program that does not know of them must
// not pass over; every other file has plainVersion. What came later than that otherwise are
// keys that older files do not have, and registrations of them, which name no target, are
// adopted (Reservations.Adopt). Who gives a key another meaning counts it up.
const (
	plainVersion = 1
	stateVersion = 2
)

// savedState is the content of the file.
type savedState struct {
	Version int             `json:"version"`
	Unit    string          `json:"unit"`
	Modes   json.RawMessage `json:"modes,omitempty"`
	PR      *savedPR        `json:"persistent_reservation,omitempty"`
	Regs    []savedReg      `json:"registrations,omitempty"`
	// Generation is that of the registrations, Volatile that they need not survive a loss of
	// power; both only of a volume that moves between nodes.
	Generation uint32   `json:"generation,omitempty"`
	Volatile   bool     `json:"volatile,omitempty"`
	Op         *Rewrite `json:"operation,omitempty"`
	// Protected is the gate of that name.
	Protected bool `json:"write_protected,omitempty"`
	// Sanitized is the last sanitize that has ended well.
	Sanitized *Rewrite `json:"sanitized,omitempty"`
	// Marks are the blocks that cannot be read, see marks.go.
	Marks marks `json:"uncorrectable,omitempty"`
	// Done is the sum of an entry of the undo journal whose write has ended well, see doneMark; 0: none.
	Done uint64 `json:"atomic_done,omitempty"`
}

type savedPR struct {
	Type   ReservationType `json:"type"`
	Holder *Registrant     `json:"holder,omitempty"`
}

type savedReg struct {
	Registrant
	Registration
}

// state is where a volume keeps what survives a restart.
type state struct {
	store Store // nil: nothing is kept
	key   string

	mu      sync.Mutex // serialises changes, of reservations too; held across the sync of the file
	kept    savedState // guarded by mu: what the file says
	unsaved bool       // guarded by mu: an attempt to save has left a file that may be older or newer
}

// record returns the name of one of the volume's records.
func (s *state) record(suffix string) string { return "lu-" + s.key + suffix }

// file returns the name of one of the volume's files.
func (s *state) file(suffix string) string { return filepath.Join(s.store.Dir(), s.record(suffix)) }

// Keeps reports whether the volume has somewhere to keep state.
func (v *Volume) Keeps() bool { return v.state.store != nil }

// BadState is the error for a state file that cannot be understood. It keeps the volume
// from being served: without its reservations somebody's data would be unprotected.
func (v *Volume) BadState() error {
	return fmt.Errorf("%s is not the saved state of this logical unit; put the right file there, or remove it to forget its reservations and saved mode pages", v.state.file(".json"))
}

// loadState brings back what was saved.
func (v *Volume) loadState() error {
	s := &v.state
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kept = savedState{Unit: s.key}
	v.marks.Store(nil)
	if !v.Keeps() {
		return nil
	}
	if v.Moves() { // forget what this node knew when it had the volume
		v.SetGate(Sanitizing|SanitizeFailed|Formatting|Corrupt|Protected, false)
		v.Rewriter.forget()
		v.now.Store(&Reservations{})
		v.erased.Store(false)
	}
	b, err := s.store.Load(s.record(".json"))
	if errors.Is(err, fs.ErrNotExist) {
		return v.hereLocked()
	}
	if err != nil {
		return err
	}
	if later := laterVersion(b); later != 0 {
		return fmt.Errorf("%s has version %d, and this program knows %d: a later version of iser-target has written it; go back to that one, or remove the file to forget the unit's reservations and saved mode pages",
			s.file(".json"), later, stateVersion)
	}
	kept, ok := s.parse(b)
	if !ok {
		return v.BadState()
	}
	if size := v.Geo().Info.Size; len(kept.Marks) > 0 && kept.Marks[len(kept.Marks)-1].end > size && v.dev != nil {
		kept.Marks = kept.Marks.without(size, math.MaxInt64) // it has been cut
		if err := s.save(kept); err != nil {
			return err
		}
	}
	s.kept = kept
	v.publishMarks(kept.Marks)
	v.SetGate(Protected, kept.Protected)
	v.Rewriter.sanitized = kept.Sanitized
	if kept.Op != nil && v.dev != nil {
		v.Rewriter.restore(kept.Op)
	}
	v.now.Store(restoreReservations(&kept))
	return v.hereLocked()
}

// laterVersion is the version of a file that another program has written, which knows more
// than this one; 0: it is none.
func laterVersion(b []byte) int {
	var head struct {
		Version int `json:"version"`
	}
	if json.Unmarshal(b, &head) != nil || head.Version <= stateVersion {
		return 0
	}
	return head.Version
}

// parse reports whether a file is the state of this unit.
func (s *state) parse(b []byte) (kept savedState, ok bool) {
	err := json.Unmarshal(b, &kept)
	return kept, err == nil && (kept.Version == plainVersion || kept.Version == stateVersion) && kept.Unit == s.key && (kept.Op == nil || kept.Op.valid()) && (kept.Sanitized == nil || kept.Sanitized.valid())
}

// save makes next what the file says. Preconditions: s.mu is held.
func (s *state) save(next savedState) error {
	next.Version = plainVersion
	if len(next.Marks) > 0 || next.Done != 0 {
		next.Version = stateVersion
	}
	b, err := json.MarshalIndent(&next, "", "  ")
	if err != nil {
		return err
	}
	err = s.store.Save(s.record(".json"), append(b, '\n'))
	s.unsaved = err != nil && (s.unsaved || errors.Is(err, statefile.ErrUncertain))
	if err == nil {
		s.kept = next
	}
	return err
}

// SavedParameters returns what SaveParameters has saved, in this life or an earlier
// one; nil: nothing.
func (v *Volume) SavedParameters() json.RawMessage {
	v.state.mu.Lock()
	defer v.state.mu.Unlock()
	return v.state.kept.Modes
}

// SaveParameters keeps parameters through a restart, in the front end's own form; nil:
// the defaults. Preconditions: the volume Keeps.
func (v *Volume) SaveParameters(p json.RawMessage) error {
	v.state.mu.Lock()
	defer v.state.mu.Unlock()
	next := v.state.kept
	next.Modes = p
	return v.state.save(next)
}
