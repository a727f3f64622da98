package scsi

import (
	"bytes"
	"testing"
	"testing/synctest"
	"time"

	spc "softiser/internal/scsi"

	"softiser/blockdev/faulty"
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
		slow.SetRules(faulty.Rule{Op: faulty.Discard, Delay: retryAfter / 4})
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
		time.Sleep(retryAfter / 2) // FORMAT UNIT ends
		synctest.Wait()
		if r.dev.lookup(0).gate.Load()&gateFormat != 0 {
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

// TestTimerOfAnotherCommand: the timer that bounds how long an exclusive command waits
// ends that command only. It may have begun to fire when the command is granted its
// blocks or aborted, and come to its unit's lock when the slot has another command.
func TestTimerOfAnotherCommand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Config{}, LUConfig{Volume: newNamed(t, "a")}, LUConfig{LUN: 1, Volume: newNamed(t, "b")})
		a, cdb := r.nx[0], spc.AppendCompareAndWrite(nil, 0, 8, false)
		blocked := func(lun uint16, c *call) (*call, *call) {
			w := r.start(a, lun, spc.AppendWrite(nil, 0, 8, false), make([]byte, 4096), 0, held)
			if c == nil {
				c = r.start(a, lun, cdb, compareList(fill(4096, 1)), 0)
			} else {
				r.again(c, a, lun, cdb, compareList(fill(4096, 1)))
			}
			synctest.Wait()
			return w, c
		}
		w0, c := blocked(0, nil)
		late := c.Task.hold.order
		r.manage(a, AbortTask, 0, &c.Task)
		r.finish(c)
		for _, lun := range []uint16{1, 0} {
			w := w0
			if lun == 1 {
				w, c = blocked(1, c)
			} else {
				r.again(c, a, 0, cdb, compareList(fill(4096, 1)))
				synctest.Wait()
			}
			r.dev.lookup(0).expire(late)
			synctest.Wait()
			if c.over() {
				t.Fatalf("the timer of an earlier command has ended one of LUN %d: %v", lun, c.Status)
			}
			r.port.release(w)
			r.finish(w).good()
			r.finish(c).good()
		}
		r.close()
		r.nx = nil
	})
}
