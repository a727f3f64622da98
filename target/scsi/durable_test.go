package scsi

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"softiser/internal/spc"

	"softiser/blockdev/crashlog"
	"softiser/internal/durable"
	"softiser/target/internal/statefile"
	"softiser/target/volume"
)

// onSync has f look at each file of saved state before it is synced.
func onSync(t *testing.T, f func(file *os.File) error) {
	t.Helper()
	real := durable.SyncFile
	t.Cleanup(func() { durable.SyncFile = real })
	durable.SyncFile = func(file *os.File) error {
		if err := f(file); err != nil {
			return err
		}
		return real(file)
	}
}

// TestStateIsSyncedBeforeRename: the new content of the state file is complete and durable
// before it takes the place of the old one; where that fails the old one stays, alone.
func TestStateIsSyncedBeforeRename(t *testing.T) {
	dir := t.TempDir()
	r := newRig(t, Config{StateDir: dir}, LUConfig{Volume: newNamed(t, "a")})
	r.prout(r.nx[0], spc.SAProutRegister, 0, 0, keyA, aptpl).good()
	name := r.dev.lookup(0).stateName()
	old, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	var fail error
	synced := 0
	onSync(t, func(f *os.File) error {
		synced++
		b, err := os.ReadFile(f.Name())
		if now, _ := os.ReadFile(name); err != nil || !bytes.Equal(now, old) || !json.Valid(b) || bytes.Equal(b, old) {
			t.Errorf("before the sync (%v) the file is\n%s\nand what is to be it\n%s", err, now, b)
		}
		return fail
	})
	fail = errDisk
	r.prout(r.nx[1], spc.SAProutRegister, 0, 0, keyB, aptpl).sense(spc.KeyHardware, spc.ASCInternalFailure)
	if _, k := r.keys(r.nx[0]); len(k) != 1 {
		t.Errorf("registered although it could not be saved: %x", k)
	}
	if now, _ := os.ReadFile(name); !bytes.Equal(now, old) {
		t.Error("the state file has changed")
	}
	if all, _ := filepath.Glob(filepath.Join(dir, "*"+statefile.Unfinished+"*")); len(all) != 0 {
		t.Errorf("left behind: %v", all)
	}
	fail = nil
	r.prout(r.nx[1], spc.SAProutRegister, 0, 0, keyB, aptpl).good()
	if synced != 2 {
		t.Errorf("%d syncs, want 2", synced)
	}
}

// TestUnitOfRegistrations: saved registrations belong to the unit whose file they are in, and
// are those of an initiator port through a target port.
func TestUnitOfRegistrations(t *testing.T) {
	dir := t.TempDir()
	groups := []PortGroup{{ID: 1, Ports: []uint16{1, 2}}}
	r := newRig(t, Config{StateDir: dir, Groups: groups}, LUConfig{Volume: newNamed(t, "a")}, LUConfig{LUN: 1, Volume: newNamed(t, "b")})
	r.prout(r.nx[0], spc.SAProutRegister, 0, 0, keyA, aptpl).good()
	r.prout(r.nx[0], spc.SAProutReserve, spc.PRWriteExclusive, keyA, 0).good()
	write := spc.AppendWrite(nil, 0, 1, false)
	elsewhere, err := r.dev.NewNexus(NexusConfig{Initiator: r.nx[0].initiator, ISID: [6]byte{5: 1}, RelPort: 2})
	if err != nil {
		t.Fatal(err)
	}
	r.nx = append(r.nx, elsewhere)
	r.attention(elsewhere, spc.ASCNexusLoss)
	r.on(elsewhere, 0, write, make([]byte, 512), 0).is(spc.StatusReservationConflict)
	r.do(write, make([]byte, 512), 0).good()

	from, to := r.dev.lookup(0).stateName(), r.dev.lookup(1).stateName()
	b, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(to, b, 0o600); err != nil {
		t.Fatal(err)
	}
	d, err := NewDevice(Config{Name: r.dev.cfg.Name, StateDir: dir})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.AddLUN(LUConfig{LUN: 1, Volume: newNamed(t, "b")}); err == nil || !strings.Contains(err.Error(), to) {
		t.Errorf("a unit with the state of another one: %v", err)
	}
}

// TestSanitizeOrder: that a SANITIZE has begun is durable before the first block changes, and
// the last block before it is forgotten.
func TestSanitizeOrder(t *testing.T) {
	d := newCrashLog(t)
	r := newRig(t, Config{StateDir: t.TempDir()}, LUConfig{Volume: d})
	r.do(spc.AppendWrite(nil, 0, 2048, true), fill(1<<20, 7), 0).good()
	before, began, forgotten := d.Now(), false, false
	onSync(t, func(f *os.File) error {
		b, err := os.ReadFile(f.Name())
		if err != nil {
			t.Error(err)
		}
		if bytes.Contains(b, []byte(`"operation"`)) {
			if began = true; d.Now() != before {
				t.Error("the volume was written before that was saved")
			}
			return nil
		}
		forgotten = true
		for img := range d.States(d.Now(), 100, 1) {
			if !bytes.Equal(img.Bytes(), bytes.Repeat([]byte{0x55}, 1<<20)) {
				t.Error("it is forgotten, and blocks may have their old content")
				break
			}
		}
		return nil
	})
	r.do(overwrite(0), append([]byte{1, 0, 2, 0}, bytes.Repeat([]byte{0x55}, 512)...), 0).good()
	if !began || !forgotten {
		t.Errorf("saved: %v, forgotten: %v", began, forgotten)
	}
}

// TestFlushes: every command that promises durability keeps it when the power fails after its
// status.
func TestFlushes(t *testing.T) {
	data := fill(4096, 3)
	write := func(r *rig) { r.do(spc.AppendWrite(nil, 0, 8, false), data, 0).good() }
	through := func(r *rig) { r.dev.lookup(0).vol.SetWriteCache(false) }
	for name, run := range map[string]func(r *rig){
		"SYNCHRONIZE CACHE": func(r *rig) { write(r); r.do(spc.AppendSyncCache(nil, 0, 0, false), nil, 0).good() },
		"SYNCHRONIZE CACHE, range": func(r *rig) {
			write(r)
			r.do(spc.AppendSyncCache(nil, 0, 8, false), nil, 0).good()
		},
		"SYNCHRONIZE CACHE, to the end": func(r *rig) {
			r.do(spc.AppendWrite(nil, 0, 1, true), data[:512], 0).good()
			r.do(spc.AppendWrite(nil, 1, 7, false), data[512:], 0).good()
			r.do(spc.AppendSyncCache(nil, 1, 0, false), nil, 0).good()
		},
		"stop":              func(r *rig) { write(r); r.do(spc.AppendStartStop(nil, false, false, false), nil, 0).good() },
		"eject":             func(r *rig) { write(r); r.do([]byte{0x1B, 0, 0, 0, 2, 0}, nil, 0).good() },
		"FUA":               func(r *rig) { r.do(spc.AppendWrite(nil, 0, 8, true), data, 0).good() },
		"FUA, data with it": func(r *rig) { r.do(spc.AppendWrite(nil, 0, 8, true), data, 0, immediate(4096)).good() },
		"WRITE AND VERIFY":  func(r *rig) { r.do(spc.AppendWriteVerify(nil, 0, 8, 1), data, 0).good() },
		"WRITE ATOMIC":      func(r *rig) { r.do(spc.AppendWriteAtomic16(nil, 0, 8, false), data, 0).good() },
		"COMPARE AND WRITE": func(r *rig) { r.do(spc.AppendCompareAndWrite(nil, 0, 8, true), compareList(data), 0).good() },
		"ORWRITE":           func(r *rig) { r.do(spc.AppendOrWrite16(nil, 0, 8, true), data, 0).good() },
		"no cache":          func(r *rig) { through(r); write(r) },
		"no cache, WRITE SAME": func(r *rig) {
			through(r)
			for i := range uint64(8) {
				r.do(spc.AppendWriteSame16(nil, i, 1, 0), data[i*512:][:512], 0).good()
			}
		},
		"no cache, EXTENDED COPY": func(r *rig) {
			through(r)
			r.on(r.nx[0], 1, spc.AppendWrite(nil, 0, 8, false), data, 0).good()
			list := copyList(1, append(r.target(1), r.target(0)...), spc.CopySegment{Type: spc.CopyBlockToBlock, Dst: 1, Blocks: 8})
			r.on(r.nx[0], 1, xcopy(list), list, 0).good()
		},
	} {
		t.Run(name, func(t *testing.T) {
			d, err := crashlog.New(1<<20, 512)
			if err != nil {
				t.Fatal(err)
			}
			r := newRig(t, Config{StateDir: t.TempDir()}, LUConfig{Volume: d, Removable: true}, LUConfig{LUN: 1, Volume: newNamed(t, "b")})
			r.t = t
			run(r)
			for img := range d.States(d.Now(), 200, 1) {
				if !bytes.Equal(img.Bytes()[:4096], data) {
					t.Fatal("it may be lost")
				}
			}
		})
	}
}

// TestReservationsReleased: RESERVE ends with its holder's nexus, with a reset and with
// RELEASE by its holder, and persistent reservations with none of the first two.
func TestReservationsReleased(t *testing.T) {
	reserve, release, read := []byte{0x16, 0, 0, 0, 0, 0}, []byte{0x17, 0, 0, 0, 0, 0}, spc.AppendRead(nil, 0, 1, false)
	for _, persistent := range []bool{false, true} {
		for name, end := range map[string]func(r *rig){
			"the nexus ends": func(r *rig) { r.dev.CloseNexus(r.nx[0]); r.nx = r.nx[1:] },
			"nexus reset":    func(r *rig) { r.manage(r.nx[0], NexusReset, 0, nil) },
			"reset":          func(r *rig) { r.manage(r.nx[1], LogicalReset, 0, nil) },
			"RELEASE":        func(r *rig) { r.do(release, nil, 0) },
			"by another":     func(r *rig) { r.on(r.nx[1], 0, release, nil, 0).good() },
		} {
			t.Run(name, func(t *testing.T) {
				r := newRig(t, Config{})
				r.t = t
				other := r.nx[1]
				if persistent {
					r.prout(r.nx[0], spc.SAProutRegister, 0, 0, keyA).good()
					r.prout(r.nx[0], spc.SAProutReserve, spc.PRExclusiveAccess, keyA, 0).good()
				} else {
					r.do(reserve, nil, 0).good()
				}
				r.on(other, 0, read, nil, 512).is(spc.StatusReservationConflict)
				end(r)
				got := r.on(other, 0, read, nil, 512)
				if got.sd.Key == spc.KeyUnitAttention {
					got = r.on(other, 0, read, nil, 512)
				}
				if stays := persistent || name == "by another"; stays {
					got.is(spc.StatusReservationConflict)
				} else {
					got.good()
				}
			})
		}
	}
}

// TestPreemptOfAnother: PREEMPT of a registrant that is not the holder takes its registration and
// nothing else, and PREEMPT AND ABORT its commands and nobody else's.
func TestPreemptOfAnother(t *testing.T) {
	r := newRig(t, Config{})
	a, b, c := r.nx[0], r.nx[1], r.nexus(3)
	r.prout(a, spc.SAProutRegister, 0, 0, keyA).good()
	r.prout(b, spc.SAProutRegister, 0, 0, keyB).good()
	r.prout(c, spc.SAProutRegister, 0, 0, keyB+1).good()
	r.prout(a, spc.SAProutReserve, spc.PRWriteExclusiveRegistrants, keyA, 0).good()
	gen, _ := r.keys(a)

	// Refused, and nothing changes: an unknown key, no key, a wrong one of its own.
	r.prout(c, spc.SAProutPreempt, spc.PRWriteExclusive, keyB+1, 0x9999).is(spc.StatusReservationConflict)
	r.prout(c, spc.SAProutPreempt, spc.PRWriteExclusive, keyB+1, 0).illegal(spc.ASCInvalidFieldInParam)
	r.prout(c, spc.SAProutPreempt, spc.PRWriteExclusive, 0x9999, keyB).is(spc.StatusReservationConflict)
	r.prout(c, spc.SAProutPreempt, 4, keyB+1, keyA).illegal(spc.ASCInvalidFieldInCDB)
	if now, k := r.keys(a); now != gen || len(k) != 3 {
		t.Errorf("generation %d, then %d, keys %x", gen, now, k)
	}

	mine, theirs, victim := r.heldWrite(a, 0), r.heldWrite(c, 8), r.heldWrite(b, 16)
	r.prout(c, spc.SAProutPreemptAbort, spc.PRExclusiveAccess, keyB+1, keyB).good()
	if got := r.finish(victim); got.status != spc.StatusTaskAborted {
		t.Errorf("the preempted nexus's command: %v", got.status)
	}
	for _, x := range []*call{mine, theirs} {
		r.port.release(x)
		r.finish(x).good()
	}
	if k, typ := r.holder(a); k != keyA || typ != spc.PRWriteExclusiveRegistrants {
		t.Errorf("the reservation is now held by %x, %v", k, typ)
	}
	r.attention(b, spc.ASCRegistrPreempted)
	r.on(b, 0, spc.AppendWrite(nil, 0, 1, false), make([]byte, 512), 0).is(spc.StatusReservationConflict)

	// Of the holder: the preempting nexus has it, with its own type; the others hear of that.
	r.prout(b, spc.SAProutRegister, 0, 0, keyB).good()
	r.prout(c, spc.SAProutPreempt, spc.PRExclusiveAccess, keyB+1, keyA).good()
	r.attention(a, spc.ASCRegistrPreempted)
	r.attention(b, spc.ASCReservReleased)
	if k, typ := r.holder(c); k != keyB+1 || typ != spc.PRExclusiveAccess {
		t.Errorf("the reservation is now held by %x, %v", k, typ)
	}
	if _, k := r.keys(c); len(k) != 2 {
		t.Errorf("keys %x", k)
	}
	// Of oneself: the registration stays.
	r.prout(c, spc.SAProutPreempt, spc.PRWriteExclusive, keyB+1, keyB+1).good()
	if k, typ := r.holder(c); k != keyB+1 || typ != spc.PRWriteExclusive {
		t.Errorf("after preempting itself: %x, %v", k, typ)
	}
}

// TestRegistrationsAreBounded: initiators do not make the unit remember any number of names.
func TestRegistrationsAreBounded(t *testing.T) {
	r := newRig(t, Config{})
	const most = 1024
	lu := r.dev.lookup(0)
	for i := range most - 1 {
		c := volume.Client{ID: r.dev.registrant(fmt.Sprintf("iqn.2026-11.test:%d,i,0x000000000000", i), 1)}
		if err := lu.vol.Register(&c, &volume.Register{NewKey: keyB}); err != nil {
			t.Fatal(err)
		}
	}
	r.prout(r.nx[0], spc.SAProutRegister, 0, 0, keyA).good()
	r.prout(r.nx[1], spc.SAProutRegister, 0, 0, keyA).illegal(spc.ASCPRResources)
	if n := lu.vol.Reservations().Len(); n != most {
		t.Errorf("%d registrations, want %d", n, most)
	}
	r.prout(r.nx[0], spc.SAProutRegister, 0, keyA, 0).good()
	r.prout(r.nx[1], spc.SAProutRegister, 0, 0, keyA).good()
}
