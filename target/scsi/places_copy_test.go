package scsi

import (
	"bytes"
	"testing"
	"testing/synctest"
	"time"

	"softiser/blockdev/faulty"
	"softiser/internal/spc"
	"softiser/target/volume"
)

// copyTargets are target a, which has a shared volume as LUN 0 and one of its own as LUN 1,
// as copyRig makes it, and target b, which has the shared one alone.
func copyTargets(t *testing.T) (a, b *rig) {
	volumes := new(volume.Registry)
	slow := faulty.New(newSized(t, "a", copyPieces<<20), 1)
	a = newRig(t, Config{Name: "iqn.2026-11.softiser:a", Volumes: volumes}, LUConfig{Volume: slow}, LUConfig{LUN: 1, Volume: newSized(t, "b", copyPieces<<20)})
	b = newRig(t, Config{Name: "iqn.2026-11.softiser:b", Volumes: volumes}, LUConfig{Volume: slow})
	slow.SetRules(faulty.Rule{Op: faulty.Write | faulty.Discard, Delay: time.Second})
	return a, b
}

// TestTwoTargetsOneVolumeCopies: a copy by one target to a volume that another one serves
// as well writes what that one's initiators read, and ends when they fence it off: with
// PREEMPT AND ABORT before that has its answer, with a reservation behind the piece that is
// under way, with LOGICAL UNIT RESET at the other target.
func TestTwoTargetsOneVolumeCopies(t *testing.T) {
	for _, kind := range copyKinds {
		t.Run(kind, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, b := copyTargets(t)
				c := a.startCopy(a.nx[0], kind)
				time.Sleep(time.Minute)
				a.finish(c).good()
				want := fill(4096, 9)
				if kind == "zero token, IMMED" {
					want = make([]byte, 4096)
				}
				if got := b.on(b.nx[0], 0, spc.AppendRead(nil, 0, 8, false), nil, 4096).good().data; !bytes.Equal(got, want) {
					t.Error("the other target reads something else than was copied")
				}
			})
			synctest.Test(t, func(t *testing.T) {
				a, b := copyTargets(t)
				na, nb := a.nx[0], b.nx[0]
				a.prout(na, spc.SAProutRegister, 0, 0, keyA).good()
				b.prout(nb, spc.SAProutRegister, 0, 0, keyB).good()
				c := a.startCopy(na, kind)
				time.Sleep(1500 * time.Millisecond) // the second piece is under way
				b.prout(nb, spc.SAProutPreemptAbort, spc.PRWriteExclusive, keyB, keyA).good()
				b.overwritten(nb)
				if got := a.finish(c); kind == "EXTENDED COPY" {
					got.sense(spc.KeyAborted, 0)
				} else if kind == "WRITE USING TOKEN" {
					got.is(spc.StatusTaskAborted)
				}
				if n := b.dev.lookup(0).vol.Copies(); n != 0 {
					t.Errorf("the volume still knows %d copies", n)
				}
			})
			synctest.Test(t, func(t *testing.T) {
				a, b := copyTargets(t)
				na, nb := a.nx[0], b.nx[0]
				b.prout(nb, spc.SAProutRegister, 0, 0, keyB).good()
				c := a.startCopy(na, kind)
				time.Sleep(1500 * time.Millisecond)
				b.prout(nb, spc.SAProutReserve, spc.PRWriteExclusive, keyB, 0).good()
				time.Sleep(time.Second) // the piece under way
				b.overwritten(nb)
				if got := a.finish(c); kind == "EXTENDED COPY" || kind == "WRITE USING TOKEN" {
					got.sense(spc.KeyCopyAborted, spc.ASCCopyTargetGone)
				} else if i := a.rodInfo(na, 0, 2); i.Status != spc.CopyFailed {
					t.Errorf("the state of the copy: %#x", i.Status)
				}
			})
			synctest.Test(t, func(t *testing.T) {
				a, b := copyTargets(t)
				c := a.startCopy(a.nx[0], kind)
				time.Sleep(1500 * time.Millisecond)
				if x := b.manage(b.nx[0], LogicalReset, 0, nil); x != TMFComplete {
					t.Errorf("response %v", x)
				}
				b.on(b.nx[0], 0, spc.AppendTestUnitReady(nil), nil, 0) // a unit attention
				b.overwritten(b.nx[0])
				a.finish(c)
			})
		})
	}
}

// TestTokensOfTwoTargets: a token stands for blocks of the target that has made it. Another
// one that serves the same volume does not know it.
func TestTokensOfTwoTargets(t *testing.T) {
	a, b := twoTargets(t, "", LUConfig{Volume: newNamed(t, "v")})
	na, nb := a.nx[0], b.nx[0]
	token := a.newToken(na, 0, spc.Range{LBA: 0, Blocks: 8})
	// What the blocks hold when the token is used counts, whichever target has written it.
	data := fill(4096, 3)
	b.on(nb, 0, spc.AppendWrite(nil, 0, 8, false), data, 0).good()
	use := func(r *rig, n *Nexus) *result {
		w := spc.WriteUsingToken{Token: token, Ranges: []spc.Range{{LBA: 100, Blocks: 8}}}
		list := w.Append(nil)
		return r.on(n, 0, tokenCDB(spc.SAWriteUsingToken, 2, list), list, 0)
	}
	use(b, nb).illegal(spc.ASCTokenUnknown)
	use(a, na).good()
	if got := b.on(nb, 0, spc.AppendRead(nil, 100, 8, false), nil, 4096).good().data; !bytes.Equal(got, data) {
		t.Error("copied other data")
	}
}
