package scsi

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"softiser/internal/await"
	"softiser/internal/spc"

	"softiser/blockdev"
	"softiser/blockdev/faulty"
	"softiser/blockdev/file"
	"softiser/target/volume"
)

var (
	formatUnit    = []byte{0x04, 0, 0, 0, 0, 0}
	overwriteList = append([]byte{0x01, 0, 2, 0}, bytes.Repeat([]byte{0xA5}, 512)...) // one pass
)

// formatList is FORMAT UNIT with a parameter list.
func (r *rig) formatList(f spc.FormatList, long bool) *result {
	r.t.Helper()
	cdb := []byte{0x04, 0x10, 0, 0, 0, 0}
	if long {
		cdb[1] |= 0x20
	}
	return r.do(cdb, f.Append(nil, long), 0)
}

func overwrite(flags byte) []byte {
	return []byte{0x48, 0x01 | flags, 0, 0, 0, 0, 0, 0x02, 0x04, 0}
}

// settled waits for the end of the unit's operation.
func (r *rig) settled() {
	r.t.Helper()
	lu := r.dev.lookup(0)
	await.True(r.t, "the operation ends", func() bool { return lu.gates()&(volume.Sanitizing|volume.Formatting) == 0 })
}

// full reports whether every block of LUN 0 holds b only.
func (r *rig) full(b byte) bool {
	r.t.Helper()
	blocks := r.dev.lookup(0).geo().Blocks
	for lba := uint64(0); lba < blocks; lba += 2048 {
		n := min(2048, blocks-lba)
		got := r.do(spc.AppendRead(nil, lba, uint32(n), false), nil, int(n)*512).good().data
		if !bytes.Equal(got, bytes.Repeat([]byte{b}, len(got))) {
			return false
		}
	}
	return true
}

// mayWait is a volume of 8 MiB, each megabyte of which takes a while to write
// once it has been told to: of virtual time, in which nothing else is late.
func mayWait(t *testing.T, name string) (v *faulty.Device, slow func(bool)) {
	v = faulty.New(newSized(t, name, 8<<20), 1)
	return v, func(on bool) {
		if on {
			v.SetRules(faulty.Rule{Op: faulty.Write, Delay: 20 * time.Millisecond})
		} else {
			v.SetRules()
		}
	}
}

func TestFormat(t *testing.T) { synctest.Test(t, testFormat) }

func testFormat(t *testing.T) {
	v, slow := mayWait(t, "format")
	r := newRig(t, Config{}, LUConfig{Volume: v})
	r.do(spc.AppendWrite(nil, 0, 2048, false), fill(1<<20, 3), 0).good()
	r.do(formatUnit, nil, 0).good()
	if !r.full(0) {
		t.Error("data survive FORMAT UNIT")
	}
	runs, err := spc.ParseLBAStatus(r.do(spc.AppendGetLBAStatus(nil, 0, 64), nil, 64).good().data)
	if err != nil || len(runs) != 1 || runs[0].Status != spc.LBADeallocated {
		t.Errorf("after FORMAT UNIT: %+v, %v", runs, err)
	}
	slow(true)
	f := spc.FormatList{Flags: spc.FormatFOV | spc.FormatIP | spc.FormatIMMED | spc.FormatDCRT, PatternType: 1, Pattern: []byte{0xC3}}
	r.formatList(f, true).good()
	for _, c := range [][]byte{
		spc.AppendTestUnitReady(nil), spc.AppendRead(nil, 0, 1, false), spc.AppendModeSense6(nil, true, 0, 0x3F, 0, 255),
		spc.AppendPersistIn(nil, 0, 64), spc.AppendReadCapacity16(nil, 32), formatUnit,
		spc.AppendReportTargetPortGroups(nil, false, 64),
	} {
		if got := r.do(c, nil, 512).sense(spc.KeyNotReady, spc.ASCFormatInProgress); !got.sd.ProgressValid {
			t.Error("no progress indication")
		}
	}
	s, err := spc.ParseSense(r.do(spc.AppendRequestSense(nil, false, 64), nil, 64).good().data)
	if err != nil || s.Key != spc.KeyNotReady || s.ASC != spc.ASCFormatInProgress || !s.ProgressValid {
		t.Errorf("REQUEST SENSE: %+v, %v", s, err)
	}
	r.do(spc.AppendInquiry(nil, 36), nil, 36).good()
	r.do(spc.AppendReportLUNs(nil, 0, 64), nil, 64).good()
	// A reset does not end it.
	if x := r.manage(r.nx[0], LogicalReset, 0, nil); x != TMFComplete {
		t.Errorf("LOGICAL UNIT RESET: %v", x)
	}
	r.settled()
	slow(false)
	for _, n := range r.nx {
		r.attention(n, spc.ASCDeviceReset)
	}
	if !r.full(0xC3) {
		t.Error("the initialization pattern has not been written")
	}
	f.Flags &^= spc.FormatIMMED
	f.Pattern = []byte{0x11}
	r.formatList(f, false).good()
	if !r.full(0x11) {
		t.Error("FORMAT UNIT ended before the pattern was written")
	}
	f = spc.FormatList{Flags: spc.FormatFOV | spc.FormatIP} // the default pattern
	r.formatList(f, false).good()
	if !r.full(0) {
		t.Error("the default pattern is not zeroes")
	}
}

func TestFormatRefused(t *testing.T) {
	r := newRig(t, Config{})
	r.do(spc.AppendWrite(nil, 0, 1, false), fill(512, 9), 0).good()
	for _, cdb := range [][]byte{{4, 0x40, 0, 0, 0, 0}, {4, 0x80, 0, 0, 0, 0}, {4, 0x08, 0, 0, 0, 0}, {4, 0x20, 0, 0, 0, 0}} {
		r.do(cdb, nil, 0).illegal(spc.ASCInvalidFieldInCDB)
	}
	const fov, ip = spc.FormatFOV, spc.FormatIP
	for _, c := range []struct {
		name  string
		f     spc.FormatList
		long  bool
		field uint16
	}{
		{"protection", spc.FormatList{Protection: 1}, false, 0},
		{"options without FOV", spc.FormatList{Flags: spc.FormatDPRY}, false, 1},
		{"interval", spc.FormatList{Interval: 3}, true, 3},
		{"defects", spc.FormatList{Defects: 8}, false, 2},
		{"defects, long", spc.FormatList{Defects: 8}, true, 4},
		{"pattern type", spc.FormatList{Flags: fov | ip, PatternType: 2}, false, 5},
		{"default with a pattern", spc.FormatList{Flags: fov | ip, Pattern: []byte{1}}, false, 6},
		{"repeated without a pattern", spc.FormatList{Flags: fov | ip, PatternType: 1}, true, 10},
	} {
		got := r.formatList(c.f, c.long).illegal(spc.ASCInvalidFieldInParam)
		if !got.sd.FieldValid || got.sd.Field != c.field {
			t.Errorf("%s: sense points at %+v, want byte %d", c.name, got.sd, c.field)
		}
	}
	long := spc.FormatList{Flags: fov | ip, PatternType: 1, Pattern: make([]byte, 513)}
	r.formatList(long, true).illegal(spc.ASCParameterListLength)
	r.formatList(long, false).illegal(spc.ASCInvalidFieldInParam)
	for _, list := range [][]byte{nil, {0, 0, 0}, {0, 0x88, 0, 0, 0, 1}, {0, 0x88, 0, 0, 0, 1, 0, 2, 7}} {
		r.do([]byte{4, 0x10, 0, 0, 0, 0}, list, 0).illegal(spc.ASCParameterListLength)
	}
	if b := r.do(spc.AppendRead(nil, 0, 1, false), nil, 512).good().data; !bytes.Equal(b, fill(512, 9)) {
		t.Error("a refused FORMAT UNIT has changed a block")
	}
	r.on(r.nx[1], 0, []byte{0x16, 0, 0, 0, 0, 0}, nil, 0).good()
	r.do(formatUnit, nil, 0).is(spc.StatusReservationConflict)
}

func TestFormatFails(t *testing.T) {
	bad := faulty.New(newNamed(t, "bad"), 1, faulty.Rule{Op: faulty.Discard, Err: blockdev.ErrMedium, Times: 1})
	r := newRig(t, Config{}, LUConfig{Volume: bad})
	r.do(formatUnit, nil, 0).sense(spc.KeyMedium, spc.ASCFormatFailed)
	r.do(spc.AppendRead(nil, 0, 1, false), nil, 512).sense(spc.KeyMedium, spc.ASCFormatCorrupted)
	r.do(overwrite(0), overwriteList, 0).sense(spc.KeyMedium, spc.ASCFormatCorrupted)
	r.do(spc.AppendInquiry(nil, 36), nil, 36).good()
	r.do(formatUnit, nil, 0).good()
	r.do(spc.AppendRead(nil, 0, 1, false), nil, 512).good()
}

// TestSanitizeGoesOn: the target ends in the middle of a SANITIZE; the next one
// goes on with it before it serves anything.
func TestSanitizeGoesOn(t *testing.T) { synctest.Test(t, testSanitizeGoesOn) }

func testSanitizeGoesOn(t *testing.T) {
	v, slow := mayWait(t, "goes on")
	cfg := Config{StateDir: t.TempDir()}
	r := newRig(t, cfg, LUConfig{Volume: v})
	r.do(spc.AppendWrite(nil, 0, 2048, false), fill(1<<20, 3), 0).good()
	slow(true)
	r.do(overwrite(0x80), overwriteList, 0).good() // IMMED
	r.do(spc.AppendTestUnitReady(nil), nil, 0).sense(spc.KeyNotReady, spc.ASCSanitizeInProgress)
	r.close() // the state on disk is that of a crash
	r.nx = nil
	r = newRig(t, cfg, LUConfig{Volume: v})
	r.do(spc.AppendRead(nil, 0, 1, false), nil, 512).sense(spc.KeyNotReady, spc.ASCSanitizeInProgress)
	r.settled()
	slow(false)
	if !r.full(0xA5) {
		t.Error("SANITIZE was not finished after the restart")
	}
	r.close()
	r.nx = nil
	r = newRig(t, cfg, LUConfig{Volume: v})
	r.do(spc.AppendWrite(nil, 5, 1, false), fill(512, 1), 0).good()
	r.close()
	r.nx = nil
	r = newRig(t, cfg, LUConfig{Volume: v})
	if b := r.do(spc.AppendRead(nil, 5, 1, false), nil, 512).good().data; !bytes.Equal(b, fill(512, 1)) {
		t.Error("a finished SANITIZE was done again")
	}
}

// TestFailedSanitizeStays: a failure in restricted mode is left by nothing but a
// SANITIZE that works, not even by a restart.
func TestFailedSanitizeStays(t *testing.T) {
	v := faulty.New(newNamed(t, "stays"), 1, faulty.Rule{Op: faulty.Write, Err: blockdev.ErrMedium})
	cfg := Config{StateDir: t.TempDir()}
	r := newRig(t, cfg, LUConfig{Volume: v})
	r.do(overwrite(0), overwriteList, 0).sense(spc.KeyMedium, spc.ASCSanitizeFailed)
	r.close()
	r.nx = nil
	r = newRig(t, cfg, LUConfig{Volume: v})
	r.do(spc.AppendRead(nil, 0, 1, false), nil, 512).sense(spc.KeyMedium, spc.ASCSanitizeFailed)
	s, err := spc.ParseSense(r.do(spc.AppendRequestSense(nil, true, 64), nil, 64).good().data)
	if err != nil || s.Key != spc.KeyMedium || s.ASC != spc.ASCSanitizeFailed {
		t.Errorf("REQUEST SENSE: %+v, %v", s, err)
	}
	exit := []byte{0x48, 0x1F, 0, 0, 0, 0, 0, 0, 0, 0}
	r.do(exit, nil, 0).illegal(spc.ASCInvalidFieldInCDB)
	r.do(overwrite(0x20), overwriteList, 0).illegal(spc.ASCInvalidFieldInCDB) // AUSE
	r.do(formatUnit, nil, 0).sense(spc.KeyMedium, spc.ASCSanitizeFailed)
	v.SetRules()
	r.do(overwrite(0), overwriteList, 0).good()
	// With AUSE the failure can be left, and that is remembered too.
	v.SetRules(faulty.Rule{Op: faulty.Write, Err: blockdev.ErrMedium})
	r.do(overwrite(0x20), overwriteList, 0).sense(spc.KeyMedium, spc.ASCSanitizeFailed)
	r.close()
	r.nx = nil
	r = newRig(t, cfg, LUConfig{Volume: v})
	r.do(exit, nil, 0).good()
	r.do(spc.AppendRead(nil, 0, 1, false), nil, 512).good()
	r.close()
	r.nx = nil
	r = newRig(t, cfg, LUConfig{Volume: v})
	r.do(spc.AppendRead(nil, 0, 1, false), nil, 512).good()
}

func TestInterruptedFormatIsCorrupt(t *testing.T) { synctest.Test(t, testInterruptedFormatIsCorrupt) }

func testInterruptedFormatIsCorrupt(t *testing.T) {
	v, slow := mayWait(t, "interrupted")
	cfg := Config{StateDir: t.TempDir()}
	r := newRig(t, cfg, LUConfig{Volume: v})
	slow(true)
	r.formatList(spc.FormatList{Flags: spc.FormatFOV | spc.FormatIP | spc.FormatIMMED, PatternType: 1, Pattern: []byte{1}}, false).good()
	r.close()
	r.nx = nil
	slow(false)
	r = newRig(t, cfg, LUConfig{Volume: v})
	r.do(spc.AppendRead(nil, 0, 1, false), nil, 512).sense(spc.KeyMedium, spc.ASCFormatCorrupted)
	if s, err := spc.ParseSense(r.do(spc.AppendRequestSense(nil, true, 64), nil, 64).good().data); err != nil || s.Key != spc.KeyMedium || s.ASC != spc.ASCFormatCorrupted {
		t.Errorf("REQUEST SENSE: %+v, %v", s, err)
	}
	r.do(formatUnit, nil, 0).good()
	r.close()
	r.nx = nil
	r = newRig(t, cfg, LUConfig{Volume: v})
	if !r.full(0) {
		t.Error("not formatted")
	}
}

// TestOperationMustBeSaved: what cannot be remembered is not begun.
func TestOperationMustBeSaved(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	r := newRig(t, Config{StateDir: dir})
	r.do(spc.AppendWrite(nil, 0, 1, false), fill(512, 9), 0).good()
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	for _, c := range [][]byte{formatUnit, {0x48, 2, 0, 0, 0, 0, 0, 0, 0, 0}} {
		r.do(c, nil, 0).sense(spc.KeyHardware, spc.ASCInternalFailure)
		if b := r.do(spc.AppendRead(nil, 0, 1, false), nil, 512).good().data; !bytes.Equal(b, fill(512, 9)) {
			t.Error("a block has changed")
		}
	}
	// The end must be saved as well, or a restart would do it again.
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	saves := 0
	onSync(t, func(*os.File) error {
		if saves++; saves > 1 {
			return errDisk
		}
		return nil
	})
	r.do([]byte{0x48, 2, 0, 0, 0, 0, 0, 0, 0, 0}, nil, 0).sense(spc.KeyMedium, spc.ASCSanitizeFailed)
	r.do(spc.AppendRead(nil, 0, 1, false), nil, 512).sense(spc.KeyMedium, spc.ASCSanitizeFailed)

	// A volume that outlives the process, and nowhere to note what has begun.
	v, err := file.Open(file.Config{Path: filepath.Join(t.TempDir(), "v"), Size: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { v.Close() })
	r = newRig(t, Config{}, LUConfig{Volume: v})
	r.do(formatUnit, nil, 0).illegal(spc.ASCInvalidOpcode)
	r.do(overwrite(0), overwriteList, 0).illegal(spc.ASCInvalidOpcode)
}

// TestSavedOperation: state that makes no sense keeps the unit from being served.
func TestSavedOperation(t *testing.T) {
	v := newNamed(t, "saved")
	for _, c := range []struct {
		op string
		ok bool
	}{
		{`{"kind": "format", "passes": 1, "pass": 0, "offset": 0}`, true},
		{`{"kind": "sanitize overwrite", "passes": 31, "pass": 30, "offset": 512, "pattern": "AAE="}`, true},
		{`{"kind": "sanitize block erase", "passes": 1, "pass": 1, "offset": 1099511627776}`, true},
		{`{"kind": "burn", "passes": 1}`, false},
		{`{"kind": "format", "passes": 0}`, false},
		{`{"kind": "sanitize overwrite", "passes": 32}`, false},
		{`{"kind": "sanitize overwrite", "passes": 1, "pass": -1}`, false},
		{`{"kind": "sanitize overwrite", "passes": 1, "pass": 2}`, false},
		{`{"kind": "sanitize overwrite", "passes": 1, "offset": -1}`, false},
	} {
		cfg := Config{StateDir: t.TempDir()}
		r := newRig(t, cfg, LUConfig{Volume: v})
		name, key := r.dev.lookup(0).stateName(), r.dev.lookup(0).vol.Identity().Key()
		r.close()
		r.nx = nil
		if err := os.WriteFile(name, []byte(`{"version": 1, "unit": "`+key+`", "operation": `+c.op+`}`), 0o600); err != nil {
			t.Fatal(err)
		}
		d, err := NewDevice(Config{Name: "iqn.2026-11.softiser:test", StateDir: cfg.StateDir})
		if err != nil {
			t.Fatal(err)
		}
		_, err = d.AddLUN(LUConfig{Volume: v})
		if (err == nil) != c.ok || err != nil && !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", c.op, err)
		}
		if err := d.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// TestSanitizeSavesProgress: what a crash costs is bounded.
func TestSanitizeSavesProgress(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		v := faulty.New(newSized(t, "progress", 8<<20), 1, faulty.Rule{Op: faulty.Write, Delay: 6 * time.Second})
		r := newRig(t, Config{StateDir: dir}, LUConfig{Volume: v})
		r.do(overwrite(0x80), overwriteList, 0).good()
		time.Sleep(31 * time.Second)
		r.close()
		r.nx = nil
		r = newRig(t, Config{StateDir: dir}, LUConfig{Volume: v})
		var saved struct{ Operation *volume.Rewrite }
		b, err := os.ReadFile(r.dev.lookup(0).stateName())
		if err == nil {
			err = json.Unmarshal(b, &saved)
		}
		if o := saved.Operation; err != nil || o == nil || o.Pass != 0 || o.Offset < 4<<20 || o.Offset > 5<<20 {
			t.Errorf("saved after 5 of 8 pieces: %+v, %v", o, err)
		}
		s := r.dev.lookup(0).rewriteSense()
		if s.Progress < 65536/2 {
			t.Errorf("progress after the restart: %d/65536", s.Progress)
		}
		before := v.Hits()
		time.Sleep(time.Minute)
		r.do(spc.AppendRead(nil, 0, 1, false), nil, 512).good()
		if n := v.Hits() - before; n > 4 {
			t.Errorf("%d pieces were written after the restart, 8 in all", n)
		}
		r.close()
		r.nx = nil
	})
}

// leaving is a volume on which discarded blocks keep their content where no command reads
// it; erasing is one that overwrites them when it is asked to erase them.
type leaving struct {
	blockdev.Device
	discarded atomic.Int64
}

func (v *leaving) WriteZeroes(off, n int64, mayUnmap bool) error {
	v.discarded.Add(n)
	return v.Device.WriteZeroes(off, n, mayUnmap)
}

func (v *leaving) Info() blockdev.Info {
	i := v.Device.Info()
	i.Backend = "lvm"
	return i
}

type erasing struct {
	leaving
	erased atomic.Int64
	err    error
}

func (v *erasing) Erase(off, n int64) error {
	if v.err != nil {
		return v.err
	}
	v.erased.Add(n)
	return v.leaving.Device.WriteZeroes(off, n, true)
}

// TestBlockEraseErases: SANITIZE BLOCK ERASE erases what it gives back, or is not there.
func TestBlockEraseErases(t *testing.T) {
	erase := []byte{0x48, 0x02, 0, 0, 0, 0, 0, 0, 0, 0}
	no := &leaving{Device: newNamed(t, "no")}
	r := newRig(t, Config{StateDir: t.TempDir()}, LUConfig{Volume: no})
	data := fill(4096, 7)
	r.do(spc.AppendWrite(nil, 0, 8, false), data, 0).good()
	r.do(erase, nil, 0).illegal(spc.ASCInvalidOpcode)
	if no.discarded.Load() != 0 || !bytes.Equal(r.do(spc.AppendRead(nil, 0, 8, false), nil, 4096).good().data, data) {
		t.Error("a refused BLOCK ERASE has changed the volume")
	}

	yes := &erasing{leaving: leaving{Device: newNamed(t, "yes")}}
	r = newRig(t, Config{StateDir: t.TempDir()}, LUConfig{Volume: yes})
	r.do(spc.AppendWrite(nil, 0, 8, false), data, 0).good()
	r.do(erase, nil, 0).good()
	if n := yes.erased.Load(); n != yes.Info().Size || yes.discarded.Load() != 0 {
		t.Errorf("%d of %d bytes were erased, %d only discarded", n, yes.Info().Size, yes.discarded.Load())
	}
	if !r.full(0) {
		t.Error("data survive BLOCK ERASE")
	}
	yes.err = blockdev.ErrMedium
	r.do(erase, nil, 0).sense(spc.KeyMedium, spc.ASCSanitizeFailed)
}
