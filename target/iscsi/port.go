package iscsi

import (
	"errors"

	"softiser/target/scsi"
	"softiser/target/volume"
)

// A task is a scsi.Port: data and status of its command go through it. DataIn is in put.go,
// DataOut in get.go:
//
// READ:   DataIn → PutData … Respond → SCSI Response
// WRITE:  DataOut → copy what has arrived, GetData for the rest → DataOutDone …
//         Respond → SCSI Response

var (
	errTaskAborted = errors.New("target: the task has been aborted")
	errDataOverrun = errors.New("target: data transfer beyond the initiator's buffer")
	errDataOutBusy = errors.New("target: DataOut while another one of the task runs")
)

// Cancel implements scsi.Port: it ends the running DataOut of an aborted task. t.Aborted is
// asked under sess.mu, because the slot may hold another command by now.
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
		// The abort may come from another session, which does not push this connection.
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
