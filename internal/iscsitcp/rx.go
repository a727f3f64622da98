package iscsitcp

import (
	"os"

	"softiser/internal/iscsi"
	"softiser/internal/pdustream"
)

// receiver is the half of a connection that the receive goroutine owns: its place in the
// stream, and the PDU under way. It implements pdustream.Parser.
type receiver struct {
	pdustream.Receiver
	c *Conn

	bhs    iscsi.BHS
	hd, dd bool // digests of this PDU

	// Whose the data is: of a task or a get (owner), or of a PDU for the upper layer (in).
	owner  any // *task, *get or nil
	tag    *r2t
	in     *inPDU
	one    [1][]byte // the buffer of in
	toss   bool      // the header was damaged: what it announced is skipped
	astray bool      // no good header has come since

	end error // why the stream has ended, when it has
}

func (r *receiver) init(c *Conn) {
	r.c = c
	first := iscsi.BHSLen
	if c.role == iscsi.RoleInitiator {
		first = 1 // see stranger
	}
	r.Init(c.sk, r, iscsi.BHSLen, first, pdustream.ReadAhead)
	if c.role == iscsi.RoleInitiator {
		r.Foresee(foresight{c})
	}
}

// receive runs until the connection ends and says why.
func (r *receiver) receive() error {
	for {
		if r.end = r.Run(); !r.stands(r.end) {
			break
		}
	}
	if r.in != nil { // the stream ended in the middle of a PDU
		r.in.pdu.Release()
		r.in = nil
	}
	return r.end
}

// Batch implements pdustream.Parser: it sends what the PDUs of the batch were answered with.
func (r *receiver) Batch() { r.c.tx.Turn(pdustream.RxBytes) }

// Wrong implements pdustream.Parser: the connection ends.
func (r *receiver) Wrong(err error) error { return err }

// awaitReader waits until the peer has read what it made us say, or the connection
// is ending.
func (r *receiver) awaitReader() {
	c := r.c
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.st == iscsi.ConnFull && !c.tx.unsent.Room() {
		c.cond.Wait()
	}
}

// Ahead implements pdustream.Parser. While data for tasks is expected it is only the next
// header, so that what follows need not be copied; while the stream may change its form,
// nothing behind the PDU. A connection that has ended expects nothing, however much its
// peer goes on sending: a socket that is never empty would hide the deadlines that end the
// receive goroutine.
func (r *receiver) Ahead() (int, error) {
	c := r.c
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.st == iscsi.ConnDead:
		return 0, c.endError()
	case c.fin.Late():
		return 0, os.ErrDeadlineExceeded
	case c.cfg.Upgradable && c.st == iscsi.ConnLogin:
		return r.NextHeader(0), nil
	case c.tasks.direct || !c.gets.running.Empty():
		next := iscsi.BHSLen
		if r.hd {
			next += iscsi.DigestLen
		}
		return r.NextHeader(next), nil
	}
	return pdustream.Everything, nil
}
