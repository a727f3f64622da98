package scsi

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"softiser/internal/spc"

	"softiser/internal/durable"
)

func (r *rig) prout(n *Nexus, sa byte, typ spc.PRType, key, action uint64, mod ...func(*spc.PersistOut)) *result {
	r.t.Helper()
	p := spc.PersistOut{Key: key, ActionKey: action}
	for _, m := range mod {
		m(&p)
	}
	b := p.Append(nil)
	return r.on(n, 0, spc.AppendPersistOut(nil, sa, typ, uint32(len(b))), b, 0)
}

func (r *rig) keys(n *Nexus) (uint32, []uint64) {
	r.t.Helper()
	gen, keys, err := spc.ParseReadKeys(r.on(n, 0, spc.AppendPersistIn(nil, spc.SAPrinReadKeys, 1024), nil, 1024).good().data)
	if err != nil {
		r.t.Error(err)
	}
	return gen, keys
}

func (r *rig) holder(n *Nexus) (uint64, spc.PRType) {
	r.t.Helper()
	_, key, typ, err := spc.ParseReadReservation(r.on(n, 0, spc.AppendPersistIn(nil, spc.SAPrinReadRes, 1024), nil, 1024).good().data)
	if err != nil {
		r.t.Error(err)
	}
	return key, typ
}

func (r *rig) attention(n *Nexus, a spc.ASC) {
	r.t.Helper()
	r.on(n, 0, spc.AppendTestUnitReady(nil), nil, 0).sense(spc.KeyUnitAttention, a)
}

const (
	keyA = 0xAAAA
	keyB = 0xBBBB
)

func TestPersistentReservationLifeCycle(t *testing.T) {
	r := newRig(t, Config{})
	a, b := r.nx[0], r.nx[1]
	conflict := spc.StatusReservationConflict

	// Nobody but a registrant may reserve, and keys must match.
	r.prout(a, spc.SAProutReserve, spc.PRWriteExclusive, 0, 0).is(conflict)
	r.prout(a, spc.SAProutRegister, 0, 1, keyA).is(conflict)
	r.prout(a, spc.SAProutRegister, 0, 0, 0).good()
	if gen, k := r.keys(a); gen != 0 || len(k) != 0 {
		t.Errorf("generation %d, keys %x", gen, k)
	}
	r.prout(a, spc.SAProutRegister, 0, 0, keyA).good()
	r.prout(a, spc.SAProutRegister, 0, 0, keyA).is(conflict)
	r.prout(b, spc.SAProutRegisterIgnore, 0, 77, keyB).good()
	if gen, k := r.keys(b); gen != 2 || len(k) != 2 {
		t.Errorf("generation %d, keys %x", gen, k)
	}
	r.prout(a, spc.SAProutReserve, spc.PRWriteExclusive, keyB, 0).is(conflict)
	r.prout(a, spc.SAProutReserve, 2, keyA, 0).illegal(spc.ASCInvalidFieldInCDB)
	r.prout(a, spc.SAProutReserve, spc.PRWriteExclusive, keyA, 0).good()
	r.prout(a, spc.SAProutReserve, spc.PRWriteExclusive, keyA, 0).good()
	r.prout(a, spc.SAProutReserve, spc.PRExclusiveAccess, keyA, 0).is(conflict)
	r.prout(b, spc.SAProutReserve, spc.PRWriteExclusive, keyB, 0).is(conflict)
	if k, typ := r.holder(b); k != keyA || typ != spc.PRWriteExclusive {
		t.Errorf("held by %x, %v", k, typ)
	}
	// A release by someone else does nothing; of another type it is an error.
	r.prout(b, spc.SAProutRelease, spc.PRWriteExclusive, keyB, 0).good()
	r.prout(a, spc.SAProutRelease, spc.PRExclusiveAccess, keyA, 0).illegal(spc.ASCInvalidRelease)
	if _, typ := r.holder(b); typ != spc.PRWriteExclusive {
		t.Error("the reservation is gone")
	}
	// Preempt: B takes over, A loses its registration and learns it.
	r.prout(b, spc.SAProutPreempt, spc.PRExclusiveAccess, keyB, keyA).good()
	r.attention(a, spc.ASCRegistrPreempted)
	if k, typ := r.holder(b); k != keyB || typ != spc.PRExclusiveAccess {
		t.Errorf("held by %x, %v", k, typ)
	}
	r.prout(b, spc.SAProutPreempt, spc.PRExclusiveAccess, keyB, 0x1234).is(conflict)
	r.on(a, 0, spc.AppendRead(nil, 0, 1, false), nil, 512).is(conflict)
	// Register and move to A, which has to be told apart from B by its port.
	m := spc.RegisterMove{Key: keyB, ActionKey: keyA, RelativePort: 1, TransportID: spc.AppendTransportID(nil, a.client.ID.Initiator)}
	list := m.Append(nil)
	r.on(b, 0, spc.AppendPersistOut(nil, spc.SAProutRegisterMove, 0, uint32(len(list))), list, 0).good()
	if k, _ := r.holder(a); k != keyA {
		t.Errorf("after the move: held by %x", k)
	}
	r.on(b, 0, spc.AppendRead(nil, 0, 1, false), nil, 512).is(conflict)
	// Clear: all gone, the others learn it, the generation has counted five changes.
	r.prout(a, spc.SAProutClear, 0, keyA, 0).good()
	r.attention(b, spc.ASCReservPreempted)
	if gen, k := r.keys(a); gen != 5 || len(k) != 0 {
		t.Errorf("generation %d, keys %x", gen, k)
	}
	if _, typ := r.holder(a); typ != spc.PRNone {
		t.Error("a reservation without registrations")
	}
}

func TestReservationAccess(t *testing.T) {
	read, write := spc.AppendRead(nil, 0, 1, false), spc.AppendWrite(nil, 0, 1, false)
	for _, c := range []struct {
		typ                     spc.PRType
		otherReads, otherWrites bool // not registered
		regReads, regWrites     bool // registered, not the holder
	}{
		{spc.PRWriteExclusive, true, false, true, false},
		{spc.PRExclusiveAccess, false, false, false, false},
		{spc.PRWriteExclusiveRegistrants, true, false, true, true},
		{spc.PRExclusiveAccessRegistrants, false, false, true, true},
		{spc.PRWriteExclusiveAllRegistrant, true, false, true, true},
		{spc.PRExclusiveAccessAllRegistr, false, false, true, true},
	} {
		t.Run(c.typ.String(), func(t *testing.T) {
			r := newRig(t, Config{})
			holder, reg, other := r.nx[0], r.nx[1], r.nexus(3)
			r.prout(holder, spc.SAProutRegister, 0, 0, keyA).good()
			r.prout(reg, spc.SAProutRegister, 0, 0, keyB).good()
			r.prout(holder, spc.SAProutReserve, c.typ, keyA, 0).good()
			check := func(n *Nexus, cdb, out []byte, in int, ok bool) {
				t.Helper()
				if ok {
					r.on(n, 0, cdb, out, in).good()
				} else {
					r.on(n, 0, cdb, out, in).is(spc.StatusReservationConflict)
				}
			}
			check(holder, read, nil, 512, true)
			check(holder, write, make([]byte, 512), 0, true)
			check(reg, read, nil, 512, c.regReads)
			check(reg, write, make([]byte, 512), 0, c.regWrites)
			check(other, read, nil, 512, c.otherReads)
			check(other, write, make([]byte, 512), 0, c.otherWrites)
			// Always allowed.
			r.on(other, 0, spc.AppendTestUnitReady(nil), nil, 0).good()
			r.on(other, 0, spc.AppendReadCapacity16(nil, 32), nil, 32).good()
			// RESERVE(6) beside registrations: CRH.
			r.on(reg, 0, []byte{0x16, 0, 0, 0, 0, 0}, nil, 0).good()
			r.on(other, 0, []byte{0x16, 0, 0, 0, 0, 0}, nil, 0).is(spc.StatusReservationConflict)
			// When the holder leaves, who is told and what remains depends on the type.
			r.prout(holder, spc.SAProutRegister, 0, keyA, 0).good()
			_, typ := r.holder(reg0(r, c.typ, reg))
			if want := c.typ; c.typ.AllRegistrants() && typ != want {
				t.Errorf("left with %v, want %v: another registrant holds it", typ, want)
			} else if !c.typ.AllRegistrants() && typ != spc.PRNone {
				t.Errorf("left with %v, want none", typ)
			}
		})
	}
}

// reg0 takes the unit attention that a registrants only type brings.
func reg0(r *rig, typ spc.PRType, n *Nexus) *Nexus {
	if typ == spc.PRWriteExclusiveRegistrants || typ == spc.PRExclusiveAccessRegistrants {
		r.attention(n, spc.ASCReservReleased)
	}
	return n
}

func TestRegisterForOthers(t *testing.T) {
	r := newRig(t, Config{Groups: []PortGroup{{ID: 1, Ports: []uint16{1}}, {ID: 2, Ports: []uint16{2, 3}}}})
	a, b := r.nx[0], r.nx[1]
	// ALL_TG_PT: through every port.
	r.prout(a, spc.SAProutRegister, 0, 0, keyA, func(p *spc.PersistOut) { p.AllPorts = true }).good()
	if _, k := r.keys(a); len(k) != 3 {
		t.Errorf("%d registrations, want one for each port", len(k))
	}
	r.prout(a, spc.SAProutClear, 0, keyA, 0).good()
	// SPEC_I_PT: for another initiator port as well.
	p := spc.PersistOut{ActionKey: keyA, SpecIPT: true}
	ids := spc.AppendTransportID(nil, b.client.ID.Initiator)
	list := binary.BigEndian.AppendUint32(p.Append(nil), uint32(len(ids)))
	list = append(list, ids...)
	r.on(a, 0, spc.AppendPersistOut(nil, spc.SAProutRegister, 0, uint32(len(list))), list, 0).good()
	if _, k := r.keys(a); len(k) != 2 {
		t.Errorf("%d registrations, want 2", len(k))
	}
	r.prout(b, spc.SAProutReserve, spc.PRWriteExclusive, keyA, 0).good()
	full := r.on(a, 0, spc.AppendPersistIn(nil, spc.SAPrinFullStatus, 1024), nil, 1024).good().data
	holders := 0
	for at := 8; at < len(full); {
		n := int(binary.BigEndian.Uint32(full[at+20:]))
		port, _, err := spc.ParseTransportID(full[at+24 : at+24+n])
		if err != nil {
			t.Fatal(err)
		}
		if full[at+12]&1 != 0 {
			holders++
			if port != b.client.ID.Initiator || full[at+13] != byte(spc.PRWriteExclusive) {
				t.Errorf("held by %s with type %x", port, full[at+13])
			}
		}
		at += 24 + n
	}
	if holders != 1 {
		t.Errorf("%d holders", holders)
	}
	// Malformed lists.
	for _, n := range []int{0, 8, 23, 25, 28} {
		b := make([]byte, n)
		r.on(a, 0, spc.AppendPersistOut(nil, spc.SAProutRegister, 0, uint32(n)), b, 0).illegal(spc.ASCParameterListLength)
	}
	list[20] |= 1 // APTPL without a state directory
	r.on(r.nexus(9), 0, spc.AppendPersistOut(nil, spc.SAProutRegister, 0, uint32(len(list))), list, 0).illegal(spc.ASCInvalidFieldInParam)
}

func TestPreemptAndAbort(t *testing.T) {
	r := newRig(t, Config{})
	a, b := r.nx[0], r.nx[1]
	r.prout(a, spc.SAProutRegister, 0, 0, keyA).good()
	r.prout(b, spc.SAProutRegister, 0, 0, keyB).good()
	victim := r.start(b, 0, spc.AppendWrite(nil, 0, 8, false), make([]byte, 4096), 0, held)
	r.prout(a, spc.SAProutPreemptAbort, spc.PRWriteExclusive, keyA, keyB).good()
	if got := r.finish(victim); !got.silent || got.status != spc.StatusTaskAborted {
		t.Errorf("the preempted nexus' task: %v, silent %v", got.status, got.silent)
	}
	r.attention(b, spc.ASCRegistrPreempted)
}

func aptpl(p *spc.PersistOut) { p.APTPL = true }

// TestReservationsSurvive closes the device, without any farewell to the
// reservations, and opens another on the same state.
func TestReservationsSurvive(t *testing.T) {
	dir := t.TempDir()
	lu := func() LUConfig { return LUConfig{Volume: newVolume(t, 1<<20, 512)} }
	r := newRig(t, Config{StateDir: dir}, lu())
	r.prout(r.nx[0], spc.SAProutRegister, 0, 0, keyA, aptpl).good()
	r.prout(r.nx[1], spc.SAProutRegister, 0, 0, keyB, aptpl).good()
	r.prout(r.nx[0], spc.SAProutReserve, spc.PRExclusiveAccess, keyA, 0).good()

	again := newRig(t, Config{StateDir: dir}, lu())
	if gen, k := again.keys(again.nx[0]); gen != 0 || len(k) != 2 {
		t.Errorf("after a restart: generation %d, keys %x", gen, k)
	}
	if k, typ := again.holder(again.nx[0]); k != keyA || typ != spc.PRExclusiveAccess {
		t.Errorf("after a restart: held by %x, %v", k, typ)
	}
	again.on(again.nx[1], 0, spc.AppendRead(nil, 0, 1, false), nil, 512).is(spc.StatusReservationConflict)
	again.on(again.nx[0], 0, spc.AppendRead(nil, 0, 1, false), nil, 512).good()
	// Without APTPL the next registration makes the device forget.
	again.prout(again.nx[0], spc.SAProutRegister, 0, keyA, keyA).good()
	third := newRig(t, Config{StateDir: dir}, lu())
	if _, k := third.keys(third.nx[0]); len(k) != 0 {
		t.Errorf("kept without APTPL: %x", k)
	}
}

// TestStateCrash looks at what a crash can leave in the state directory: the
// new file half written beside the old one, or whole but not renamed.
func TestStateCrash(t *testing.T) {
	dir := t.TempDir()
	lu := func() LUConfig { return LUConfig{Volume: newVolume(t, 1<<20, 512)} }
	r := newRig(t, Config{StateDir: dir}, lu())
	r.prout(r.nx[0], spc.SAProutRegister, 0, 0, keyA, aptpl).good()
	name := r.dev.lookup(0).stateName()
	old, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	r.prout(r.nx[1], spc.SAProutRegister, 0, 0, keyB, aptpl).good()
	now, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	another := filepath.Join(dir, "lu-6.json.new-1") // of another unit: not this one's business
	if err := os.WriteFile(another, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for cut := 0; cut <= len(now); cut += 16 {
		if err := os.WriteFile(name, old, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name+".new-1", now[:cut], 0o600); err != nil {
			t.Fatal(err)
		}
		d, err := NewDevice(Config{Name: "iqn.2026-11.softiser:test", StateDir: dir})
		if err != nil {
			t.Fatal(err)
		}
		u, err := d.AddLUN(lu())
		if err != nil {
			t.Fatalf("crash after %d bytes of the new file: %v", cut, err)
		}
		if n := u.vol.Reservations().Len(); n != 1 {
			t.Errorf("crash after %d bytes of the new file: %d registrations, want the old one", cut, n)
		}
		u.close()
		if _, err := os.Stat(name + ".new-1"); !errors.Is(err, fs.ErrNotExist) {
			t.Fatalf("the unfinished file is still there: %v", err)
		}
		if _, err := os.Stat(another); err != nil {
			t.Fatal(err)
		}
	}
	// A file that is itself damaged is not taken for "no reservations".
	if err := os.WriteFile(name, now[:len(now)/2], 0o600); err != nil {
		t.Fatal(err)
	}
	d, _ := NewDevice(Config{Name: "iqn.2026-11.softiser:test", StateDir: dir})
	if _, err := d.AddLUN(lu()); err == nil || !strings.Contains(err.Error(), filepath.Base(name)) {
		t.Errorf("a damaged state file: %v", err)
	}
	// Nor is that of a later version, of which nobody here knows what it says.
	if err := os.WriteFile(name, bytes.Replace(now, []byte(`"version": 1`), []byte(`"version": 4`), 1), 0o600); err != nil {
		t.Fatal(err)
	}
	later, _ := NewDevice(Config{Name: "iqn.2026-11.softiser:test", StateDir: dir})
	if _, err := later.AddLUN(lu()); err == nil || !strings.Contains(err.Error(), "a later version of iser-target has written it") || !strings.Contains(err.Error(), "has version 4") {
		t.Errorf("a state file of a later version: %v", err)
	}
}

// TestStateNotSaved: a reservation that cannot be made durable is refused and
// changes nothing.
func TestStateNotSaved(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	r := newRig(t, Config{StateDir: dir})
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	r.prout(r.nx[0], spc.SAProutRegister, 0, 0, keyA, aptpl).sense(spc.KeyHardware, spc.ASCInternalFailure)
	if _, k := r.keys(r.nx[0]); len(k) != 0 {
		t.Errorf("registered all the same: %x", k)
	}
}

// TestStateFolderNotSynced: when it cannot be said whether the new file is durable,
// the command fails, and neither memory nor a restart shows what it asked for.
func TestStateFolderNotSynced(t *testing.T) {
	sync, failing := durable.SyncDir, false
	durable.SyncDir = func(name string) error {
		if failing {
			return errors.New("the folder cannot be synced")
		}
		return sync(name)
	}
	t.Cleanup(func() { durable.SyncDir = sync })
	for _, saved := range []bool{true, false} { // something has been saved before
		dir := t.TempDir()
		lu := func() LUConfig { return LUConfig{Volume: newVolume(t, 1<<20, 512)} }
		r := newRig(t, Config{StateDir: dir}, lu())
		want := 0
		if saved {
			r.prout(r.nx[0], spc.SAProutRegister, 0, 0, keyA, aptpl).good()
			want = 1
		}
		failing = true
		r.prout(r.nx[1], spc.SAProutRegister, 0, 0, keyB, aptpl).sense(spc.KeyHardware, spc.ASCInternalFailure)
		failing = false
		if _, k := r.keys(r.nx[0]); len(k) != want {
			t.Errorf("registered after a failure: %x", k)
		}
		if files, err := os.ReadDir(dir); err != nil || len(files) != want {
			t.Errorf("%v in the folder, want %d files (%v)", files, want, err)
		}
		again := newRig(t, Config{StateDir: dir}, lu())
		if _, k := again.keys(again.nx[0]); len(k) != want {
			t.Errorf("registered after a restart: %x", k)
		}
		if saved {
			continue
		}
		// Who knows what is on disk: the next change writes the file, even one that
		// need not survive.
		r.prout(r.nx[0], spc.SAProutRegister, 0, 0, keyA).good()
		if _, err := os.Stat(r.dev.lookup(0).stateName()); err != nil {
			t.Error(err)
		}
	}
}

func TestSavedModePages(t *testing.T) {
	dir := t.TempDir()
	lu := func() LUConfig { return LUConfig{Volume: newVolume(t, 1<<20, 512)} }
	r := newRig(t, Config{StateDir: dir}, lu())
	page := r.do(spc.AppendModeSense6(nil, true, 3, 0x0A, 0, 255), nil, 255).good().data
	if page[4]&0x80 == 0 {
		t.Error("PS is clear although pages can be saved")
	}
	page[0], page[2] = 0, 0
	page[4] &^= 0x80
	page[4+2] |= 0x04 // D_SENSE
	r.do(spc.AppendModeSelect6(nil, true, byte(len(page))), page, 0).good()
	again := newRig(t, Config{StateDir: dir}, lu())
	if got := again.do(spc.AppendModeSense6(nil, true, 0, 0x0A, 0, 255), nil, 255).good().data; got[4+2]&0x04 == 0 {
		t.Error("a saved mode page is lost after a restart")
	}
}
