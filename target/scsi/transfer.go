package scsi

import (
	"math"

	"softiser/internal/segs"
	"softiser/internal/spc"
	"softiser/target/volume"
)

// transfer is the data of a task on its way: what the port is given, and the pool memory
// that it comes from or goes to.
type transfer struct {
	t        *Task
	segs     [][]byte    // scratch for DataIn and DataOut; keeps its array
	buf      []byte      // pooled buffer
	reserved int         // bytes of Config.Staging that it counts for
	cont     func(*Task) // what runs when DataOut has completed
}

// stageFree is the longest staging buffer that is not counted, bytes.
const stageFree = 8 << 10

// stage is get for n bytes that the initiator is to fill, counted against Config.Staging,
// which all initiators share. It reports false when that has no room. Up to stageFree bytes
// are not counted: over iSER, immediate data that has to be joined with the rest of a WRITE
// is no longer than that, and the command window bounds how many such buffers there are.
func (d *transfer) stage(n int) bool {
	d.put()
	if n > stageFree {
		if !d.t.dev.cfg.Staging.Reserve(n) {
			return false
		}
		d.reserved = n
	}
	d.get(n)
	return true
}

// get lends the task a buffer of at least n bytes, in buf with its full length.
func (d *transfer) get(n int) []byte {
	d.put()
	d.buf = d.t.dev.bufs.Get(n)
	return d.buf
}

// put gives the buffer back.
func (d *transfer) put() {
	t := d.t
	if d.buf != nil {
		t.dev.bufs.Put(d.buf)
		d.buf = nil
		t.dev.cfg.Staging.Unreserve(d.reserved)
		d.reserved = 0
	}
}

// fetch asks for Data-Out at offset off of the initiator's buffer into segs
// and continues with cont.
func (d *transfer) fetch(off uint32, cont func(*Task)) {
	t := d.t
	d.cont = cont
	port, via := t.Port, t.Port.Via() // the task may have ended when DataOut returns
	t.Op.Stamp(volume.Leased)
	if err := port.DataOut(t, off, d.segs); err != nil {
		t.fail(spc.KeyAborted, spc.ASCDataPhase)
		return
	}
	// An abort that came before DataOut found nothing to cancel. From here on
	// the task may have ended; cancelling then is a no-op.
	if t.Aborted() {
		port.Cancel(t, via)
	}
}

// fetchParam brings n bytes of parameter list and continues with cont, which
// finds them in buf or, when all of them came with the command, in place; see
// param. A transfer shorter than the CDB says is an error (5/0E/03).
func (d *transfer) fetchParam(n int, cont func(*Task)) {
	t := d.t
	t.Wanted = uint32(n)
	t.n = int64(n)
	if uint32(n) > t.OutLen {
		t.illegal(spc.ASCInvalidFieldInIU)
		return
	}
	if len(t.Arrived) >= n {
		cont(t)
		return
	}
	if !d.stage(n) {
		t.status(spc.StatusBusy)
		return
	}
	d.buf = d.buf[:n]
	d.segs = append(d.segs[:0], d.buf)
	d.fetch(0, cont)
}

// param returns the parameter list that fetchParam brought.
func (d *transfer) param() []byte {
	t := d.t
	if d.buf != nil {
		return d.buf[:t.n]
	}
	return t.Arrived[:t.n]
}

// send gives segs to the port as all of the Data-In.
func (d *transfer) send() bool {
	t := d.t
	n := uint32(segs.Total(d.segs))
	t.Op.Stamp(volume.Leased)
	if err := t.Port.DataIn(t, 0, d.segs); err != nil {
		t.fail(spc.KeyAborted, spc.ASCDataPhase)
		return false
	}
	t.Op.Stamp(volume.Placed)
	t.Sent = n
	return true
}

// wantOut sets how much Data-Out the command has and refuses it when the
// initiator sends less.
func wantOut(t *Task, n int64) bool {
	t.Wanted = uint32(min(n, math.MaxUint32)) // VERIFY of more than 4 GiB
	if n > int64(t.OutLen) {
		t.illegal(spc.ASCInvalidFieldInIU)
		return false
	}
	return true
}
