package iscsi

import (
	"io"

	"softiser/internal/iscsi"
)

// This file has the up-calls of the datamover that bring no PDU (iscsi.Upper).

// DataCompletionNotify implements iscsi.Upper.
func (c *conn) DataCompletionNotify(x *iscsi.Transfer) {
	k := x.User.(*task)
	var (
		told bool // the device server is to hear that its DataOut has ended
		err  error
	)
	s := k.session()
	s.mu.Lock()
	if x == &k.in.x {
		k.putDoneLocked()
	} else {
		told, err = k.getDoneLocked()
		told = told && k.state != taskEnded
	}
	done := k.doneLocked()
	s.mu.Unlock()
	if done {
		k.settle()
	}
	if told {
		k.scsi.DataOutDone(err)
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
