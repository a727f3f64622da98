package iscsi

import (
	"io"

	"softiser/internal/iscsi"
)

// This file has the up-calls of the datamover that bring no PDU (iscsi.Upper).

// DataCompletionNotify implements iscsi.Upper. It takes the session's lock once for all of the
// transfers, and settles slots and calls the device server after releasing it.
func (c *conn) DataCompletionNotify(x *iscsi.Transfer) {
	var (
		done *task           // slots that nothing uses any more, by task.next
		told *iscsi.Transfer // DataOuts that are over, for DataOutDone
	)
	s, last := c.sess, &told
	s.mu.Lock()
	for x != nil {
		next := x.Unlink() // what has ended may go on with the next piece
		k := x.User.(*task)
		if x == &k.in.x {
			k.putDoneLocked()
		} else if over, err := k.getDoneLocked(); over && k.state != taskEnded {
			x.Err = err
			*last, last = x, &x.Own.Next
		}
		if k.doneLocked() {
			k.next, done = done, k
		}
		x = next
	}
	s.mu.Unlock()
	if done != nil {
		s.cmds.settle(done)
	}
	for told != nil {
		x, told = told, told.Unlink()
		x.User.(*task).scsi.DataOutDone(x.Err)
	}
}

// ConnectionTerminateNotify implements iscsi.Upper.
func (c *conn) ConnectionTerminateNotify(err error) {
	was := c.state.get()
	c.state.advance(connClosed)
	c.acks.end(func(ackWait) bool { return true }) // no acknowledgement will come any more
	c.timer.Stop()
	c.place.Done()
	if c.sess != nil {
		if was == connFull && (err == nil || err == io.EOF) {
			err = errNoLogout
		}
		c.sess.conns.leave(c, err, was)
	} else {
		c.login.ended(err)
	}
	c.srv.dropConn(c)
	close(c.ended)
}
