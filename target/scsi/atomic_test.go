package scsi

import (
	"bytes"
	"errors"
	"path/filepath"
	"testing"

	spc "softiser/internal/scsi"

	"softiser/blockdev"
	"softiser/blockdev/faulty"
	"softiser/blockdev/file"
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
	j := &r.dev.lookup(0).journal
	if err := j.put(fill(4096, 7), 4096); err != nil {
		t.Fatal(err)
	}
	if _, err := j.file.WriteAt([]byte{0xFF}, 1000); err != nil { // a torn entry
		t.Fatal(err)
	}
	again := newRig(t, Config{StateDir: dir}, LUConfig{Volume: newNamed(t, "a")})
	if got := again.do(spc.AppendRead(nil, 8, 8, false), nil, 4096).good().data; !allZero(got) {
		t.Error("a torn entry was put back")
	}
	// A volume that cannot take its old data back is not served.
	if err := j.put(fill(4096, 7), 4096); err != nil {
		t.Fatal(err)
	}
	d, _ := NewDevice(Config{Name: "iqn.2026-11.softiser:test", StateDir: dir})
	bad := faulty.New(newNamed(t, "a"), 1, faulty.Rule{Op: faulty.Write, Err: blockdev.ErrMedium})
	if _, err := d.AddLUN(LUConfig{Volume: bad}); !errors.Is(err, blockdev.ErrMedium) {
		t.Errorf("AddLUN: %v", err)
	}
}
