package nbd

import (
	"encoding/binary"
	"fmt"

	"softiser/initiator/blockio"
)

// replyQueue is a list of slots whose replies wait to be sent.
type replyQueue struct{ head, tail *slot }

func (q *replyQueue) push(s *slot) {
	if s.next = nil; q.tail == nil {
		q.head = s
	} else {
		q.tail.next = s
	}
	q.tail = s
}

func (q *replyQueue) pop() *slot {
	s := q.head
	if q.head = s.next; q.head == nil {
		q.tail = nil
	}
	return s
}

// finish makes the reply from the result of the request.
func (c *conn) finish(s *slot) {
	if err := s.req.Err; err != nil {
		s.failWith(errnoOf(err), err.Error())
		return
	}
	if s.req.Op == blockio.OpRead {
		s.data(s.req.Buf)
		return
	}
	s.succeed()
}

// succeed is a reply without payload.
func (s *slot) succeed() {
	s.body = nil
	if s.c.agreed.structured {
		s.headN = putChunk(s.head[:], chunkNone, s.in.cookie, 0)
		return
	}
	s.headN = putSimple(s.head[:], 0, s.in.cookie)
}

// data is the reply to a READ: one chunk, or header and payload.
func (s *slot) data(p []byte) {
	s.body = p
	if !s.c.agreed.structured {
		s.headN = putSimple(s.head[:], 0, s.in.cookie)
		return
	}
	s.headN = putChunk(s.head[:], chunkOffsetData, s.in.cookie, 8+len(p))
	binary.BigEndian.PutUint64(s.head[s.headN:], s.in.off)
	s.headN += 8
}

func (s *slot) fail(errno uint32) { s.failWith(errno, "") }

// failWith is an error reply; structured ones say why.
//
//	+---------------------------------------------------------------+
//	|                             error                             |
//	+-------------------------------+-------------------------------+
//	|       length of message       |  message …
//	+-------------------------------+-------------------------------+
func (s *slot) failWith(errno uint32, why string) {
	s.body = nil
	if !s.c.agreed.structured {
		s.headN = putSimple(s.head[:], errno, s.in.cookie)
		return
	}
	why = why[:min(len(why), maxName)]
	if why == "" {
		why = fmt.Sprintf("%v of %d bytes at offset %d refused", s.in.cmd, s.in.n, s.in.off)
	}
	n := putChunk(s.head[:], chunkError, s.in.cookie, 6+len(why))
	binary.BigEndian.PutUint32(s.head[n:], errno)
	binary.BigEndian.PutUint16(s.head[n+4:], uint16(len(why)))
	s.headN = n + 6
	s.body = []byte(why)
}

// maxExtents bounds one BLOCK_STATUS reply.
const maxExtents = 4096

// blockStatus answers BLOCK_STATUS, which asks the target and may wait: it has
// a goroutine of its own, at most one per slot.
func (c *conn) blockStatus(s *slot) {
	c.allocation(s)
	c.replied(s)
}

// allocation makes the reply: context id, then length and state of each extent.
func (c *conn) allocation(s *slot) {
	ext, err := c.exp.LUN.Extents(int64(s.in.off), int64(s.in.n))
	if err == nil && len(ext) == 0 {
		err = fmt.Errorf("the target reported no extent")
	}
	if err != nil {
		s.failWith(errnoOf(err), err.Error())
		return
	}
	count := min(len(ext), maxExtents)
	if s.in.flags&cmdReqOne != 0 {
		count = 1
	}
	zeroes := c.exp.LUN.Info().ZeroesOnTrim
	be := binary.BigEndian
	p := be.AppendUint32(make([]byte, 0, 4+8*count), contextID)
	left := int64(s.in.n)
	for _, e := range ext[:count] {
		state := uint32(0)
		if !e.Data {
			if state = stateHole; zeroes {
				state |= stateZero
			}
		}
		n := min(e.Len, left)
		if left -= n; n > 0 {
			p = be.AppendUint32(be.AppendUint32(p, uint32(n)), state)
		}
	}
	s.headN = putChunk(s.head[:], chunkBlockStatus, s.in.cookie, len(p))
	s.body = p
}
