package scsi

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	spc "softiser/internal/scsi"
)

// What survives a restart (saved mode pages, reservations with APTPL, a SANITIZE or
// FORMAT UNIT that has begun or failed) is one
// JSON file for each logical unit, named by its NAA designator. It is replaced
// crash-safely: a new file is written and synced, renamed over the old one, and
// the directory synced; only then does the command that asked for it end.

// savedState is the content of the file.
type savedState struct {
	Version int         `json:"version"`
	Unit    string      `json:"unit"`
	Modes   *modeValues `json:"modes,omitempty"`
	PR      *savedPR    `json:"persistent_reservation,omitempty"`
	Regs    []savedReg  `json:"registrations,omitempty"`
	Op      *operation  `json:"operation,omitempty"`
}

type savedPR struct {
	Type   spc.PRType `json:"type"`
	Holder *regKey    `json:"holder,omitempty"`
}

type savedReg struct {
	regKey
	registration
}

// canSave reports whether the unit has somewhere to keep state.
func (lu *LU) canSave() bool { return lu.keeps }

func (lu *LU) stateFile() string { return filepath.Join(lu.dev.cfg.StateDir, "lu-"+lu.id.key+".json") }

// loadState brings back what was saved. A file that cannot be understood keeps
// the unit from being served: without its reservations somebody's data would
// be unprotected.
func (lu *LU) loadState() error {
	lu.pr.Store(&reservations{})
	if !lu.canSave() {
		return nil
	}
	name := lu.stateFile()
	if err := removeUnfinished(name); err != nil {
		return err
	}
	b, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	def := lu.modes.def // for parameters that the file does not know
	s := savedState{Modes: &def}
	if err := json.Unmarshal(b, &s); err != nil || s.Version != 1 || s.Unit != lu.id.key || s.Op != nil && !s.Op.valid() {
		return fmt.Errorf("%s is not the saved state of this logical unit; put the right file there, or remove it to forget its reservations and saved mode pages", name)
	}
	if s.Modes != nil {
		v := *s.Modes
		v.WCE = v.WCE && lu.modes.def.WCE
		v.LBPERE = v.LBPERE && metersSpace(lu)
		lu.modes.saved.Store(&v)
		lu.modes.restore()
	}
	if s.Op != nil && lu.vol != nil {
		lu.restoreOperation(s.Op)
	}
	r := (&reservations{}).clone()
	for _, reg := range s.Regs {
		r.regs[reg.regKey] = reg.registration
	}
	r.aptpl = len(r.regs) > 0
	if s.PR != nil && s.PR.Type.Valid() && len(r.regs) > 0 {
		r.typ = s.PR.Type
		if s.PR.Holder != nil {
			r.holder = *s.PR.Holder
		}
	}
	lu.pr.Store(r)
	return nil
}

// save writes the file. Preconditions: lu.prMu is held.
func (lu *LU) save(m modeValues, r *reservations) error {
	s := savedState{Version: 1, Unit: lu.id.key, Op: lu.rewriter.saved}
	if m != lu.modes.def {
		s.Modes = &m
	}
	if r.aptpl {
		for _, k := range r.sortedRegs() {
			s.Regs = append(s.Regs, savedReg{k, r.regs[k]})
		}
		if r.typ != spc.PRNone {
			s.PR = &savedPR{Type: r.typ}
			if !r.typ.AllRegistrants() {
				s.PR.Holder = &r.holder
			}
		}
	}
	b, err := json.MarshalIndent(&s, "", "  ")
	if err != nil {
		return err
	}
	err = replaceFile(lu.stateFile(), append(b, '\n'))
	lu.unsaved = err != nil
	return err
}

// saveReservations keeps r through power loss if it asks for that, or forgets
// what was kept before. Preconditions: lu.prMu is held.
func (lu *LU) saveReservations(r *reservations) error {
	if !lu.canSave() || !r.aptpl && !lu.pr.Load().aptpl && !lu.unsaved {
		return nil
	}
	return lu.save(*lu.modes.saved.Load(), r)
}

// saveModes makes v what a reset and a restart return to. Preconditions:
// lu.prMu is held.
func (lu *LU) saveModes(v modeValues) error {
	if err := lu.save(v, lu.pr.Load()); err != nil {
		return err
	}
	lu.modes.saved.Store(&v)
	return nil
}

// unfinished is what the names of files that are being written have behind those of
// the files that they will replace.
const unfinished = ".new-"

// removeUnfinished removes what crashes have left of earlier attempts to replace name.
func removeUnfinished(name string) error {
	dir, err := os.Open(filepath.Dir(name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	for _, n := range names {
		if strings.HasPrefix(n, filepath.Base(name)+unfinished) {
			err = errors.Join(err, os.Remove(filepath.Join(dir.Name(), n)))
		}
	}
	return err
}

// replaceFile makes b the content of name, durably, so that a crash at any point
// leaves either the old content or the new. If it fails, the old content is put back
// as far as that can be done: what a command was refused must not be there after a
// restart. A loss of power right then can still bring up either, because nobody knows
// what a folder that could not be synced has on disk; the next change, which is saved
// whatever it is (LU.unsaved), ends that.
func replaceFile(name string, b []byte) error {
	old, err := os.ReadFile(name)
	fresh := errors.Is(err, fs.ErrNotExist)
	if err != nil && !fresh {
		return err
	}
	if err := renameOver(name, b); err != nil {
		return err
	}
	if err := syncDir(filepath.Dir(name)); err != nil {
		if fresh {
			return errors.Join(err, os.Remove(name))
		}
		return errors.Join(err, renameOver(name, old))
	}
	return nil
}

// renameOver puts a synced file with content b in the place of name.
func renameOver(name string, b []byte) (err error) {
	f, err := os.CreateTemp(filepath.Dir(name), filepath.Base(name)+unfinished+"*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			os.Remove(f.Name())
		}
	}()
	_, err = f.Write(b)
	if err == nil {
		err = syncFile(f)
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(f.Name(), name)
	}
	return err
}

// syncFile makes the content of a file durable. Tests look at what is there before.
var syncFile = (*os.File).Sync

// syncDir makes the names in a folder durable. Tests make it fail.
var syncDir = func(name string) error {
	dir, err := os.Open(name)
	if err != nil {
		return err
	}
	defer dir.Close()
	return dir.Sync()
}
