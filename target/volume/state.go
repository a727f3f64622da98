package volume

import (
	"encoding/json"
	"errors"
	"path/filepath"
	"sync"

	"softiser/target/internal/statefile"
)

// What survives a restart (parameters that initiators have saved, reservations that are
// to persist, a rewrite that has begun or failed) is one JSON file for each volume, named
// by its NAA designator. It is replaced crash-safely, and only then does the command that
// asked for it end.

// marksVersion is that of a file with marks, stateVersion that of one with a rewrite whose volume is
// marked: a program that does not know of that must not pass over it. Every other file has plainVersion. What came later than that otherwise are
// keys that older files do not have, and registrations of them, which name no target, are
// adopted (Reservations.Adopt). Who gives a key another meaning counts it up.
const (
	plainVersion = 1
	marksVersion = 2
	stateVersion = 3
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
	// Ended is the token of the last rewrite that is over, whose mark may still be there.
	Ended string `json:"ended,omitempty"`
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
	moves bool // the store goes from node to node with the volume

	mu      sync.Mutex // serialises changes, of reservations too; held across the sync of the file
	kept    savedState // guarded by mu: what the file says
	unsaved bool       // guarded by mu: an attempt to save has left a file that may be older or newer
}

// record returns the name of one of the volume's records.
func (s *state) record(suffix string) string { return "lu-" + s.key + suffix }

// file returns the name of one of the volume's files.
func (s *state) file(suffix string) string { return filepath.Join(s.store.Dir(), s.record(suffix)) }

// keeps reports whether there is somewhere to keep state.
func (s *state) keeps() bool { return s.store != nil }

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
	return kept, err == nil && kept.Version >= plainVersion && kept.Version <= stateVersion && kept.Unit == s.key && (kept.Op == nil || kept.Op.valid()) && (kept.Sanitized == nil || kept.Sanitized.valid())
}

// save makes next what the file says. Preconditions: s.mu is held.
func (s *state) save(next savedState) error {
	next.Version = plainVersion
	if len(next.Marks) > 0 || next.Done != 0 {
		next.Version = marksVersion
	}
	if next.Op != nil && next.Op.Token != "" {
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

// doneMark makes a number that is not 0 of the sum of a journal's entry.
func doneMark(sum uint32) uint64 { return 1<<32 | uint64(sum) }

// isDone reports whether the journal's entry with a sum is not to be put back.
func (s *state) isDone(sum uint32) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.kept.Done == doneMark(sum)
}

// notDone forgets which entry that is.
func (s *state) notDone() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.kept.Done == 0 {
		return nil
	}
	next := s.kept
	next.Done = 0
	return s.save(next)
}
