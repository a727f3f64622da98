package volume

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"softiser/target/internal/statefile"
)

// What survives a restart (parameters that initiators have saved, reservations that are
// to persist, a rewrite that has begun or failed) is one JSON file for each volume, named
// by its NAA designator. It is replaced crash-safely, and only then does the command that
// asked for it end.

// savedState is the content of the file.
type savedState struct {
	Version int             `json:"version"`
	Unit    string          `json:"unit"`
	Modes   json.RawMessage `json:"modes,omitempty"`
	PR      *savedPR        `json:"persistent_reservation,omitempty"`
	Regs    []savedReg      `json:"registrations,omitempty"`
	Op      *Rewrite        `json:"operation,omitempty"`
	// Protected is the gate of that name.
	Protected bool `json:"write_protected,omitempty"`
	// Sanitized is the last sanitize that has ended well.
	Sanitized *Rewrite `json:"sanitized,omitempty"`
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
	dir string // "": nothing is kept
	key string

	mu      sync.Mutex // serialises changes, of reservations too; held across the sync of the file
	kept    savedState // guarded by mu: what the file says
	unsaved bool       // guarded by mu: an attempt to save has left a file that may be older or newer
}

// name returns the name of one of the volume's files.
func (s *state) name(suffix string) string { return filepath.Join(s.dir, "lu-"+s.key+suffix) }

// Keeps reports whether the volume has somewhere to keep state.
func (v *Volume) Keeps() bool { return v.state.dir != "" }

// BadState is the error for a state file that cannot be understood. It keeps the volume
// from being served: without its reservations somebody's data would be unprotected.
func (v *Volume) BadState() error {
	return fmt.Errorf("%s is not the saved state of this logical unit; put the right file there, or remove it to forget its reservations and saved mode pages", v.state.name(".json"))
}

// loadState brings back what was saved.
func (v *Volume) loadState() error {
	s := &v.state
	s.kept = savedState{Version: 1, Unit: s.key}
	if !v.Keeps() {
		return nil
	}
	name := s.name(".json")
	statefile.RemoveUnfinished(name)
	b, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var kept savedState
	if err := json.Unmarshal(b, &kept); err != nil || kept.Version != 1 || kept.Unit != s.key || kept.Op != nil && !kept.Op.valid() || kept.Sanitized != nil && !kept.Sanitized.valid() {
		return v.BadState()
	}
	s.kept = kept
	v.SetGate(Protected, kept.Protected)
	v.Rewriter.sanitized = kept.Sanitized
	if kept.Op != nil && v.dev != nil {
		v.Rewriter.restore(kept.Op)
	}
	v.now.Store(restoreReservations(&kept))
	return nil
}

// save makes next what the file says. Preconditions: s.mu is held.
func (s *state) save(next savedState) error {
	b, err := json.MarshalIndent(&next, "", "  ")
	if err != nil {
		return err
	}
	err = statefile.Replace(s.name(".json"), append(b, '\n'))
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
