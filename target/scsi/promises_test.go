package scsi

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"softiser/internal/await"
	"softiser/internal/spc"

	"softiser/blockdev"
	"softiser/blockdev/crashlog"
	"softiser/blockdev/faulty"
	"softiser/target/volume"
)

// TestReservationMeetsDormantWrite: a command that waits for its turn is not in the
// enabled state yet, so a reservation made meanwhile concerns it.
func TestReservationMeetsDormantWrite(t *testing.T) {
	r := newRig(t, Config{})
	a, b := r.nx[0], r.nx[1]
	first := r.heldWrite(b, 0)
	dormant := r.start(b, 0, spc.AppendWrite(nil, 8, 8, false), fill(4096, 9), 0, attr(AttrOrdered))
	head := func(sa byte, key, action uint64) {
		t.Helper()
		p := (&spc.PersistOut{Key: key, ActionKey: action}).Append(nil)
		r.on(a, 0, spc.AppendPersistOut(nil, sa, spc.PRWriteExclusive, uint32(len(p))), p, 0, attr(AttrHeadOfQueue)).good()
	}
	head(spc.SAProutRegister, 0, keyA)
	head(spc.SAProutReserve, keyA, 0)
	r.port.release(first)
	r.finish(first).good() // it had begun
	r.finish(dormant).is(spc.StatusReservationConflict)
	if !allZero(r.on(a, 0, spc.AppendRead(nil, 8, 8, false), nil, 4096).good().data) {
		t.Error("a WRITE was carried out against a reservation")
	}
}

// TestReservationMeetsArrivingWrite: a WRITE that has passed the check and is not
// in the task set yet is not found by PREEMPT AND ABORT; it must not run behind it.
func TestReservationMeetsArrivingWrite(t *testing.T) {
	r := newRig(t, Config{})
	a, b := r.nx[0], r.nx[1]
	lu := r.dev.lookup(0)
	for _, legacy := range []bool{false, true} {
		c := make(chan *call)
		waiting := r.start(b, 0, spc.AppendWrite(nil, 64, 8, false), fill(4096, 9), 0, held)
		lu.vol.Mark(func(*volume.Op) volume.AbortReason { // with the lock of the task set
			go func() { c <- r.start(b, 0, spc.AppendWrite(nil, 0, 8, false), fill(4096, 9), 0) }()
			time.Sleep(20 * time.Millisecond) // as a rule it waits at the task set now
			if legacy {
				lu.vol.Seize(&a.client)
			} else if err := errors.Join(lu.vol.Register(&a.client, &volume.Register{NewKey: keyA}), lu.vol.Reserve(&a.client, keyA, volume.WriteExclusive)); err != nil {
				t.Error(err)
			}
			return volume.NotAborted
		}, nil)
		r.finish(<-c).is(spc.StatusReservationConflict)
		lu.vol.Unseize(nil)
		if !legacy {
			r.prout(a, spc.SAProutRegister, 0, keyA, 0).good()
		}
		r.port.release(waiting)
		r.finish(waiting).good()
	}
}

// TestStuckUndo: when the volume takes neither the new nor the old data of a WRITE
// ATOMIC, the entry must not undo at the next start what was written since.
func TestStuckUndo(t *testing.T) {
	for _, how := range []string{"write", "write same", "copy", "compare and write that had begun", "unmap that had begun"} {
		t.Run(how, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "v")
			f := faulty.New(openFile(t, path), 1)
			r := newRig(t, Config{StateDir: dir}, LUConfig{Volume: f}, LUConfig{LUN: 1, Volume: newNamed(t, "b")})
			r.do(spc.AppendWrite(nil, 8, 8, false), fill(4096, 1), 0).good()
			want := fill(4096, 50)
			var begun *call // it waits for its data
			switch how {
			case "compare and write that had begun":
				begun = r.start(r.nx[0], 0, spc.AppendCompareAndWrite(nil, 8, 8, false), append(fill(4096, 1), want...), 0, held)
			case "unmap that had begun":
				want = make([]byte, 4096)
				list := spc.AppendUnmapList(nil, []spc.Range{{LBA: 8, Blocks: 8}})
				begun = r.start(r.nx[0], 0, spc.AppendUnmap(nil, uint16(len(list))), list, 0, held)
			}
			f.SetRules(faulty.Rule{Op: faulty.Write, Torn: true, Times: 1}, faulty.Rule{Op: faulty.Write, Err: blockdev.ErrMedium, Times: 1})
			r.do(spc.AppendWriteAtomic16(nil, 8, 8, false), fill(4096, 99), 0).sense(spc.KeyMedium, spc.ASCWriteError)
			switch how {
			case "write":
				r.do(spc.AppendWrite(nil, 8, 8, false), want, 0).good()
			case "write same":
				want = bytes.Repeat(want[:512], 8)
				r.do(spc.AppendWriteSame16(nil, 8, 8, 0), want[:512], 0).good()
			case "copy":
				r.on(r.nx[0], 1, spc.AppendWrite(nil, 8, 8, false), want, 0).good()
				list := copyList(1, append(r.target(1), r.target(0)...), spc.CopySegment{Type: spc.CopyBlockToBlock, Dst: 1, Blocks: 8, SrcLBA: 8, DstLBA: 8})
				r.on(r.nx[0], 1, xcopy(list), list, 0).good()
			default:
				r.port.release(begun)
				r.finish(begun).good()
			}
			r.do(spc.AppendSyncCache(nil, 0, 0, false), nil, 0).good()
			r.close()
			r.nx = nil
			if err := f.Close(); err != nil {
				t.Fatal(err)
			}
			again := newRig(t, Config{StateDir: dir}, LUConfig{Volume: openFile(t, path)})
			if got := again.do(spc.AppendRead(nil, 8, 8, false), nil, 4096).good().data; !bytes.Equal(got, want) {
				t.Error("a start has undone what was written and flushed")
			}
		})
	}
}

// TestRewriteMeetsStagedWrite: a command that waits for its initiator's data does not keep a rewrite
// from beginning, and is not carried out in the middle of it, nor against a write protection.
func TestRewriteMeetsStagedWrite(t *testing.T) {
	list := spc.AppendUnmapList(nil, []spc.Range{{LBA: 8, Blocks: 8}})
	for name, c := range map[string]struct{ cdb, out []byte }{
		"COMPARE AND WRITE": {spc.AppendCompareAndWrite(nil, 8, 8, false), make([]byte, 8192)},
		"ORWRITE":           {spc.AppendOrWrite16(nil, 8, 8, false), fill(4096, 1)},
		"WRITE ATOMIC":      {spc.AppendWriteAtomic16(nil, 8, 8, false), fill(4096, 1)},
		"UNMAP":             {spc.AppendUnmap(nil, uint16(len(list))), list},
	} {
		t.Run(name, func(t *testing.T) {
			stalled := make(chan struct{})
			f := faulty.New(newNamed(t, "a"), 1)
			r := newRig(t, Config{StateDir: t.TempDir()}, LUConfig{Volume: f})
			vol := r.dev.lookup(0).vol
			start := func() *call { return r.start(r.nx[0], 0, c.cdb, c.out, 0, held) }
			begun := start()
			if err := vol.Protect(true); err != nil {
				t.Fatal(err)
			}
			r.port.release(begun)
			r.finish(begun).sense(spc.KeyDataProtect, spc.ASCWriteProtected)
			if err := vol.Protect(false); err != nil {
				t.Fatal(err)
			}
			r.attention(r.nx[0], spc.ASCModeChanged)
			begun = start()
			f.SetRules(faulty.Rule{Op: faulty.Write, Hold: stalled})
			r.do(overwrite(0x80), overwriteList, 0).good()
			r.port.release(begun)
			r.finish(begun).sense(spc.KeyNotReady, spc.ASCSanitizeInProgress)
			close(stalled)
			r.settled()
			if !r.full(0xA5) {
				t.Error("blocks do not hold what the sanitize has written")
			}
		})
	}
}

// TestRewriteMeetsProtection: a rewrite that has waited for a command under way is not carried out
// against a write protection that has come meanwhile.
func TestRewriteMeetsProtection(t *testing.T) {
	for name, c := range map[string]struct{ cdb, out []byte }{
		"FORMAT UNIT": {formatUnit, nil},
		"SANITIZE":    {overwrite(0), overwriteList},
	} {
		for _, g := range []volume.Gate{volume.Protected, volume.WriteProtected} {
			r := newRig(t, Config{StateDir: t.TempDir()}, LUConfig{Volume: newNamed(t, "a")})
			vol := r.dev.lookup(0).vol
			write := r.start(r.nx[0], 0, spc.AppendWrite(nil, 8, 8, false), fill(4096, 1), 0, held)
			rewrite := r.start(r.nx[0], 0, c.cdb, c.out, 0, immediate(len(c.out)))
			if g == volume.Protected {
				if err := vol.Protect(true); err != nil {
					t.Fatal(err)
				}
			} else {
				vol.SetGate(g, true)
			}
			r.port.release(write)
			r.finish(write).good()
			want := spc.ASCWriteProtected
			if g == volume.WriteProtected {
				want = spc.ASCWriteProtectedSW
			}
			r.finish(rewrite).sense(spc.KeyDataProtect, want)
			if g == volume.Protected {
				r.attention(r.nx[0], spc.ASCModeChanged)
			}
			if got := r.do(spc.AppendRead(nil, 8, 8, false), nil, 4096).good().data; !bytes.Equal(got, fill(4096, 1)) {
				t.Errorf("%s: what is protected has gone", name)
			}
		}
	}
}

// TestUndoOnce: what an interrupted WRITE ATOMIC had put aside goes back once, even
// if the file is there again after a power failure.
func TestUndoOnce(t *testing.T) {
	dir := t.TempDir()
	r := newRig(t, Config{StateDir: dir}, LUConfig{Volume: newNamed(t, "a")})
	if err := os.WriteFile(r.dev.lookup(0).journalName(), journalEntry(fill(4096, 7), 4096), 0o600); err != nil {
		t.Fatal(err)
	}
	v := newNamed(t, "a")
	again := newRig(t, Config{StateDir: dir}, LUConfig{Volume: v})
	if got := again.do(spc.AppendRead(nil, 8, 8, false), nil, 4096).good().data; !bytes.Equal(got, fill(4096, 7)) {
		t.Error("the entry was not put back")
	}
	again.do(spc.AppendWrite(nil, 8, 8, false), fill(4096, 60), 0).good()
	third := newRig(t, Config{StateDir: dir}, LUConfig{Volume: v})
	if got := third.do(spc.AppendRead(nil, 8, 8, false), nil, 4096).good().data; !bytes.Equal(got, fill(4096, 60)) {
		t.Error("the entry was put back twice")
	}
	if b := third.dev.lookup(0).journalName(); !func() bool { _, err := os.Stat(b); return err == nil }() {
		t.Error("the journal was removed; its removal is not durable")
	}
}

// TestUnmapWithoutCache: with WCE clear what UNMAP has done is durable at its end.
func TestUnmapWithoutCache(t *testing.T) {
	v, err := crashlog.New(1<<20, 512)
	if err != nil {
		t.Fatal(err)
	}
	r := newRig(t, Config{}, LUConfig{Volume: v})
	r.do(spc.AppendWrite(nil, 0, 8, true), fill(4096, 3), 0).good()
	r.dev.lookup(0).vol.SetWriteCache(false)
	list := spc.AppendUnmapList(nil, []spc.Range{{LBA: 0, Blocks: 8}})
	r.do(spc.AppendUnmap(nil, uint16(len(list))), list, 0).good()
	for img := range v.States(v.Now(), 100, 1) {
		if !allZero(img.Bytes()[:4096]) {
			t.Fatal("unmapped blocks came back with the power")
		}
	}
}

// TestAddedUnitSpeaksFirst: who had another unit under the number hears of it
// before a command of his reaches the new one.
func TestAddedUnitSpeaksFirst(t *testing.T) {
	r := newRig(t, Config{})
	if err := r.dev.RemoveLUN(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	v := newNamed(t, "another")
	if _, err := r.dev.AddLUN(LUConfig{Volume: v}); err != nil {
		t.Fatal(err)
	}
	w := spc.AppendWrite(nil, 0, 8, false)
	r.do(w, fill(4096, 3), 0).sense(spc.KeyUnitAttention, spc.ASCInquiryChanged)
	if !allZero(r.do(spc.AppendRead(nil, 0, 8, false), nil, 4096).good().data) {
		t.Error("the WRITE to the unit that was there before was carried out")
	}
	r.do(w, fill(4096, 3), 0).good()
}

// TestVerifyBeyondFourGiB: the residual of a command that wants more than 32 bits
// can tell.
func TestVerifyBeyondFourGiB(t *testing.T) {
	r := newRig(t, Config{}, LUConfig{Volume: newSized(t, "large", 8<<30)})
	got := r.do(spc.AppendVerify(nil, 0, 8<<20+1, 1), make([]byte, 512), 0)
	got.illegal(spc.ASCInvalidFieldInIU)
	if got.wanted != 0xFFFFFFFF {
		t.Errorf("wants %d bytes", got.wanted)
	}
}

// TestReservedQERR: the sense data point at the byte.
func TestReservedQERR(t *testing.T) {
	r := newRig(t, Config{})
	p := append(make([]byte, 8), r.do(spc.AppendModeSense6(nil, true, 0, 0x0A, 0, 64), nil, 64).good().data[4:]...)
	p[8+3] = p[8+3]&^6 | 4
	p[8] &= 0x3F
	cdb := []byte{0x55, 0x10, 0, 0, 0, 0, 0, 0, 0, 0}
	binary.BigEndian.PutUint16(cdb[7:], uint16(len(p)))
	if got := r.do(cdb, p, 0).illegal(spc.ASCInvalidFieldInParam); got.sd.Field != 8+3 {
		t.Errorf("field pointer %d, want 11", got.sd.Field)
	}
}

// TestBackgroundCopiesAreBounded: IMMED does not let an initiator start any number
// of copies.
func TestBackgroundCopiesAreBounded(t *testing.T) {
	r := newRig(t, Config{})
	lu := r.dev.lookup(0)
	lu.copies.background.Store(int32(lu.cfg.Workers)) // as if they were running
	zero := spc.RODToken{Type: spc.RODZero}
	list := make([]byte, 536+16)
	be := binary.BigEndian
	be.PutUint16(list, uint16(len(list)-2))
	list[2] = 1 // IMMED
	copy(list[16:], zero.Append(nil))
	be.PutUint16(list[534:], 16)
	be.PutUint32(list[536+8:], 8)
	cdb := make([]byte, 16)
	cdb[0], cdb[1] = byte(spc.OpThirdPartyOut), spc.SAWriteUsingToken
	be.PutUint32(cdb[10:], uint32(len(list)))
	r.do(spc.AppendWrite(nil, 0, 8, false), fill(4096, 3), 0).good()
	r.do(cdb, list, 0).good()
	if !allZero(r.do(spc.AppendRead(nil, 0, 8, false), nil, 4096).good().data) {
		t.Error("the status came before the copy was done")
	}
	lu.copies.background.Store(0)
}

// TestPlacesThatAreRefused: a device that is served already gets a further place only as
// the unit that it is, and one that merely looks like it gets none.
func TestPlacesThatAreRefused(t *testing.T) {
	dir, volumes := t.TempDir(), new(volume.Registry)
	v := openFile(t, filepath.Join(dir, "v"))
	cfg := Config{StateDir: dir, Volumes: volumes}
	otherCfg := Config{Name: "iqn.2026-11.softiser:other", StateDir: dir, Volumes: volumes}
	r, other := newRig(t, cfg, LUConfig{Volume: v}), newRig(t, otherCfg, LUConfig{Volume: newNamed(t, "b")})

	naa := r.dev.lookup(0).vol.Identity().NAA
	for name, c := range map[string]struct {
		lu   LUConfig
		dev  *Device
		want string
	}{
		"in the same target":        {LUConfig{LUN: 1, Volume: v}, r.dev, "LUN 0 of target " + r.dev.cfg.Name},
		"for reading":               {LUConfig{LUN: 1, Volume: v, ReadOnly: true}, r.dev, "LUN 0 of target " + r.dev.cfg.Name},
		"opened once more":          {LUConfig{LUN: 1, Volume: sameAgain{v}}, other.dev, "opened once before"},
		"with other placement":      {LUConfig{LUN: 1, Volume: v, Placement: PlacementVerified}, other.dev, "placement direct"},
		"under another identifier":  {LUConfig{LUN: 1, Volume: v, NAA: append([]byte{0x61}, make([]byte, 15)...)}, other.dev, "another serial number"},
		"another, of the same name": {LUConfig{LUN: 1, Volume: newNamed(t, "c"), NAA: naa}, other.dev, "same identifier"},
	} {
		if _, err := c.dev.AddLUN(c.lu); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("the volume %s: %v", name, err)
		}
	}
	for _, x := range []*rig{r, other} {
		x.close()
		x.nx = nil
	}

	// Nothing of the refused ones is left; what nobody can write may be opened twice, and
	// be twice in a target.
	r = newRig(t, cfg, LUConfig{Volume: v, ReadOnly: true}, LUConfig{LUN: 1, Volume: v, ReadOnly: true})
	other = newRig(t, otherCfg, LUConfig{LUN: 0, Volume: sameAgain{v}, ReadOnly: true})
	if _, err := r.dev.AddLUN(LUConfig{LUN: 2, Volume: v}); err == nil {
		t.Error("a writable LUN beside two of its target that read")
	}
	r.prout(r.nx[0], spc.SAProutRegister, 0, 0, keyA, aptpl).good()
	if _, k := other.keys(other.nx[0]); len(k) != 0 {
		t.Errorf("keys of the second unit: %x", k)
	}
	p := append(make([]byte, 8), other.do(spc.AppendModeSense6(nil, true, 0, 0x0A, 0, 64), nil, 64).good().data[4:]...)
	p[8+2] |= 4                                                                                             // D_SENSE
	other.do([]byte{0x55, 0x11, 0, 0, 0, 0, 0, 0, byte(len(p)), 0}, p, 0).illegal(spc.ASCInvalidFieldInCDB) // SP
	other.do([]byte{0x55, 0x10, 0, 0, 0, 0, 0, 0, byte(len(p)), 0}, p, 0).good()
}

// sameAgain is a device opened once more.
type sameAgain struct{ blockdev.Device }

// TestVolumeOfAUnitThatGoes: a unit that has been removed holds its volume until its
// last command has ended.
func TestVolumeOfAUnitThatGoes(t *testing.T) {
	v := newNamed(t, "v")
	r := newRig(t, Config{}, LUConfig{Volume: v})
	c := r.start(r.nx[0], 0, spc.AppendWrite(nil, 0, 8, false), fill(4096, 1), 0, held)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := r.dev.RemoveLUN(ctx, 0); err == nil {
		t.Fatal("removed under a running command")
	}
	if _, err := r.dev.AddLUN(LUConfig{LUN: 3, Volume: v}); err == nil || !strings.Contains(err.Error(), "1 command in execution") {
		t.Errorf("the volume in a second unit: %v", err)
	}
	r.port.release(c)
	r.finish(c)
	await.True(t, "the volume can be served again", func() bool {
		_, err := r.dev.AddLUN(LUConfig{LUN: 3, Volume: v})
		return err == nil
	})
}
