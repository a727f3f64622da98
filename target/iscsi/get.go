package iscsi

import (
	"errors"
	"time"

	"softiser/internal/iscsi"
	"softiser/internal/segs"
	"softiser/target/scsi"
)

// getState is the Data-Out side of a task: the running DataOut.
type getState struct {
	x iscsi.Transfer
	pieces
	running bool
	parked  bool          // it waits for the task to be reassigned
	since   time.Duration // since Frontend.epoch
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
	out.next(x, k.conn().limits.MaxTransfer)
	n := int(x.Len)
	x.Unsolicited = k.scsi.UnsolicitedLen
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
