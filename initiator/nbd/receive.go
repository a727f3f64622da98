package nbd

import (
	"errors"
	"fmt"
	"io"
	"os"

	"softiser/blockdev"
	"softiser/initiator/blockio"
)

// errDisconnect is the client's NBD_CMD_DISC.
var errDisconnect = errors.New("nbd: client disconnected")

// receive reads requests until the client goes or reading is stopped.
func (c *conn) receive() error {
	for {
		if c.rd.buffered() < requestSize {
			c.gather() // before waiting for more
			c.offer()
		}
		if c.resting.Load() && !c.stand() {
			return nil
		}
		p, err := c.rd.peek(requestSize)
		if err != nil {
			return c.ended(err)
		}
		in, ok := parseRequest(p)
		if !ok {
			return fmt.Errorf("nbd: request magic %#x: the client is out of step", p[:4])
		}
		c.rd.discard(requestSize)
		c.now = current{in: in, within: true}
		if err := c.request(in); err == errDisconnect {
			if f := c.srv.cfg.OnDisconnect; f != nil && c.agreed.kernel {
				f()
			}
			return nil
		} else if err != nil {
			return c.ended(err)
		}
		c.now = current{}
	}
}

// ended makes an orderly end of EOF between requests and of stopReading.
func (c *conn) ended(err error) error {
	c.mu.Lock()
	draining := c.draining
	c.mu.Unlock()
	if draining && errors.Is(err, os.ErrDeadlineExceeded) || err == io.EOF {
		return nil
	}
	return err
}

// request checks one request and adds it to the batch, or answers it.
func (c *conn) request(in request) error {
	errno := c.check(&in)
	payload := 0
	if in.cmd == CmdWrite {
		payload = int(in.n)
		if in.n > maxPayload {
			return fmt.Errorf("nbd: write of %d bytes: the limit is %d", in.n, maxPayload)
		}
	}
	c.rd.left = payload
	if payload > c.rd.buffered() && !c.rd.gets(payload) {
		c.gather() // before waiting for the rest of it
	}
	if errno != 0 {
		return c.drop(in, payload, errno)
	}
	buffer := payload
	if in.cmd == CmdRead {
		buffer = int(in.n)
	}
	if in.cmd == CmdDisc {
		return errDisconnect
	}
	s, err := c.acquire(buffer)
	if err != nil {
		return c.drop(in, payload, errNoMem)
	}
	s.in, s.again = in, false
	if payload > 0 {
		c.now.slot = s
		if err := c.rd.readInto(s.buf[:payload]); err != nil {
			c.mu.Lock()
			c.releaseLocked(s)
			c.mu.Unlock()
			return err
		}
	}
	c.now = current{}
	c.start(s)
	return nil
}

// check returns the error number of a request that cannot be carried out.
func (c *conn) check(in *request) uint32 {
	allowed := uint16(cmdFUA) // the protocol wants it accepted with every command
	ro := c.exp.ReadOnly
	switch in.cmd {
	case CmdRead:
		if c.agreed.structured {
			allowed |= cmdDF
		}
		if in.n > maxPayload {
			if in.flags&cmdDF == 0 {
				return errInval
			}
			return errOverflow // the protocol's error for a reply that does not fit into the one chunk that was asked for
		}
	case CmdWrite:
	case CmdTrim:
		if !ro && !c.exp.LUN.Info().Discard {
			return errInval
		}
	case CmdWriteZeroes:
		allowed |= cmdNoHole | cmdFastZero
	case CmdFlush, CmdDisc:
		return 0
	case CmdBlockStatus:
		allowed |= cmdReqOne
		if !c.agreed.allocation || in.n == 0 {
			return errInval
		}
	default:
		return errInval
	}
	switch {
	case in.flags&^allowed != 0:
		return errInval
	case ro && (in.cmd == CmdWrite || in.cmd == CmdTrim || in.cmd == CmdWriteZeroes):
		return errPerm
	case !contains(c.exp.LUN.Info().Size, in.off, in.n): // the size of this moment: a volume may have grown
		if in.cmd == CmdWrite || in.cmd == CmdWriteZeroes {
			return errNoSpace // as the protocol wants it for writes beyond the end
		}
		return errInval
	case in.cmd == CmdTrim: // needs no alignment: it is a hint, and blocks that it covers in part are left alone
	case in.off%uint64(c.block) != 0 || in.n%uint32(c.block) != 0:
		return errInval
	}
	return 0
}

// drop refuses a request that payload bytes come with.
func (c *conn) drop(in request, payload int, errno uint32) error {
	c.now.errno = errno
	if err := c.rd.skip(payload); err != nil {
		return err
	}
	return c.refuse(in, errno)
}

// refuse answers a request that never started.
func (c *conn) refuse(in request, errno uint32) error {
	s, err := c.acquire(0)
	if err != nil {
		return err
	}
	s.in = in
	s.fail(errno)
	c.answer(s)
	return nil
}

// start turns the request in s into one for the session.
func (c *conn) start(s *slot) {
	r, in := &s.req, &s.in
	r.Off, r.Len, r.Buf = int64(in.off), int64(in.n), nil
	r.FUA = in.flags&cmdFUA != 0
	r.MayUnmap, r.NoData, r.Flusher = false, false, c.client
	switch in.cmd {
	case CmdRead:
		r.Op, r.Buf, r.FUA = blockio.OpRead, s.buf[:in.n], false
	case CmdWrite:
		r.Op, r.Buf = blockio.OpWrite, s.buf[:in.n]
	case CmdFlush:
		r.Op, r.Off, r.Len, r.FUA = blockio.OpFlush, 0, 0, false
	case CmdTrim:
		r.Op = blockio.OpDiscard
		bs := int64(c.block)
		end := (r.Off + r.Len) / bs * bs
		r.Off = (r.Off + bs - 1) / bs * bs
		if r.Len = end - r.Off; r.Len <= 0 {
			s.succeed()
			c.answer(s)
			return
		}
	case CmdWriteZeroes:
		// Fast zeroes are no slower than a write, or refused with ENOTSUP.
		r.Op, r.MayUnmap, r.NoData = blockio.OpWriteZeroes, in.flags&cmdNoHole == 0, in.flags&cmdFastZero != 0
	case CmdBlockStatus:
		c.mu.Lock()
		c.inFlight++
		c.mu.Unlock()
		go c.blockStatus(s)
		return
	}
	if in.n == 0 && in.cmd != CmdFlush {
		s.succeed()
		c.answer(s)
		return
	}
	c.batch = append(c.batch, r)
}

// repeat submits a finished request once more where that can help: a target
// may refuse WRITE SAME only when it sees it (the session then remembers to
// write zeroes).
func (c *conn) repeat(s *slot) bool {
	r := &s.req
	if r.Op != blockio.OpWriteZeroes || r.NoData || s.again || !errors.Is(r.Err, blockdev.ErrNotSupported) {
		return false
	}
	s.again = true
	one := [1]*blockio.Request{r}
	c.exp.LUN.SubmitBatch(one[:])
	return true
}
