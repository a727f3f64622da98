package iscsi

import (
	"slices"

	"softiser/internal/iscsi"
	"softiser/internal/segs"
	"softiser/target/scsi"
)

// putState is the Data-In side of a task. One Transfer runs at a time, as the
// datamovers want it; a DataIn that finds it busy waits in line.
type putState struct {
	x      iscsi.Transfer
	pieces            // of the running DataIn; segs keeps its array
	busy   bool       // a DataIn is running
	parked bool       // it waits for the task to be reassigned
	line   []putPiece // DataIn calls that wait
}

// putPiece is a DataIn that waits.
type putPiece struct {
	off  uint32
	segs [][]byte
}

// DataIn implements scsi.Port.
func (k *task) DataIn(_ *scsi.Task, off uint32, list [][]byte) error {
	n := segs.Total(list)
	if off > k.scsi.InLen || uint64(n) > uint64(k.scsi.InLen-off) {
		return errDataOverrun
	}
	if n == 0 {
		return nil
	}
	s := k.session()
	s.mu.Lock()
	err := k.dataInLocked(off, list, n)
	s.mu.Unlock()
	return err
}

// dataInLocked is DataIn for a caller that holds sess.mu.
func (k *task) dataInLocked(off uint32, segs [][]byte, n int) error {
	if k.state != taskRunning || k.scsi.Aborted() {
		return errTaskAborted
	}
	if k.in.busy {
		k.in.line = append(k.in.line, putPiece{off, slices.Clone(segs)})
		return nil
	}
	return k.startPutLocked(off, segs, n)
}

// startPutLocked begins a DataIn of n bytes. The caller holds sess.mu.
func (k *task) startPutLocked(off uint32, segs [][]byte, n int) error {
	in := &k.in
	in.off, in.pos, in.len, in.busy = off, 0, n, true
	in.segs = append(in.segs[:0], segs...)
	return k.putLocked()
}

// putLocked gives the next piece of the running DataIn to the datamover. The caller holds sess.mu.
func (k *task) putLocked() error {
	in := &k.in
	x := &in.x
	in.next(x, k.conn().limits.MaxPut)
	n := int(x.Len)
	in.pos += n
	x.Final = in.pos == in.len
	k.moving++
	if err := k.conn().dm.PutData(x); err != nil {
		k.moving--
		if k.session().erl == 2 {
			in.pos -= n
			in.parked = true
			return nil
		}
		in.fail(err)
		return err
	}
	k.conn().counters.bytesOut += uint64(n)
	return nil
}

// unsent reports whether DataIn calls still wait to be given to the datamover.
func (in *putState) unsent() bool { return in.pos < in.len || len(in.line) > 0 }

// putDoneLocked continues after a piece has been sent. The caller holds sess.mu.
func (k *task) putDoneLocked() {
	in := &k.in
	k.moving--
	in.x.Segs = nil
	if in.x.Err != nil && k.session().erl == 2 && k.state == taskRunning {
		// The connection is lost. Its datamover keeps what it was given until the
		// task is reassigned; what follows is parked.
		in.x.Err = nil
	}
	if in.x.Err != nil || k.state != taskRunning { // aborted, if it is not: a response waits for all of the data
		in.pos, in.len, in.line = 0, 0, in.line[:0]
	}
	switch {
	case in.pos < in.len:
		in.fail(k.putLocked())
	case len(in.line) > 0:
		p := in.line[0]
		in.line = in.line[:copy(in.line, in.line[1:])]
		in.fail(k.startPutLocked(p.off, p.segs, segs.Total(p.segs)))
	default:
		in.busy = false
	}
	if k.reply && !in.unsent() {
		k.reply = false
		k.respondLocked()
	}
}

// fail forgets what is still to be sent: the connection is going down, or the task
// has been aborted.
func (in *putState) fail(err error) {
	if err != nil {
		in.busy, in.pos, in.len, in.line = false, 0, 0, in.line[:0]
	}
}
