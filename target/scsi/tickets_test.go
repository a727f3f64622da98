package scsi

import (
	"bytes"
	"testing"
	"testing/synctest"
	"time"

	"softiser/internal/spc"

	"softiser/blockdev/faulty"
	"softiser/target/volume"
)

// again uses the slot of a call that has ended for another command, as the session
// layer does.
func (r *rig) again(c *call, n *Nexus, lun uint16, cdb, out []byte) {
	c.CDB, c.LUN, c.Attr, c.Nexus = cdb, spc.EncodeLUN(lun), AttrSimple, n
	c.in, c.out, c.InLen, c.OutLen = nil, out, 0, uint32(len(out))
	c.done, c.ended = make(chan struct{}), 0
	r.port.mu.Lock()
	r.port.calls[&c.Task] = c
	r.port.mu.Unlock()
	r.dev.Execute(&c.Task)
}

func (c *call) over() bool {
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

// compareList is what COMPARE AND WRITE of zeroes by data has as its Data-Out.
func compareList(data []byte) []byte { return append(make([]byte, len(data)), data...) }

// TestFormatEndsInItsOwnTaskOnly: the end of a FORMAT UNIT whose task was aborted says
// nothing to the command that has its slot by then, though it waits as well, in
// another unit, and is as old there as the other was in its own.
func TestFormatEndsInItsOwnTaskOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := faulty.New(newNamed(t, "slow"), 1)
		other := newNamed(t, "other")
		r := newRig(t, Config{}, LUConfig{Volume: slow}, LUConfig{LUN: 1, Volume: other})
		a := r.nx[0]
		r.do(spc.AppendTestUnitReady(nil), nil, 0).good() // the FORMAT UNIT is the second command of its unit
		slow.SetRules(faulty.Rule{Op: faulty.Discard, Delay: volume.RetryAfter / 4})
		c := r.start(a, 0, formatUnit, nil, 0)
		synctest.Wait()
		if x := r.manage(a, AbortTask, 0, &c.Task); x != TMFComplete {
			t.Fatalf("ABORT TASK: %v", x)
		}
		r.finish(c)

		w := r.start(a, 1, spc.AppendWrite(nil, 0, 8, false), make([]byte, 4096), 0, held)
		want := fill(4096, 5)
		r.again(c, a, 1, spc.AppendCompareAndWrite(nil, 0, 8, false), compareList(want))
		synctest.Wait()
		time.Sleep(volume.RetryAfter / 2) // FORMAT UNIT ends
		synctest.Wait()
		if r.dev.lookup(0).gates()&volume.Formatting != 0 {
			t.Fatal("FORMAT UNIT goes on")
		}
		if c.over() {
			t.Errorf("the end of FORMAT UNIT has ended COMPARE AND WRITE in another unit: %v", c.Status)
		}
		r.port.release(w)
		r.finish(w).good()
		r.finish(c).good()
		if got := r.on(a, 1, spc.AppendRead(nil, 0, 8, false), nil, 4096).good().data; !bytes.Equal(got, want) {
			t.Error("GOOD for a COMPARE AND WRITE that was not carried out")
		}
		r.close()
		r.nx = nil
	})
}
