package iscsi

import (
	"errors"
	"slices"
	"time"

	"softiser/internal/iscsi"
	"softiser/internal/segs"
	"softiser/target/scsi"
	"softiser/target/volume"
)

// This file is the scsi.Port of a task: the way of its data and its status.
//
// READ:   DataIn → PutData … Respond → SCSI Response
// WRITE:  DataOut → copy what has arrived, GetData for the rest → DataOutDone …
//         Respond → SCSI Response

var (
	errTaskAborted = errors.New("target: the task has been aborted")
	errDataOverrun = errors.New("target: data transfer beyond the initiator's buffer")
	errDataOutBusy = errors.New("target: DataOut while another one of the task runs")
)

// putState is the Data-In side of a task. One Transfer runs at a time, as the
// datamovers want it; a DataIn that finds it busy waits in line.
type putState struct {
	x      iscsi.Transfer
	off    uint32     // of what is still to be sent of the running DataIn
	segs   [][]byte   // the running DataIn; keeps its array
	pos    int        // bytes of segs that have been given to x
	len    int        // bytes of segs
	cut    [][]byte   // scratch: the piece of segs in x
	busy   bool       // a DataIn is running
	parked bool       // it waits for the task to be reassigned
	line   []putPiece // DataIn calls that wait
}

type putPiece struct {
	off  uint32
	segs [][]byte
}

// getState is the Data-Out side of a task: the running DataOut.
type getState struct {
	x       iscsi.Transfer
	off     uint32
	segs    [][]byte
	pos     int
	len     int
	cut     [][]byte
	running bool
	parked  bool          // it waits for the task to be reassigned
	since   time.Duration // since Frontend.epoch
}

// cutSegs appends to dst the slices that make up n bytes of segs from pos on.
func cutSegs(dst, segs [][]byte, pos, n int) [][]byte {
	for _, s := range segs {
		if n == 0 {
			break
		}
		if pos >= len(s) {
			pos -= len(s)
			continue
		}
		s = s[pos:]
		pos = 0
		s = s[:min(n, len(s))]
		n -= len(s)
		dst = append(dst, s)
	}
	return dst
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

// dataInLocked is DataIn for who holds sess.mu.
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

// putLocked gives the next piece to the datamover: all of it, unless the connection
// bounds a transfer. The caller holds sess.mu.
func (k *task) putLocked() error {
	in := &k.in
	x := &in.x
	n := in.len - in.pos
	x.Segs = in.segs
	if most := k.conn().limits.MaxTransfer; most > 0 && (n > most || in.pos > 0) {
		n = min(n, most)
		in.cut = cutSegs(in.cut[:0], in.segs, in.pos, n)
		x.Segs = in.cut
	}
	x.Offset, x.Len = in.off, uint32(n)
	in.off += uint32(n)
	in.pos += n
	x.Final = in.pos == in.len
	x.Err = nil
	k.moving++
	if err := k.conn().dm.PutData(x); err != nil {
		k.moving--
		if k.parkPutLocked(n) {
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
	if in.x.Err != nil || k.state == taskAborting {
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

// DataOut implements scsi.Port.
func (k *task) DataOut(_ *scsi.Task, off uint32, list [][]byte) error {
	n := segs.Total(list)
	if off > k.scsi.OutLen || uint64(n) > uint64(k.scsi.OutLen-off) {
		return errDataOverrun
	}
	s := k.session()
	s.mu.Lock()
	if k.state != taskRunning {
		s.mu.Unlock()
		return errTaskAborted
	}
	out := &k.out
	if out.running {
		s.mu.Unlock()
		return errDataOutBusy
	}
	out.off, out.segs, out.pos, out.len, out.running = off, list, 0, n, true
	out.since = s.srv.now()
	k.pins++ // the copy below runs without the lock
	s.mu.Unlock()

	copied := k.copyArrived()

	s.mu.Lock()
	k.pins--
	out.pos += copied
	var err error
	switch {
	case k.state != taskRunning:
		err = errTaskAborted
	case out.pos < out.len:
		if err = k.getLocked(); err == nil {
			s.mu.Unlock()
			return nil
		}
	}
	out.segs, out.running = nil, false
	s.mu.Unlock()
	k.scsi.DataOutDone(err)
	return nil
}

// copyArrived copies the unsolicited bytes into the running DataOut and returns
// how many there were. The device server stages blocks that have such bytes, so
// this never writes to a mapped volume, where a page that cannot be had would be
// a signal instead of an error.
func (k *task) copyArrived() int {
	out := &k.out
	if uint64(out.off) >= uint64(len(k.scsi.Arrived)) {
		return 0
	}
	src, n := k.scsi.Arrived[out.off:], 0
	for _, seg := range out.segs {
		c := copy(seg, src[n:])
		n += c
		if c < len(seg) {
			break
		}
	}
	k.conn().counters.bytesCopied.Add(uint64(n))
	return n
}

// getLocked fetches the next piece of the running DataOut. The caller holds sess.mu.
func (k *task) getLocked() error {
	out := &k.out
	x := &out.x
	n := out.len - out.pos
	x.Segs = out.segs
	if most := k.conn().limits.MaxTransfer; out.pos > 0 || most > 0 && n > most {
		if most > 0 {
			n = min(n, most)
		}
		out.cut = cutSegs(out.cut[:0], out.segs, out.pos, n)
		x.Segs = out.cut
	}
	x.Unsolicited = k.scsi.UnsolicitedLen
	x.Offset, x.Len = out.off+uint32(out.pos), uint32(n)
	x.Err = nil
	k.moving++
	if err := k.conn().dm.GetData(x); err != nil {
		k.moving--
		if k.session().erl == 2 {
			out.parked = true
			return nil
		}
		return err
	}
	out.pos += n
	return nil
}

// getDoneLocked continues after a piece has arrived; it reports whether the running
// DataOut is over. The caller holds sess.mu.
func (k *task) getDoneLocked() (over bool, err error) {
	out := &k.out
	k.moving--
	err = out.x.Err
	out.x.Segs = nil
	if errors.Is(err, iscsi.ErrConnectionLost) && k.session().erl == 2 && k.state == taskRunning {
		out.pos -= int(out.x.Len)
		out.parked = true
		return false, nil
	}
	if err == nil {
		k.conn().counters.bytesIn += uint64(out.x.Len)
		if k.state != taskRunning {
			err = errTaskAborted
		} else if out.pos < out.len {
			if err = k.getLocked(); err == nil {
				return false, nil
			}
		}
	}
	out.segs, out.running = nil, false
	return true, err
}

// Cancel implements scsi.Port: the task has been aborted, its running DataOut is
// to end.
func (k *task) Cancel(t *scsi.Task, via volume.Port) {
	c, ok := via.(*conn)
	if !ok {
		c = k.conn() // error recovery level 2: the slot stays with the session
	}
	s := c.sess
	s.mu.Lock()
	if !c.hasLocked(k) {
		s.mu.Unlock()
		return
	}
	c = k.conn()
	running := t.Aborted() && k.out.running && k.moving > 0
	if running {
		c.dm.AbortTransfer(&k.out.x)
	}
	if t.Aborted() && k.out.parked {
		k.out.segs, k.out.running, k.out.parked = nil, false, false
		s.mu.Unlock()
		k.scsi.DataOutDone(errTaskAborted)
		return
	}
	s.mu.Unlock()
	if running {
		// Whoever aborts may be another session: nobody else pushes this one.
		c.dm.Push()
	}
}

// Respond implements scsi.Port.
func (k *task) Respond(*scsi.Task) {
	s := k.session()
	s.mu.Lock()
	if k.state == taskRunning && k.in.unsent() {
		k.reply = true // behind the data that is still in line
	} else {
		k.respondLocked()
	}
	done := k.doneLocked()
	s.mu.Unlock()
	if done {
		s.cmds.settle(k)
	}
}

// Via implements scsi.Port. At error recovery level 2 the task may go on over another
// connection, and the slot stays with the session.
func (k *task) Via() volume.Port {
	if c := k.conn(); c.sess.erl < 2 {
		return c
	}
	return k
}

// Push implements volume.Port, for Via.
func (k *task) Push() { k.conn().dm.Push() }

// Push implements volume.Port, for task.Via.
func (c *conn) Push() { c.dm.Push() }

// Describe implements scsi.Port.
func (k *task) Describe(c *volume.TracedCommand) {
	s := k.session()
	c.Arrived, c.Wire, c.Session, c.Tag = s.srv.epoch.Add(k.started), s.wire().String(), s.tsih, k.itt
}

// parkPutLocked keeps n bytes of the running DataIn that could not be given to the
// datamover until the task has a connection again. It reports false below error
// recovery level 2. The caller holds sess.mu.
func (k *task) parkPutLocked(n int) bool {
	if k.session().erl < 2 {
		return false
	}
	in := &k.in
	in.pos -= n
	in.off -= uint32(n)
	in.parked = true
	return true
}
