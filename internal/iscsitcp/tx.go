package iscsitcp

import (
	"fmt"

	"softiser/internal/iscsi"
	"softiser/internal/pdustream"
)

// transmitter is the half of a connection that sends. It implements pdustream.Sender.
// Guarded by Conn.mu, which the callers of its methods hold, except where noted.
type transmitter struct {
	pdustream.Transmitter[outPDU]
	c        *Conn
	doneHead *iscsi.Transfer // completed, up-calls are due
	doneTail *iscsi.Transfer
	again    int          // PDUs in the queue that are sent once more
	unsent   iscsi.Unsent // answers in the queue
}

func (t *transmitter) init(c *Conn) {
	t.c = c
	t.Init(c.sk, t, &c.mu, &c.cond)
}

// alloc returns an empty PDU with its header in place.
func (t *transmitter) alloc(b *iscsi.BHS) *outPDU {
	p := t.Spare()
	if p == nil {
		p = &outPDU{}
	}
	p.Head = append(p.inline[:0], b[:]...)
	return p
}

func (t *transmitter) push(p *outPDU) { t.Push(&p.PDU, p) }

// done queues a completed transfer for its up-call.
func (t *transmitter) done(x *iscsi.Transfer) {
	x.Own.Next = nil
	if t.doneTail == nil {
		t.doneHead = x
	} else {
		t.doneTail.Own.Next = x
	}
	t.doneTail = x
}

// purge empties the queue at the end of the connection and returns the transfers
// that have to be completed, err in those that were cut off.
func (t *transmitter) purge(err error) *iscsi.Transfer {
	for p := t.First(); p != nil; p = p.Next() {
		if x := p.xfer; x != nil && p.last {
			if x.Err == nil {
				x.Err = err
			}
			t.done(x)
		}
	}
	t.Purge()
	d := t.doneHead
	t.doneHead, t.doneTail = nil, nil
	return d
}

// Push implements iscsi.Datamover.
func (c *Conn) Push() { c.tx.Turn(pdustream.PushBytes) }

// handOver gives the queue to the transmit goroutine, once the connection is started.
func (t *transmitter) handOver() {
	if t.c.started {
		t.HandOver()
	}
}

// Due implements pdustream.Sender.
func (t *transmitter) Due() bool {
	c := t.c
	return t.Open() && (!t.Empty() || t.doneHead != nil || c.st == iscsi.ConnClosing && c.fin.Due())
}

// Open implements pdustream.Sender.
func (t *transmitter) Open() bool { return t.c.st != iscsi.ConnDead && !t.c.park.silent() }

// Settle implements pdustream.Sender.
func (t *transmitter) Settle() bool {
	c, x := t.c, t.doneHead
	if x == nil {
		return false
	}
	t.doneHead, t.doneTail = nil, nil
	c.mu.Unlock()
	c.complete(x)
	c.mu.Lock()
	return true
}

// Drained implements pdustream.Sender: FIN follows the last PDU of a connection that is
// closing.
func (t *transmitter) Drained() bool {
	c := t.c
	c.park.tell()
	if c.st != iscsi.ConnClosing || !c.fin.Due() {
		return true
	}
	return c.fin.Send(c.sk, c.cfg.Linger)
}

// Fail implements pdustream.Sender.
func (t *transmitter) Fail(err error) { t.c.failLocked(fmt.Errorf("iscsitcp: %w", err)) }

func (c *Conn) digestsLocked() (header, data bool) {
	return c.enabled && c.params.HeaderDigest == iscsi.DigestCRC32C, c.enabled && c.params.DataDigest == iscsi.DigestCRC32C
}

// Pick implements pdustream.Sender: of an aborted transfer nothing begins any more.
func (t *transmitter) Pick(p *outPDU) bool {
	if p.digest {
		p.hd, p.dd = t.c.digestsLocked()
	}
	x := p.xfer
	if x == nil || !x.Own.Aborted {
		return true
	}
	if p.last {
		if x.Err == nil {
			x.Err = iscsi.ErrAborted
		}
		// PDUs that are partly sent still use the memory: the transfer ends with the last of them.
		if q := t.lastOf(x, p); q != nil {
			q.last = true
		} else {
			t.done(x)
		}
	}
	return false
}

// lastOf finds the last PDU of x in front of p.
func (t *transmitter) lastOf(x *iscsi.Transfer, p *outPDU) (last *outPDU) {
	for q := t.First(); q != p; q = q.Next() {
		if q.xfer == x {
			last = q
		}
	}
	return last
}

// Seal implements pdustream.Sender.
func (t *transmitter) Seal(p *outPDU) bool { return p.seal() }

// Gone implements pdustream.Sender.
func (t *transmitter) Gone(p *outPDU, whole bool) {
	if whole {
		if p.payload {
			t.c.stats.payloadOut.Add(uint64(p.Data.Len()))
		}
		if p.task != nil {
			p.task.queued--
		}
		if p.xfer != nil && p.last {
			t.done(p.xfer)
		}
	}
	if p.again {
		t.again--
	}
	t.unsent.Sub(p.cost)
	p.reset()
}
