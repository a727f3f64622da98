package scsi

import (
	"bytes"
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"softiser/blockdev"
	"softiser/blockdev/faulty"
	"softiser/internal/spc"
	"softiser/target/volume"
)

// One volume as LUN 0 of two targets: what counts for the one must count for the other.

// twoTargets makes the targets. Their initiators have the same names and ports, so that
// only the target tells them apart.
func twoTargets(t testing.TB, dir string, lu LUConfig) (a, b *rig) {
	t.Helper()
	volumes := new(volume.Registry)
	make := func(name string) *rig {
		return newRig(t, Config{Name: "iqn.2026-11.softiser:" + name, StateDir: dir, Volumes: volumes}, lu)
	}
	return make("a"), make("b")
}

// ended reports whether a command has ended.
func ended(c *call) bool {
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

// TestTwoTargetsOneVolumeCompareAndWrite: of two that race for a block only one wins.
func TestTwoTargetsOneVolumeCompareAndWrite(t *testing.T) {
	// Writing takes so long that both would have compared before either has written.
	slow := faulty.New(newNamed(t, "v"), 1, faulty.Rule{Op: faulty.Write, Delay: 5 * time.Millisecond})
	a, b := twoTargets(t, "", LUConfig{Volume: slow})
	value := func(round, who int) []byte { return bytes.Repeat([]byte{byte(round), byte(who)}, 256) }
	was := make([]byte, 512)
	for round := 1; round <= 50; round++ {
		var wg sync.WaitGroup
		var got [2]*result
		for i, r := range []*rig{a, b} {
			wg.Add(1)
			go func() {
				defer wg.Done()
				list := append(bytes.Clone(was), value(round, i)...)
				got[i] = r.do(spc.AppendCompareAndWrite(nil, 9, 1, false), list, 0)
			}()
		}
		wg.Wait()
		won := -1
		for i, g := range got {
			switch {
			case g.status == spc.StatusGood && won < 0:
				won = i
			case g.status == spc.StatusGood:
				t.Fatalf("round %d: both have won", round)
			default:
				g.sense(spc.KeyMiscompare, spc.ASCMiscompare)
			}
		}
		if won < 0 {
			t.Fatalf("round %d: nobody has won", round)
		}
		was = value(round, won)
		if now := a.do(spc.AppendRead(nil, 9, 1, false), nil, 512).good().data; !bytes.Equal(now, was) {
			t.Fatalf("round %d: the block is not the winner's", round)
		}
	}
}

// TestTwoTargetsOneVolumeOrder: ORDERED and exclusive commands wait for those of the
// other target.
func TestTwoTargetsOneVolumeOrder(t *testing.T) {
	for name, c := range map[string]struct {
		cdb  []byte
		out  []byte
		opts []func(*call)
	}{
		"ORDERED":           {spc.AppendTestUnitReady(nil), nil, []func(*call){attr(AttrOrdered)}},
		"COMPARE AND WRITE": {spc.AppendCompareAndWrite(nil, 0, 1, false), make([]byte, 1024), nil},
		"WRITE ATOMIC":      {spc.AppendWriteAtomic16(nil, 0, 8, false), fill(4096, 5), nil},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, b := twoTargets(t, "", LUConfig{Volume: newNamed(t, "v")})
				w := b.heldWrite(b.nx[0], 0)
				x := a.start(a.nx[0], 0, c.cdb, c.out, 0, c.opts...)
				synctest.Wait()
				if ended(x) {
					t.Error("it did not wait for the WRITE through the other target")
				}
				b.port.release(w)
				b.finish(w).good()
				a.finish(x).good()
				for _, r := range []*rig{a, b} {
					r.close()
					r.nx = nil
				}
			})
		})
	}
}

// TestTwoTargetsOneVolumeReservations: registrations are those of nexuses, which are
// named by target as well; a reservation through one target holds through the other.
func TestTwoTargetsOneVolumeReservations(t *testing.T) {
	a, b := twoTargets(t, "", LUConfig{Volume: newNamed(t, "v")})
	na, nb := a.nx[0], b.nx[0]
	write := spc.AppendWrite(nil, 0, 8, false)
	a.prout(na, spc.SAProutRegister, 0, 0, keyA).good()
	a.prout(na, spc.SAProutReserve, spc.PRExclusiveAccess, keyA, 0).good()
	b.on(nb, 0, write, fill(4096, 1), 0).is(spc.StatusReservationConflict)
	b.on(nb, 0, spc.AppendRead(nil, 0, 8, false), nil, 4096).is(spc.StatusReservationConflict)
	b.prout(nb, spc.SAProutRegister, 0, keyA, keyB).is(spc.StatusReservationConflict) // it is not registered
	b.prout(nb, spc.SAProutRegister, 0, 0, keyB).good()
	if gen, keys := b.keys(nb); gen != 2 || len(keys) != 2 {
		t.Errorf("generation %d, keys %x", gen, keys)
	}
	b.prout(nb, spc.SAProutRelease, spc.PRExclusiveAccess, keyB, 0).good() // not the holder's: nothing
	b.on(nb, 0, write, fill(4096, 1), 0).is(spc.StatusReservationConflict)

	// What a released reservation had kept others from, they learn at either target.
	a.prout(na, spc.SAProutRelease, spc.PRExclusiveAccess, keyA, 0).good()
	a.prout(na, spc.SAProutReserve, spc.PRWriteExclusiveRegistrants, keyA, 0).good()
	a.prout(na, spc.SAProutRelease, spc.PRWriteExclusiveRegistrants, keyA, 0).good()
	b.attention(nb, spc.ASCReservReleased)
	b.on(nb, 0, write, fill(4096, 1), 0).good()

	// The RESERVE of old holds as well.
	a.prout(na, spc.SAProutClear, 0, keyA, 0).good()
	b.attention(nb, spc.ASCReservPreempted)
	b.on(nb, 0, []byte{0x16, 0, 0, 0, 0, 0}, nil, 0).good()
	a.on(na, 0, write, fill(4096, 1), 0).is(spc.StatusReservationConflict)
	b.dev.CloseNexus(nb)
	a.on(na, 0, write, fill(4096, 1), 0).good()
}

// TestTwoTargetsOneVolumePreempt: PREEMPT AND ABORT through one target ends the commands
// and copies of the other's initiator, and what arrives behind it conflicts.
func TestTwoTargetsOneVolumePreempt(t *testing.T) {
	a, b := twoTargets(t, "", LUConfig{Volume: newNamed(t, "v")})
	na, nb := a.nx[0], b.nx[0]
	a.prout(na, spc.SAProutRegister, 0, 0, keyA).good()
	b.prout(nb, spc.SAProutRegister, 0, 0, keyB).good()
	b.prout(nb, spc.SAProutReserve, spc.PRWriteExclusive, keyB, 0).good()
	w := b.heldWrite(nb, 0)
	a.prout(na, spc.SAProutPreemptAbort, spc.PRWriteExclusive, keyA, keyB).good()
	if !ended(w) {
		t.Error("the status of PREEMPT AND ABORT came before the command had ended")
	}
	if got := b.finish(w); !got.silent && got.status != spc.StatusTaskAborted {
		t.Errorf("the preempted WRITE: %v", got.status)
	}
	b.attention(nb, spc.ASCRegistrPreempted)
	b.on(nb, 0, spc.AppendWrite(nil, 0, 8, false), fill(4096, 1), 0).is(spc.StatusReservationConflict)
	a.on(na, 0, spc.AppendWrite(nil, 0, 8, false), fill(4096, 2), 0).good()
	if key, typ := b.holder(nb); key != keyA || typ != spc.PRWriteExclusive {
		t.Errorf("held with %x, %v", key, typ)
	}
}

// TestTwoTargetsOneVolumeTasks: whose tasks a task management function ends, and who is
// told.
func TestTwoTargetsOneVolumeTasks(t *testing.T) {
	for _, c := range []struct {
		name    string
		f       TMF
		reaches bool    // the task through the other target
		tells   spc.ASC // the other target's initiator
	}{
		{"ABORT TASK SET", AbortTaskSet, false, 0},
		{"CLEAR TASK SET", ClearTaskSet, true, spc.ASCCommandsCleared},
		{"LOGICAL UNIT RESET", LogicalReset, true, spc.ASCDeviceReset},
		{"TARGET WARM RESET", TargetWarmReset, true, spc.ASCBusReset},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, b := twoTargets(t, "", LUConfig{Volume: newNamed(t, "v")})
			mine, theirs := a.heldWrite(a.nx[0], 0), b.heldWrite(b.nx[0], 64)
			if x := a.manage(a.nx[0], AbortTask, 0, &theirs.Task); x != TMFNoTask {
				t.Errorf("ABORT TASK of another target's task: %v", x)
			}
			if x := a.manage(a.nx[0], c.f, 0, nil); x != TMFComplete {
				t.Fatalf("%v", x)
			}
			if !ended(mine) || ended(theirs) != c.reaches {
				t.Errorf("its own task has ended: %v; that of the other target: %v, want %v", ended(mine), ended(theirs), c.reaches)
			}
			a.finish(mine)
			if !c.reaches {
				b.port.release(theirs)
			}
			b.finish(theirs)
			if c.tells != 0 {
				b.attention(b.nx[0], c.tells)
			}
			b.on(b.nx[0], 0, spc.AppendTestUnitReady(nil), nil, 0).good()
		})
	}
}

// TestTwoTargetsOneVolumeAttentions: a resize and changed mode parameters are learnt at
// both targets, and count at both.
func TestTwoTargetsOneVolumeAttentions(t *testing.T) {
	v := newNamed(t, "v")
	a, b := twoTargets(t, "", LUConfig{Volume: v})
	if err := v.(blockdev.Resizer).Resize(2 << 20); err != nil {
		t.Fatal(err)
	}
	for _, r := range []*rig{a, b} {
		for _, n := range r.nx {
			r.attention(n, spc.ASCCapacityChanged)
			r.on(n, 0, spc.AppendRead(nil, 4095, 1, false), nil, 512).good()
		}
	}
	swp := []byte{0, 0, 0, 0, 0x0A, 0x0A, 0, 0x10, 0x08, 0, 0, 0, 0, 0, 0, 0}
	a.do(spc.AppendModeSelect6(nil, false, 16), swp, 0).good()
	a.attention(a.nx[1], spc.ASCModeChanged)
	a.do(spc.AppendTestUnitReady(nil), nil, 0).good()
	for _, n := range b.nx {
		b.attention(n, spc.ASCModeChanged)
		b.on(n, 0, spc.AppendWrite(nil, 0, 1, false), make([]byte, 512), 0).sense(spc.KeyDataProtect, spc.ASCWriteProtectedSW)
	}
	// A change of ALUA states is one target's affair.
	if err := a.dev.SetAccessState(0, 1, Standby); err != nil {
		t.Fatal(err)
	}
	a.attention(a.nx[0], spc.ASCALUAStateChanged)
	a.do(spc.AppendRead(nil, 0, 1, false), nil, 512).sense(spc.KeyNotReady, spc.ASCAccessStandby)
	b.do(spc.AppendRead(nil, 0, 1, false), nil, 512).good()
}

// TestTwoTargetsOneVolumeReadOnly: a LUN may be for reading beside one that writes. Such
// a reader is kept off by reservations and atomic commands like everybody.
func TestTwoTargetsOneVolumeReadOnly(t *testing.T) {
	v := newNamed(t, "v")
	volumes := new(volume.Registry)
	a := newRig(t, Config{Name: "iqn.2026-11.softiser:a", Volumes: volumes}, LUConfig{Volume: v})
	b := newRig(t, Config{Name: "iqn.2026-11.softiser:b", Volumes: volumes}, LUConfig{Volume: v, ReadOnly: true})
	a.do(spc.AppendWrite(nil, 0, 1, false), fill(512, 3), 0).good()
	b.do(spc.AppendWrite(nil, 0, 1, false), fill(512, 4), 0).sense(spc.KeyDataProtect, spc.ASCWriteProtected)
	if got := b.do(spc.AppendRead(nil, 0, 1, false), nil, 512).good().data; !bytes.Equal(got, fill(512, 3)) {
		t.Error("the reader does not see what was written")
	}
	page := b.do(spc.AppendModeSense6(nil, false, 0, 0x0A, 0, 64), nil, 64).good().data
	if page[2]&0x80 == 0 {
		t.Error("WP is not set at the LUN that is read-only")
	}
	if page = a.do(spc.AppendModeSense6(nil, false, 0, 0x0A, 0, 64), nil, 64).good().data; page[2]&0x80 != 0 {
		t.Error("WP is set at the LUN that is not")
	}
	a.prout(a.nx[0], spc.SAProutRegister, 0, 0, keyA).good()
	a.prout(a.nx[0], spc.SAProutReserve, spc.PRExclusiveAccess, keyA, 0).good()
	b.do(spc.AppendRead(nil, 0, 1, false), nil, 512).is(spc.StatusReservationConflict)
}

// TestTwoTargetsOneVolumeRewrite: SANITIZE and FORMAT UNIT through one target keep the
// other's commands off, and go on when their own target has gone.
func TestTwoTargetsOneVolumeRewrite(t *testing.T) {
	for name, c := range map[string]struct {
		cdb  []byte
		asc  spc.ASC
		rule faulty.Rule
	}{
		"SANITIZE":    {[]byte{0x48, 0x82, 0, 0, 0, 0, 0, 0, 0, 0}, spc.ASCSanitizeInProgress, faulty.Rule{Op: faulty.Discard, Delay: time.Second}},
		"FORMAT UNIT": {formatUnit, spc.ASCFormatInProgress, faulty.Rule{Op: faulty.Discard, Delay: time.Second}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				slow := faulty.New(newNamed(t, "v"), 1)
				a, b := twoTargets(t, "", LUConfig{Volume: slow})
				slow.SetRules(c.rule)
				x := a.start(a.nx[0], 0, c.cdb, nil, 0)
				synctest.Wait()
				b.do(spc.AppendWrite(nil, 0, 1, false), fill(512, 1), 0).sense(spc.KeyNotReady, c.asc)
				b.do(formatUnit, nil, 0).sense(spc.KeyNotReady, c.asc)
				if c.asc == spc.ASCSanitizeInProgress {
					a.finish(x).good() // IMMED
					if err := a.dev.RemoveLUN(t.Context(), 0); err != nil {
						t.Error(err)
					}
				}
				b.do(spc.AppendRead(nil, 0, 1, false), nil, 512).sense(spc.KeyNotReady, c.asc)
				time.Sleep(time.Minute)
				if c.asc == spc.ASCFormatInProgress {
					a.finish(x).good()
				}
				b.do(spc.AppendWrite(nil, 0, 1, false), fill(512, 1), 0).good()
				for _, r := range []*rig{a, b} {
					r.close()
					r.nx = nil
				}
			})
		})
	}
}

// TestTwoTargetsOneVolumeQoS: there is one rate, whichever target asks for it.
func TestTwoTargetsOneVolumeQoS(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := twoTargets(t, "", LUConfig{Volume: newNamed(t, "v"), QoS: QoS{IOPS: 100, BurstIOs: 1}})
		took := func() time.Duration {
			began := time.Now()
			var cs [2][]*call
			for range 50 {
				for i, r := range []*rig{a, b} {
					cs[i] = append(cs[i], r.start(r.nx[0], 0, spc.AppendRead(nil, 0, 1, false), nil, 512))
				}
			}
			for i, r := range []*rig{a, b} {
				for _, c := range cs[i] {
					r.finish(c).good()
				}
			}
			return time.Since(began)
		}
		if d := took(); d < 900*time.Millisecond || d > 1100*time.Millisecond {
			t.Errorf("100 commands took %v, want 1s", d)
		}
		b.dev.lookup(0).vol.SetQoS(QoS{IOPS: 1000, BurstIOs: 1})
		if d := took(); d > 200*time.Millisecond {
			t.Errorf("at ten times the rate: %v", d)
		}
		for _, r := range []*rig{a, b} {
			r.close()
			r.nx = nil
		}
	})
}

// TestTwoTargetsOneVolumeRemoval: one place goes, the other one works; the volume ends
// with the last.
func TestTwoTargetsOneVolumeRemoval(t *testing.T) {
	v := newNamed(t, "v")
	a, b := twoTargets(t, "", LUConfig{Volume: v})
	b.prout(b.nx[0], spc.SAProutRegister, 0, 0, keyB).good()
	going := a.dev.lookup(0)
	w := a.heldWrite(a.nx[0], 0)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := a.dev.RemoveLUN(ctx, 0); err == nil {
		t.Error("removed under a running command")
	}
	b.do(spc.AppendWrite(nil, 64, 8, false), fill(4096, 6), 0).good()
	lu := b.dev.lookup(0)
	a.port.release(w)
	a.finish(w).good()
	b.do(spc.AppendVerify(nil, 64, 8, 0), nil, 0).good() // by a worker
	if err := going.Close(t.Context()); err != nil || !going.Removed() {
		t.Errorf("the LUN that was to go: %v", err)
	}
	if lu.Removed() {
		t.Error("the other LUN is gone as well")
	}
	// Back again: it is the unit that it was, and nothing of its state is lost.
	if _, err := a.dev.AddLUN(LUConfig{LUN: 5, Volume: v}); err != nil {
		t.Fatal(err)
	}
	if err := b.dev.RemoveLUN(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	a.on(a.nx[0], 5, spc.AppendTestUnitReady(nil), nil, 0).sense(spc.KeyUnitAttention, spc.ASCInquiryChanged)
	_, keys, err := spc.ParseReadKeys(a.on(a.nx[0], 5, spc.AppendPersistIn(nil, spc.SAPrinReadKeys, 1024), nil, 1024).good().data)
	if err != nil || len(keys) != 1 || keys[0] != keyB {
		t.Errorf("keys %x, %v", keys, err)
	}
	if err := a.dev.RemoveLUN(t.Context(), 5); err != nil {
		t.Fatal(err)
	}
	// The next life of the volume begins anew.
	if _, err := a.dev.AddLUN(LUConfig{LUN: 6, Volume: v}); err != nil {
		t.Fatal(err)
	}
	if n := a.dev.lookup(6).vol.Reservations().Len(); n != 0 {
		t.Errorf("%d registrations", n)
	}
}

// TestTwoTargetsOneVolumeRestart: with APTPL both targets' registrations come back, each
// to its own.
func TestTwoTargetsOneVolumeRestart(t *testing.T) {
	dir := t.TempDir()
	v := newNamed(t, "v")
	a, b := twoTargets(t, dir, LUConfig{Volume: v})
	a.prout(a.nx[0], spc.SAProutRegister, 0, 0, keyA, aptpl).good()
	b.prout(b.nx[0], spc.SAProutRegister, 0, 0, keyB, aptpl).good()
	b.prout(b.nx[0], spc.SAProutReserve, spc.PRWriteExclusive, keyB, 0).good()
	for _, r := range []*rig{a, b} {
		r.close()
		r.nx = nil
	}
	b, a = twoTargetsReversed(t, dir, v)
	if _, keys := a.keys(a.nx[0]); len(keys) != 2 {
		t.Errorf("keys %x", keys)
	}
	// The initiator ports have the same names at both targets: only b's holds it.
	a.do(spc.AppendWrite(nil, 0, 1, false), make([]byte, 512), 0).is(spc.StatusReservationConflict)
	b.do(spc.AppendWrite(nil, 0, 1, false), make([]byte, 512), 0).good()
	a.prout(a.nx[0], spc.SAProutRegister, 0, keyB, 1).is(spc.StatusReservationConflict)
	a.prout(a.nx[0], spc.SAProutRegister, 0, keyA, 0).good()
	if _, keys := a.keys(a.nx[0]); len(keys) != 1 || keys[0] != keyB {
		t.Errorf("keys %x", keys)
	}
}

// twoTargetsReversed starts the other one first.
func twoTargetsReversed(t testing.TB, dir string, v blockdev.Device) (b, a *rig) {
	t.Helper()
	volumes := new(volume.Registry)
	for _, name := range []string{"b", "a"} {
		r := newRig(t, Config{Name: "iqn.2026-11.softiser:" + name, StateDir: dir, Volumes: volumes}, LUConfig{Volume: v})
		b, a = a, r
	}
	return b, a
}

// TestTwoTargetsOneVolumeUsers: a registration belongs to a user of its target.
func TestTwoTargetsOneVolumeUsers(t *testing.T) {
	a, b := twoTargets(t, "", LUConfig{Volume: newNamed(t, "v")})
	n, err := a.dev.NewNexus(NexusConfig{Initiator: "iqn.2026-11.test:owner", User: "alice"})
	if err != nil {
		t.Fatal(err)
	}
	a.nx = append(a.nx, n)
	a.attention(n, spc.ASCPowerOnReset)
	a.prout(n, spc.SAProutRegister, 0, 0, keyA).good()
	if user, ok := a.dev.RegisteredUser("iqn.2026-11.test:owner", "bob"); !ok || user != "alice" {
		t.Errorf("through its own target: %q, %v", user, ok)
	}
	if user, ok := b.dev.RegisteredUser("iqn.2026-11.test:owner", "bob"); ok {
		t.Errorf("through the other target: %q", user)
	}
	if err := b.dev.DisownRegistrations("iqn.2026-11.test:owner"); err != nil {
		t.Fatal(err)
	}
	if _, ok := a.dev.RegisteredUser("iqn.2026-11.test:owner", "bob"); !ok {
		t.Error("disowned through the other target")
	}
}
