package scsi

import (
	"testing"
	"testing/synctest"
	"time"

	"softiser/internal/spc"
)

// TestStateOfCopies: RECEIVE ROD TOKEN INFORMATION tells a copy that runs (11h; 12h behind its
// status) from one that was done (01h), failed (02h) or was terminated (60h: SPC-4 table
// 275), and when to ask again.
func TestStateOfCopies(t *testing.T) {
	for _, kind := range []string{"WRITE USING TOKEN", "WRITE USING TOKEN, IMMED", "zero token, IMMED"} {
		for end, want := range map[string]byte{"done": 0x01, "fenced": 0x02, "PREEMPT AND ABORT": 0x60, "CLEAR TASK SET": 0x60, "LOGICAL UNIT RESET": 0x60} {
			t.Run(kind+"/"+end, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					r := copyRig(t)
					a, b := r.nx[0], r.nx[1]
					r.prout(a, spc.SAProutRegister, 0, 0, keyA).good()
					r.prout(b, spc.SAProutRegister, 0, 0, keyB).good()
					c := r.startCopy(b, kind)
					time.Sleep(1500 * time.Millisecond) // the second piece is under way
					cdb := make([]byte, 16)
					cdb[0], cdb[1], cdb[5], cdb[12] = byte(spc.OpThirdPartyIn), spc.SARODTokenInfo, 2, 4
					state := func() (status, delay byte) {
						t.Helper()
						got := r.on(b, 0, cdb, nil, 1024)
						for got.sd.Key == spc.KeyUnitAttention {
							got = r.on(b, 0, cdb, nil, 1024)
						}
						d := got.good().data
						if d[4] != spc.SAWriteUsingToken {
							t.Errorf("it answers for service action %#x", d[4])
						}
						return d[5], d[11]
					}
					runs := byte(0x12)
					if kind == "WRITE USING TOKEN" {
						runs = 0x11
					}
					if s, delay := state(); s != runs || delay == 0 {
						t.Errorf("it runs: %#x, ask again after %d ms", s, delay)
					}
					switch end {
					case "fenced":
						r.prout(a, spc.SAProutReserve, spc.PRWriteExclusive, keyA, 0).good()
					case "PREEMPT AND ABORT":
						r.prout(a, spc.SAProutPreemptAbort, spc.PRWriteExclusive, keyA, keyB).good()
					case "CLEAR TASK SET":
						r.manage(a, ClearTaskSet, 0, nil)
					case "LOGICAL UNIT RESET":
						r.manage(a, LogicalReset, 0, nil)
					}
					r.finish(c)
					time.Sleep(time.Minute)
					if s, delay := state(); s != want || delay != 0 {
						t.Errorf("%s: %#x, want %#x, ask again after %d ms", end, s, want, delay)
					}
				})
			})
		}
	}
}
