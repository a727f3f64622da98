package nvmetcp

import (
	"encoding/binary"
	"fmt"
	"os"

	"softiser/internal/crc32c"
	"softiser/internal/pdustream"
)

// receiver is the receive goroutine's own: its place in the stream, and the PDU under way.
// It implements pdustream.Parser.
type receiver struct {
	pdustream.Receiver
	c      *conn
	layout Layout
	header [CapsuleCmdLen]byte // read when Unread returns nil
	setup  bool                // the peer's ICReq is what comes first
}

func (r *receiver) init(c *conn, first, ahead int) {
	r.c = c
	r.Init(c.sk, r, CHLen, first, ahead)
}

// Begin implements pdustream.Parser: it looks at the common header.
func (r *receiver) Begin(b []byte) (int, error) {
	if r.setup {
		return ICLen, nil
	}
	if r.c.park.Load() != nil && r.c.stops() {
		return 0, errParked
	}
	h := (*CH)(b)
	l := r.c.role.limits(h.Type())
	if t := h.Type(); t == TypeICReq || t == TypeICResp {
		return 0, &Fault{FESSequence, 0, fmt.Errorf("nvmetcp: a second %s", t)}
	}
	var f *Fault
	if r.layout, f = h.Check(&l); f != nil {
		return 0, f
	}
	return max(r.layout.HLen+r.layout.Digest, r.layout.PDO), nil
}

// Header implements pdustream.Parser.
func (r *receiver) Header(b []byte) error {
	if f := r.readHeader(b); f != nil {
		return f
	}
	return nil
}

func (r *receiver) readHeader(b []byte) *Fault {
	if r.setup {
		f := r.c.first(b)
		r.setup = f != nil
		return f
	}
	l := &r.layout
	if l.Digest > 0 {
		want := binary.LittleEndian.Uint32(b[l.HLen:])
		if got := crc32c.Update(0, b[:l.HLen]); got != want {
			return &Fault{FESHeaderDigest, want, fmt.Errorf("nvmetcp: header digest %08x, the header's is %08x", want, got)}
		}
	}
	copy(r.header[:], b[:l.HLen])
	r.Body(int(l.Data), l.DDigest)
	t := (*CH)(b).Type()
	if t == TypeH2CTermReq || t == TypeC2HTermReq {
		r.terminated()
		return nil
	}
	return r.c.role.dispatch(t)
}

// terminated ends the connection as the peer says.
func (r *receiver) terminated() {
	c := r.c
	q, err := ParseTermReq(r.header[:TermLen])
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil {
		err = fmt.Errorf("nvmetcp: the other end closes the connection: %s (%d)", q.FES, q.FEI)
	}
	c.failLocked(err)
}

// End implements pdustream.Parser; tail is the data digest.
func (r *receiver) End(tail []byte) error {
	r.c.role.finish(len(tail) == 0 || r.Intact(tail))
	return nil
}

// Claim implements pdustream.Parser.
func (r *receiver) Claim() bool { return r.c.role.claim() }

// Release implements pdustream.Parser.
func (r *receiver) Release() { r.c.role.release() }

// Fault implements pdustream.Parser.
func (r *receiver) Fault() { r.c.role.faulted() }

// Ahead implements pdustream.Parser. What comes for a connection that is closing is thrown
// away.
func (r *receiver) Ahead() (int, error) {
	c := r.c
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.st == stateDead:
		return 0, c.endError()
	case c.fin.Late():
		return 0, os.ErrDeadlineExceeded
	case c.st == stateClosing:
		return pdustream.Nothing, nil
	case c.st == stateInit:
		return r.NextHeader(0), nil
	}
	return c.role.aheadLocked(), nil
}

// nextHeader is how much to read ahead when what follows the next header, of data, is not
// to be copied.
func (c *conn) nextHeader() int {
	n := DataLen
	if c.digests&DigestHeader != 0 {
		n += DigestLen
	}
	return c.rx.NextHeader(n)
}

// Batch implements pdustream.Parser.
func (r *receiver) Batch() {
	r.c.role.batchEnd()
	r.c.tx.Turn(pdustream.RxBytes) // transmit the answers to this batch
}

// Wrong implements pdustream.Parser: a breach is answered, and nothing is believed any more.
func (r *receiver) Wrong(err error) error {
	f, ok := err.(*Fault)
	if !ok {
		return err
	}
	head := r.Unread()
	if head == nil {
		head = r.header[:r.layout.HLen]
	}
	r.c.refuse(f, head[:min(len(head), MaxTermData)])
	return nil
}
