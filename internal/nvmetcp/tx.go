package nvmetcp

import (
	"encoding/binary"
	"fmt"

	"softiser/internal/crc32c"
	"softiser/internal/pdustream"
)

// outPDU is a PDU in the transmit queue.
//
//	Head: header, header digest, padding │ Data (by reference) │ Tail: data digest
type outPDU struct {
	pdustream.PDU[outPDU] // Head is backed by inline

	inline [TermLen + MaxTermData]byte
	list   [][]byte // segments of Data; its array is kept
	tail   [DigestLen]byte
	then   notice   // told when this PDU has gone; nil: nobody
	last   *command // a controller's: whose last data it has, as long as command.put is this
}

// notice is told that a PDU has gone, or never will, with conn.mu held.
type notice interface{ goneLocked() }

// seal completes a PDU just before its first byte goes out. It reports false if the
// data cannot be read.
func (p *outPDU) seal() bool {
	h := (*CH)(p.Head)
	if h.Flags()&FlagHDGST != 0 {
		p.Head = binary.LittleEndian.AppendUint32(p.Head, crc32c.Update(0, p.Head))
	}
	if p.Data.Len() == 0 {
		return true
	}
	for len(p.Head) < h.PDO() {
		p.Head = append(p.Head, 0)
	}
	if h.Flags()&FlagDDGST != 0 {
		crc, ok := p.Data.Checksum(0)
		if !ok {
			return false
		}
		p.Tail = binary.LittleEndian.AppendUint32(p.tail[:0], crc)
	}
	return true
}

// transmitter is the half of a connection that sends. It implements pdustream.Sender.
// Guarded by conn.mu, which the callers of its methods hold.
type transmitter struct {
	pdustream.Transmitter[outPDU]
	c *conn
}

func (t *transmitter) init(c *conn) {
	t.c = c
	t.Init(c.sk, t, &c.mu, &c.cond)
}

// alloc returns an empty PDU.
func (t *transmitter) alloc() *outPDU {
	p := t.Spare()
	if p == nil {
		p = &outPDU{}
	}
	p.Head = p.inline[:0]
	return p
}

func (t *transmitter) push(p *outPDU) { t.Push(&p.PDU, p) }

// Push transmits what is queued.
func (c *conn) Push() { c.tx.Turn(pdustream.PushBytes) }

// handOver gives the queue to the transmit goroutine, once the connection is started.
func (t *transmitter) handOver() {
	if t.c.started {
		t.HandOver()
	}
}

// Due implements pdustream.Sender. Of a connection that has ended, too: those wait for the
// end of what is queued whose memory it has.
func (t *transmitter) Due() bool {
	return !t.Empty() || t.c.st == stateClosing && t.c.fin.Due()
}

// Open implements pdustream.Sender.
func (t *transmitter) Open() bool { return t.c.st != stateDead && !t.c.park.Load().silent() }

// Pick implements pdustream.Sender: what is queued is sent.
func (t *transmitter) Pick(*outPDU) bool { return true }

// Seal implements pdustream.Sender.
func (t *transmitter) Seal(p *outPDU) bool { return p.seal() }

// Gone implements pdustream.Sender.
func (t *transmitter) Gone(p *outPDU, _ bool) {
	if p.then != nil {
		p.then.goneLocked()
	}
	if p.last != nil && p.last.put == p {
		p.last.put = nil // sent: the response can no longer be folded into this PDU
	}
	clear(p.list)
	*p = outPDU{list: p.list[:0]}
}

// Settle implements pdustream.Sender.
func (t *transmitter) Settle() bool {
	if t.c.st == stateDead {
		t.Purge()
	}
	return t.c.role.settleLocked()
}

// Drained implements pdustream.Sender: FIN follows the last PDU of a connection that is
// closing.
func (t *transmitter) Drained() bool {
	c := t.c
	if c.st != stateClosing || !c.fin.Due() {
		return true
	}
	return c.fin.Send(c.sk, c.linger)
}

// Fail implements pdustream.Sender.
func (t *transmitter) Fail(err error) { t.c.failLocked(fmt.Errorf("nvmetcp: %w", err)) }
