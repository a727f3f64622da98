package roce

import (
	"errors"
	"fmt"
	"io"
	"time"

	"softiser/rdma/internal/roce/cm"
	"softiser/rdma/internal/verbs"
)

// life is how far a queue pair has come between its connection and its end; Mu guards it.
type life struct {
	conn    *cm.Conn    // nil for datagrams, and for a connection made without the manager
	open    bool        // requests may be sent: the peer is ready to receive
	heard   bool        // a packet of the peer has come, which shows that it is ready
	rtu     bool        // the peer's Ready To Use has come, by the manager
	told    bool        // the manager and the owner know that the peer is ready
	ending  bool        // the handshake of the end has begun
	more    bool        // the pump has stopped because it is somebody else's turn
	closing *time.Timer // bounds the end: what is queued before, then its handshake
}

// endTimeout is how long the peer may take to answer the end of a connection.
const endTimeout = 3 * time.Second

// transport is what differs between the types of queue pairs (RC, UC, UD), as base calls it. The queue
// pair is connected, and Mu is held around all but teardown.
type transport interface {
	settleLocked()       // sends what there is to send, completes what has ended
	failedLocked()       // ends the queue pair if the peer, or its silence, has ended a machine
	dueLocked() bool     // there is something to send
	drainedLocked() bool // the end is to begin that was asked for, and all is done
	teardown()
}

// idleLocked is an error unless the queue pair can be connected.
func (b *base) idleLocked() error {
	if st := b.StateLocked(); st != verbs.StateIdle || b.Closed.Load() {
		return fmt.Errorf("%w: queue pair %d is in state %v, which has to be Idle", verbs.ErrState, b.Num, st)
	}
	return nil
}

// hooks are what the connection manager tells a queue pair. forgotten is called once,
// when the manager is done with the connection.
func (b *base) hooks(forgotten func()) cm.Hooks {
	return cm.Hooks{
		Established: func() {
			b.Mu.Lock()
			b.rtu = true
			b.Mu.Unlock()
			b.kick()
		},
		Ended: b.ended,
		Gone:  forgotten,
	}
}

// begin starts the loop of a queue pair that has been attached, or of what is left of one
// that has failed meanwhile.
func (b *base) begin(conn *cm.Conn, err error) error {
	b.Mu.Lock()
	b.conn = conn
	if err != nil {
		b.FailLocked(err)
	}
	b.Mu.Unlock()
	go b.loop()
	b.kick() // for what has happened meanwhile
	if err != nil {
		b.wg.Wait()
	}
	return err
}

// loop is the goroutine of a queue pair: what may take its time, or calls somebody back.
func (b *base) loop() {
	defer b.wg.Done()
	for range b.wake {
		b.dispatch()
		if b.step() {
			break
		}
	}
	b.self.teardown()
}

// wakeLocked wakes the loop if there is something for it.
func (b *base) wakeLocked(drained bool) {
	if b.more || b.heard && !b.told || drained || b.SendCQ.Due() || b.RecvCQ.Due() {
		b.kick()
	}
}

// step does what is due of a queue pair's life; true when it is over.
func (b *base) step() bool {
	b.Mu.Lock()
	if b.Dying.Load() {
		b.Mu.Unlock()
		return true
	}
	conn, due := b.conn, b.self.dueLocked()
	if b.readyLocked() && !b.told {
		b.told = true
		first := !b.open
		b.open, due = true, true
		b.Mu.Unlock()
		if conn != nil {
			conn.Heard()
		}
		if first {
			b.Owner().Event(verbs.EventEstablished)
		}
		b.Mu.Lock()
	}
	if due && !b.Dying.Load() {
		b.self.settleLocked()
	}
	end := b.self.drainedLocked()
	switch {
	case end && conn == nil: // there is nobody to tell
		b.FailLocked(nil)
		end = false
	case end:
		b.ending = true
		b.stopClosingLocked()
		b.closing = time.AfterFunc(endTimeout, func() {
			b.Fail(fmt.Errorf("%w: the peer did not answer the end of the connection within %v", verbs.ErrTimeout, endTimeout))
		})
	}
	b.Mu.Unlock()
	if end {
		_ = conn.Disconnect() // its hook says what came of it
	}
	return false
}

// readyLocked says whether the peer is ready: it has said so, or sent something.
func (b *base) readyLocked() bool { return b.heard || b.rtu }

// emptyLocked says whether the end was asked for, has not begun, and waits for no request.
func (b *base) emptyLocked() bool {
	return b.StateLocked() == verbs.StateClosing && !b.ending && b.SQ.Empty()
}

func (b *base) stopClosingLocked() {
	if b.closing != nil {
		b.closing.Stop()
	}
}

// ended is the manager's word that the connection is over.
func (b *base) ended(err error) {
	b.Mu.Lock()
	defer b.Mu.Unlock()
	if !b.Connected {
		return
	}
	b.self.failedLocked() // what the peer said just before
	switch closing := b.StateLocked() == verbs.StateClosing; {
	case closing && (err == nil || errors.Is(err, cm.ErrDisconnected)):
		err = nil
	case errors.Is(err, cm.ErrDisconnected):
		err = io.EOF
	}
	b.FailLocked(err)
}

// announceEnd tells the manager and the owner that the connection is over.
func (b *base) announceEnd() {
	b.Mu.Lock()
	conn, err := b.conn, b.Err
	b.Mu.Unlock()
	if conn != nil {
		_ = conn.Disconnect() // the peer may have said so before us
		conn.Forget()
	}
	b.Owner().Ended(err)
}

// flushUnlock completes what is left in the queues, releases Mu, and tells everybody that this
// was the end.
func (b *base) flushUnlock() {
	b.FlushSendsLocked()
	var r verbs.RecvBuf
	b.FlushRecvsLocked(&r)
	hook := b.SetState(verbs.StateError)
	b.Mu.Unlock()
	hook()
	b.SendCQ.Dispatch()
	b.RecvCQ.Dispatch()
	b.Owner().Event(verbs.EventDisconnected)
	close(b.Done)
}
