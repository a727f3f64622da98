package scsi

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"softiser/internal/spc"

	"softiser/blockdev"
	"softiser/blockdev/crashlog"
	"softiser/blockdev/faulty"
	"softiser/blockdev/file"
	"softiser/internal/durable"
	"softiser/target/internal/statefile"
)

func openFile(t *testing.T, path string) *file.Device {
	t.Helper()
	v, err := file.Open(file.Config{Path: path, Size: 1 << 20, BlockSize: 512})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { v.Close() })
	return v
}

func TestWriteAtomicOffered(t *testing.T) {
	v := openFile(t, filepath.Join(t.TempDir(), "v"))
	r := newRig(t, Config{}, LUConfig{Volume: v})
	r.do(spc.AppendWriteAtomic16(nil, 0, 8, false), make([]byte, 4096), 0).illegal(spc.ASCInvalidOpcode)
	if l := r.dev.lookup(0).limits(); l.MaxAtomic != 0 || l.AtomicGranularity != 0 {
		t.Errorf("limits of a command that is not there: %+v", l)
	}
}

// TestWriteAtomicCrash cuts the power after each step of a WRITE ATOMIC.
func TestWriteAtomicCrash(t *testing.T) {
	old, now := fill(4096, 1), fill(4096, 99)
	for _, c := range []struct {
		name string
		fail int // the write of the volume that fails; 0: none
		want []byte
	}{{"all", 0, now}, {"none", 1, old}, {"not even undone", 2, old}} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "v")
			v := openFile(t, path)
			f := faulty.New(v, 1)
			r := newRig(t, Config{StateDir: dir}, LUConfig{Volume: f})
			r.do(spc.AppendWrite(nil, 8, 8, false), old, 0).good()
			switch c.fail {
			case 0:
				r.do(spc.AppendWriteAtomic16(nil, 8, 8, false), now, 0).good()
			case 1:
				f.SetRules(faulty.Rule{Op: faulty.Write, Torn: true, Times: 1})
				r.do(spc.AppendWriteAtomic16(nil, 8, 8, false), now, 0).sense(spc.KeyMedium, spc.ASCWriteError)
			case 2: // torn, and then the process has no chance to repair
				f.SetRules(faulty.Rule{Op: faulty.Write, Torn: true, Times: 1}, faulty.Rule{Op: faulty.Write, Err: blockdev.ErrMedium})
				r.do(spc.AppendWriteAtomic16(nil, 8, 8, false), now, 0).sense(spc.KeyMedium, spc.ASCWriteError)
			}
			r.close()
			r.nx = nil
			if err := f.Close(); err != nil {
				t.Fatal(err)
			}
			again := newRig(t, Config{StateDir: dir}, LUConfig{Volume: openFile(t, path)})
			if got := again.do(spc.AppendRead(nil, 8, 8, false), nil, 4096).good().data; !bytes.Equal(got, c.want) {
				t.Error("neither all nor nothing")
			}
		})
	}
}

func TestUndoJournalTorn(t *testing.T) {
	dir := t.TempDir()
	r := newRig(t, Config{StateDir: dir}, LUConfig{Volume: newNamed(t, "a")})
	name, entry := r.dev.lookup(0).journalName(), journalEntry(fill(4096, 7), 4096)
	torn := bytes.Clone(entry)
	torn[1000] = 0xFF
	if err := os.WriteFile(name, torn, 0o600); err != nil {
		t.Fatal(err)
	}
	again := newRig(t, Config{StateDir: dir}, LUConfig{Volume: newNamed(t, "a")})
	if got := again.do(spc.AppendRead(nil, 8, 8, false), nil, 4096).good().data; !allZero(got) {
		t.Error("a torn entry was put back")
	}
	// A volume that cannot take its old data back is not served.
	if err := os.WriteFile(name, entry, 0o600); err != nil {
		t.Fatal(err)
	}
	d, _ := NewDevice(Config{Name: "iqn.2026-11.softiser:test", StateDir: dir})
	bad := faulty.New(newNamed(t, "a"), 1, faulty.Rule{Op: faulty.Write, Err: blockdev.ErrMedium})
	if _, err := d.AddLUN(LUConfig{Volume: bad}); !errors.Is(err, blockdev.ErrMedium) {
		t.Errorf("AddLUN: %v", err)
	}
}

// failingStore is the journal's file on a disk that fails: what is written is there, and
// nobody knows for how long.
type failingStore struct {
	statefile.File
	puts   bool // syncs fail
	clears bool // so does what would clear an entry
}

var errDisk = errors.New("input/output error")

func (f *failingStore) Sync() error {
	if f.puts {
		return errDisk
	}
	return f.File.Sync()
}

func (f *failingStore) WriteAt(p []byte, off int64) (int, error) {
	if f.clears && off == 0 && p[0] == 0 {
		return 0, errDisk
	}
	return f.File.WriteAt(p, off)
}

// TestJournalFails: an entry of the undo journal that may be there, because neither its
// making nor its clearing has succeeded, is gone before anything newer is acknowledged.
func TestJournalFails(t *testing.T) {
	atomic := spc.AppendWriteAtomic16(nil, 8, 8, false)
	write := spc.AppendWrite(nil, 8, 8, false)
	for _, how := range []string{"the entry was not made", "the entry was not cleared"} {
		t.Run(how, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "v")
			v := openFile(t, path)
			var told []error
			f := &failingStore{}
			wrapJournals(t, func(file statefile.File) statefile.File {
				if f.File == nil {
					f.File = file
					return f
				}
				return file
			})
			r := newRig(t, Config{StateDir: dir, Fault: func(_ uint16, err error) { told = append(told, err) }}, LUConfig{Volume: v})
			r.do(atomic, fill(4096, 1), 0).good()
			name := r.dev.lookup(0).journalName()
			f.puts, f.clears = how == "the entry was not made", true
			r.do(atomic, fill(4096, 20), 0).sense(spc.KeyHardware, spc.ASCInternalFailure)
			if len(told) != 1 || !errors.Is(told[0], errDisk) || !strings.Contains(told[0].Error(), name) {
				t.Errorf("the operator was told %v", told)
			}
			for _, cdb := range [][]byte{write, atomic} {
				r.do(cdb, fill(4096, 40), 0).sense(spc.KeyHardware, spc.ASCInternalFailure)
			}
			if len(told) != 3 || !errors.Is(told[2], errDisk) || !strings.Contains(told[2].Error(), name) {
				t.Errorf("of writes that are refused until then the operator was told %v", told[1:])
			}
			f.puts, f.clears = false, false
			want := fill(4096, 60)
			r.do(write, want, 0).good()
			r.do(spc.AppendSyncCache(nil, 0, 0, false), nil, 0).good()
			r.close()
			r.nx = nil
			if err := v.Close(); err != nil {
				t.Fatal(err)
			}
			again := newRig(t, Config{StateDir: dir}, LUConfig{Volume: openFile(t, path)})
			if got := again.do(spc.AppendRead(nil, 8, 8, false), nil, 4096).good().data; !bytes.Equal(got, want) {
				t.Error("a start has undone what was acknowledged and flushed")
			}
		})
	}
}

// TestUndoneIsDurable: the entry of the undo journal goes only when what it has put back
// is durable, at a start and after a failure.
func TestUndoneIsDurable(t *testing.T) {
	old := fill(4096, 7)
	sure := func(t *testing.T, d *crashlog.Device, name string) {
		t.Helper()
		b, err := os.ReadFile(name)
		if err != nil || bytes.HasPrefix(b, []byte(journalMagic)) {
			t.Fatalf("the entry is still there (%v)", err)
		}
		for img := range d.States(d.Now(), 100, 1) {
			if !bytes.Equal(img.Bytes()[4096:8192], old) {
				t.Fatal("the entry is gone, and what it has put back may be lost")
			}
		}
	}
	t.Run("start", func(t *testing.T) {
		dir := t.TempDir()
		r := newRig(t, Config{StateDir: dir}, LUConfig{Volume: newCrashLog(t)})
		if err := os.WriteFile(r.dev.lookup(0).journalName(), journalEntry(old, 4096), 0o600); err != nil {
			t.Fatal(err)
		}
		d := newCrashLog(t)
		again := newRig(t, Config{StateDir: dir}, LUConfig{Volume: d})
		sure(t, d, again.dev.lookup(0).journalName())
	})
	t.Run("failure", func(t *testing.T) {
		d := newCrashLog(t)
		f := faulty.New(d, 1)
		r := newRig(t, Config{StateDir: t.TempDir()}, LUConfig{Volume: f})
		r.do(spc.AppendWrite(nil, 8, 8, true), old, 0).good()
		f.SetRules(faulty.Rule{Op: faulty.Flush, Err: blockdev.ErrMedium, Times: 1})
		r.do(spc.AppendWriteAtomic16(nil, 8, 8, false), fill(4096, 99), 0).sense(spc.KeyMedium, spc.ASCWriteError)
		sure(t, d, r.dev.lookup(0).journalName())
	})
}

// TestWriteAtomicOrder: the old data are durable in the journal before the volume changes,
// the new ones on the volume before the entry goes.
func TestWriteAtomicOrder(t *testing.T) {
	d := newCrashLog(t)
	old, now := fill(4096, 1), fill(4096, 99)
	s := &orderedStore{t: t, d: d, old: old, now: now}
	wrapJournals(t, func(f statefile.File) statefile.File {
		s.File = f
		return s
	})
	r := newRig(t, Config{StateDir: t.TempDir()}, LUConfig{Volume: d})
	r.do(spc.AppendWrite(nil, 8, 8, true), old, 0).good()
	r.do(spc.AppendWriteAtomic16(nil, 8, 8, false), old, 0).good() // the file is there
	s.before, s.on = d.Now(), true
	r.do(spc.AppendWriteAtomic16(nil, 8, 8, false), now, 0).good()
	if s.syncs != 2 {
		t.Errorf("the journal was synced %d times, want 2", s.syncs)
	}
}

// orderedStore looks at the volume when the journal is written and synced.
type orderedStore struct {
	statefile.File
	t        *testing.T
	d        *crashlog.Device
	old, now []byte
	on       bool // from here on
	before   int
	dirty    bool
	syncs    int
}

func (s *orderedStore) WriteAt(p []byte, off int64) (int, error) {
	if !s.on {
		return s.File.WriteAt(p, off)
	}
	if off == 0 && p[0] == 0 { // it is being cleared
		if s.syncs != 1 || s.dirty {
			s.t.Error("the volume was written before the entry was durable")
		}
		for img := range s.d.States(s.d.Now(), 100, 1) {
			if !bytes.Equal(img.Bytes()[4096:8192], s.now) {
				s.t.Fatal("the entry goes, and what was written may be lost")
			}
		}
	} else if s.d.Now() != s.before {
		s.t.Error("the volume was written before the journal")
	}
	s.dirty = true
	return s.File.WriteAt(p, off)
}

func (s *orderedStore) Sync() error {
	if !s.on {
		return s.File.Sync()
	}
	if s.syncs == 0 && s.d.Now() != s.before {
		s.t.Error("the volume was written before the entry was durable")
	}
	s.syncs, s.dirty = s.syncs+1, false
	return s.File.Sync()
}

// newCrashLog is a volume of 1 MiB that knows what a loss of power would leave.
func newCrashLog(t *testing.T) *crashlog.Device {
	t.Helper()
	d, err := crashlog.New(1<<20, 512)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// TestSanitizedJournal: what a SANITIZE removes from the volume is not kept beside it, and
// does not come back from there.
func TestSanitizedJournal(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "v")
	v := openFile(t, path)
	f := &failingStore{}
	wrapJournals(t, func(file statefile.File) statefile.File {
		if f.File == nil {
			f.File = file
			return f
		}
		return file
	})
	r := newRig(t, Config{StateDir: dir}, LUConfig{Volume: v})
	secret := bytes.Repeat([]byte("secret! "), 512)
	for range 2 {
		r.do(spc.AppendWriteAtomic16(nil, 8, 8, false), secret, 0).good()
	}
	f.clears = true
	r.do(spc.AppendWriteAtomic16(nil, 8, 8, false), secret, 0).sense(spc.KeyHardware, spc.ASCInternalFailure)
	f.clears = false
	r.do([]byte{0x48, 0x01, 0, 0, 0, 0, 0, 0x02, 0x04, 0}, append([]byte{1, 0, 2, 0}, bytes.Repeat([]byte{0xAA}, 512)...), 0).good()
	b, err := os.ReadFile(r.dev.lookup(0).journalName())
	if err != nil || bytes.Contains(b, []byte("secret")) {
		t.Errorf("the journal still has it (%v)", err)
	}
	r.close()
	r.nx = nil
	if err := v.Close(); err != nil {
		t.Fatal(err)
	}
	again := newRig(t, Config{StateDir: dir}, LUConfig{Volume: openFile(t, path)})
	if !bytes.Equal(again.do(spc.AppendRead(nil, 8, 8, false), nil, 4096).good().data, bytes.Repeat([]byte{0xAA}, 4096)) {
		t.Error("a start has put back what was sanitized")
	}
}

// TestSecondAtomic: an entry that has still to be put back is not overwritten by that of a
// WRITE ATOMIC which had begun before.
func TestSecondAtomic(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "v")
	f := faulty.New(openFile(t, path), 1)
	r := newRig(t, Config{StateDir: dir}, LUConfig{Volume: f})
	old := fill(4096, 1)
	r.do(spc.AppendWrite(nil, 8, 8, false), old, 0).good()
	second := r.start(r.nx[1], 0, spc.AppendWriteAtomic16(nil, 100, 8, false), fill(4096, 5), 0, held)
	f.SetRules(faulty.Rule{Op: faulty.Write, Torn: true, Times: 1}, faulty.Rule{Op: faulty.Write, Err: blockdev.ErrMedium, Times: 1})
	r.do(spc.AppendWriteAtomic16(nil, 8, 8, false), fill(4096, 99), 0).sense(spc.KeyMedium, spc.ASCWriteError)
	r.port.release(second)
	r.finish(second).good()
	if got := r.do(spc.AppendRead(nil, 8, 8, false), nil, 4096).good().data; !bytes.Equal(got, old) {
		t.Error("what a failed WRITE ATOMIC has left was forgotten")
	}
}

// TestJournalIsNamed: the name of the journal is durable before the volume changes.
func TestJournalIsNamed(t *testing.T) {
	d := newCrashLog(t)
	r := newRig(t, Config{StateDir: t.TempDir()}, LUConfig{Volume: d})
	before, synced := d.Now(), 0
	real := durable.SyncDir
	defer func() { durable.SyncDir = real }()
	durable.SyncDir = func(name string) error {
		if d.Now() != before {
			t.Error("the volume was written before the journal had a name")
		}
		synced++
		return real(name)
	}
	r.do(spc.AppendWriteAtomic16(nil, 8, 8, false), fill(4096, 9), 0).good()
	if synced != 1 {
		t.Errorf("the folder was synced %d times, want 1", synced)
	}
}
