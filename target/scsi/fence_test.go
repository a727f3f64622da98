package scsi

import (
	"bytes"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"softiser/internal/spc"

	"softiser/blockdev/faulty"
)

// copyKinds are the ways to have the target write to LUN 0 what LUN 1 holds.
var copyKinds = []string{"EXTENDED COPY", "WRITE USING TOKEN", "WRITE USING TOKEN, IMMED", "zero token, IMMED"}

// copyPieces is how many pieces, of a megabyte, each of them writes.
const copyPieces = 4

// copyRig is a rig in a bubble: two units of copyPieces megabytes, and writes to LUN 0 that
// take a second for each piece.
func copyRig(t *testing.T) *rig {
	slow := faulty.New(newSized(t, "a", copyPieces<<20), 1)
	r := newRig(t, Config{}, LUConfig{Volume: slow}, LUConfig{LUN: 1, Volume: newSized(t, "b", copyPieces<<20)})
	slow.SetRules(faulty.Rule{Op: faulty.Write | faulty.Discard, Delay: time.Second})
	return r
}

// startCopy begins a copy by n of all of LUN 1 to LUN 0.
func (r *rig) startCopy(n *Nexus, kind string) *call {
	r.t.Helper()
	r.on(n, 1, spc.AppendWrite(nil, 0, 8, false), fill(4096, 9), 0)
	const blocks = copyPieces << 11
	if kind == "EXTENDED COPY" { // through the unit that it reads from
		list := copyList(1, append(r.target(0), r.target(1)...), spc.CopySegment{Type: spc.CopyBlockToBlock, Src: 1, Blocks: blocks})
		return r.start(n, 1, xcopy(list), list, 0)
	}
	zero := spc.RODToken{Type: spc.RODZero}
	token := zero.Append(nil)
	w := spc.WriteUsingToken{Immed: kind != "WRITE USING TOKEN"}
	for i := range uint64(copyPieces) {
		w.Ranges = append(w.Ranges, spc.Range{LBA: i << 11, Blocks: 1 << 11})
	}
	if kind != "zero token, IMMED" {
		token = r.newToken(n, 1, spc.Range{Blocks: blocks})
	}
	w.Token = token
	list := w.Append(nil)
	return r.start(n, 0, tokenCDB(spc.SAWriteUsingToken, 2, list), list, 0)
}

// newToken makes a token for blocks of a unit.
func (r *rig) newToken(n *Nexus, lun uint16, ranges ...spc.Range) []byte {
	r.t.Helper()
	p := spc.PopulateToken{Timeout: maxTokenSeconds, Ranges: ranges}
	list := p.Append(nil)
	r.on(n, lun, tokenCDB(spc.SAPopulateToken, 1, list), list, 0).good()
	return r.rodInfo(n, lun, 1).Token
}

// rodInfo asks how the copy under a list identifier is.
func (r *rig) rodInfo(n *Nexus, lun uint16, id byte) spc.RODInfo {
	r.t.Helper()
	cdb := make([]byte, 16)
	cdb[0], cdb[1], cdb[5], cdb[12] = byte(spc.OpThirdPartyIn), spc.SARODTokenInfo, id, 4
	i, err := spc.ParseRODInfo(r.on(n, lun, cdb, nil, 1024).good().data)
	if err != nil {
		r.t.Fatal(err)
	}
	return i
}

// overwritten has n write where each piece begins right away, and sees to it that it stays.
func (r *rig) overwritten(n *Nexus) {
	r.t.Helper()
	r.dev.lookup(0).disk.(*faulty.Device).SetRules()
	mine := bytes.Repeat([]byte{0xA5}, 4096)
	for i := range uint64(copyPieces) {
		r.on(n, 0, spc.AppendWrite(nil, i<<11, 8, true), mine, 0).good()
	}
	time.Sleep(time.Hour) // whatever goes on behind this
	for i := range uint64(copyPieces) {
		if got := r.on(n, 0, spc.AppendRead(nil, i<<11, 8, false), nil, 4096).good().data; !bytes.Equal(got, mine) {
			r.t.Errorf("piece %d of the copy came after the answer", i)
		}
	}
}

// TestCopiesAreFenced: a copy is no way around a reservation of the unit that it writes to,
// whichever unit its command went to and whether that has ended.
func TestCopiesAreFenced(t *testing.T) {
	for _, kind := range copyKinds {
		t.Run(kind, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := copyRig(t)
				a, b := r.nx[0], r.nx[1]
				r.prout(a, spc.SAProutRegister, 0, 0, keyA).good()
				r.prout(b, spc.SAProutRegister, 0, 0, keyB).good()
				c := r.startCopy(b, kind)
				time.Sleep(1500 * time.Millisecond) // the second piece is under way
				r.prout(a, spc.SAProutPreemptAbort, spc.PRWriteExclusive, keyA, keyB).good()
				r.overwritten(a)
				if got := r.finish(c); kind == "EXTENDED COPY" {
					got.sense(spc.KeyAborted, 0)
				} else if kind == "WRITE USING TOKEN" {
					got.is(spc.StatusTaskAborted)
				}
				for _, lu := range r.dev.LUs() {
					if n := lu.vol.Copies(); n != 0 {
						t.Errorf("LUN %d still knows %d copies", lu.lun, n)
					}
				}

				// Without ABORT what is under way may end, and nothing follows.
				r = copyRig(t)
				a, b = r.nx[0], r.nx[1]
				r.prout(a, spc.SAProutRegister, 0, 0, keyA).good()
				c = r.startCopy(b, kind)
				time.Sleep(1500 * time.Millisecond) // the second piece is under way
				r.prout(a, spc.SAProutReserve, spc.PRWriteExclusive, keyA, 0).good()
				time.Sleep(time.Second) // the piece under way
				r.overwritten(a)
				if got := r.finish(c); kind == "EXTENDED COPY" || kind == "WRITE USING TOKEN" {
					got.sense(spc.KeyCopyAborted, spc.ASCCopyTargetGone)
				} else if i := r.rodInfo(b, 0, 2); i.Status != spc.CopyFailed {
					t.Errorf("the state of the copy: %#x", i.Status)
				}
			})
		})
	}
	// RESERVE fences as well.
	synctest.Test(t, func(t *testing.T) {
		r := copyRig(t)
		a, b := r.nx[0], r.nx[1]
		c := r.startCopy(b, "WRITE USING TOKEN")
		time.Sleep(1500 * time.Millisecond)
		r.on(a, 0, []byte{0x16, 0, 0, 0, 0, 0}, nil, 0).good()
		time.Sleep(time.Second) // the piece under way
		r.overwritten(a)
		r.finish(c).sense(spc.KeyCopyAborted, spc.ASCCopyTargetGone)
	})
	// So is the unit that it reads from fenced.
	synctest.Test(t, func(t *testing.T) {
		r := copyRig(t)
		a, b := r.nx[0], r.nx[1]
		c := r.startCopy(b, "WRITE USING TOKEN")
		time.Sleep(1500 * time.Millisecond) // the second piece is under way
		for _, sa := range []byte{spc.SAProutRegister, spc.SAProutReserve} {
			p := spc.PersistOut{ActionKey: keyA}
			if sa == spc.SAProutReserve {
				p = spc.PersistOut{Key: keyA}
			}
			list := p.Append(nil)
			r.on(a, 1, spc.AppendPersistOut(nil, sa, spc.PRExclusiveAccess, uint32(len(list))), list, 0).good()
		}
		r.finish(c).sense(spc.KeyCopyAborted, spc.ASCCopyTargetGone)
	})
}

// TestAbortedCopies: whatever ends the commands of an initiator on a unit ends its copies
// that touch the unit, and nothing of them follows its answer.
func TestAbortedCopies(t *testing.T) {
	type how struct {
		name string
		lun  uint16
		by   int // nexus
		f    TMF // 0: the nexus ends
	}
	for _, kind := range copyKinds {
		for _, h := range []how{
			{"ABORT TASK SET", 0, 1, AbortTaskSet}, {"CLEAR TASK SET", 0, 0, ClearTaskSet}, {"LOGICAL UNIT RESET", 0, 0, LogicalReset},
			{"TARGET WARM RESET", 0, 0, TargetWarmReset}, {"I_T NEXUS RESET", 0, 1, NexusReset},
			{"ABORT TASK SET where it reads", 1, 1, AbortTaskSet}, {"LOGICAL UNIT RESET where it reads", 1, 0, LogicalReset},
			{"the nexus ends", 0, 1, 0},
		} {
			if h.lun == 1 && kind == "zero token, IMMED" {
				continue // it reads nothing
			}
			t.Run(fmt.Sprint(kind, "/", h.name), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					r := copyRig(t)
					r.nexus(3)
					c := r.startCopy(r.nx[1], kind)
					time.Sleep(1500 * time.Millisecond) // the second piece is under way
					if h.f != 0 {
						if x := r.manage(r.nx[h.by], h.f, h.lun, nil); x != TMFComplete {
							t.Errorf("response %v", x)
						}
					} else {
						r.dev.CloseNexus(r.nx[1])
						r.nx = append(r.nx[:1], r.nx[2:]...)
					}
					third := r.nx[len(r.nx)-1]
					for range 2 { // unit attentions
						r.on(third, 0, spc.AppendTestUnitReady(nil), nil, 0)
					}
					r.overwritten(third)
					r.finish(c)
					r.close()
					r.nx = nil
				})
			})
		}
	}
	for _, kind := range copyKinds[:2] {
		synctest.Test(t, func(t *testing.T) {
			r := copyRig(t)
			c := r.startCopy(r.nx[1], kind)
			lun := uint16(0)
			if kind == "EXTENDED COPY" {
				lun = 1
			}
			time.Sleep(1500 * time.Millisecond) // the second piece is under way
			if x := r.manage(r.nx[1], AbortTask, lun, &c.Task); x != TMFComplete {
				t.Errorf("%s: ABORT TASK: %v", kind, x)
			}
			r.overwritten(r.nx[0])
			r.finish(c).is(spc.StatusTaskAborted)
		})
	}
}
