package rdmamsg

import (
	"sync"

	"softiser/rdma"
)

// opKind is what an op does.
type opKind uint8

const (
	opSend opKind = iota + 1
	opWrite
	opRead
)

// op is work of the send queue. An op of a Put may take several work requests, because
// a request names at most MaxSGE pieces; of a Get each request has its own.
type op struct {
	Message // opSend
	next    *op
	kind    opKind
	id      uint64 // in the table of ops
	sgl     [1]rdma.SGE

	// opWrite, opRead: the rest of what is to be moved.
	user    any
	g       *get
	segs    [][]byte // what has not been queued yet
	off     int      // into segs[0]
	remote  rdma.RemoteAddr
	left    uint32 // bytes that have not been queued yet
	wrs     int    // opWrite: requests outstanding
	quiet   bool   // posted without asking for a completion
	covers  opList // quiet ones posted before it: they have ended when one of its requests has
	n       uint32 // bytes of this request (opRead)
	aborted bool
	err     error
}

type opList struct{ head, tail *op }

func (l *opList) put(o *op) {
	o.next = nil
	if l.tail == nil {
		l.head = o
	} else {
		l.tail.next = o
	}
	l.tail = o
}

func (l *opList) pop() *op {
	o := l.head
	if l.head = o.next; l.head == nil {
		l.tail = nil
	}
	o.next = nil
	return o
}

// What goes without a completion in a row, at most: its memory is free only when the next
// completion comes.
const (
	maxQuiet      = 15
	maxQuietBytes = 64 << 10
)

// quietOps are those posted since the last request that asked for a completion. They are
// counted before they are posted, and put into the list behind it.
type quietOps struct {
	opList
	n     int // how many
	bytes int // that they send
}

// room reports whether another one, of n bytes, may be among them.
func (q *quietOps) room(n int) bool { return q.n < maxQuiet && q.bytes+n <= maxQuietBytes }

func (q *quietOps) count(n int) {
	q.n++
	q.bytes += n
}

// take empties the list, for the request whose completion is theirs, too.
func (q *quietOps) take() opList {
	l := q.opList
	*q = quietOps{}
	return l
}

// opPool gives every op an ID for its completion. Its memory is lent in pieces: all go back when
// no op is in use, so that many connections that are at work in turns use the same few, which stay
// in the processor's cache.
type opPool struct {
	pieces []*[opPiece]op // ops by ID
	free   *op            // of those that have been used
	fresh  int            // of those that have not: the first
	used   int            // ops that have been taken
}

// opPiece is how many ops get their memory together.
const opPiece = 8

// opPieces are those that no pool has at the moment. Their ops refer to nothing of users.
var opPieces = sync.Pool{New: func() any {
	p := new([opPiece]op)
	for i := range p {
		p[i].op = &p[i]
	}
	return p
}}

func (p *opPool) get(k opKind) *op {
	o := p.free
	if o == nil {
		if p.fresh == len(p.pieces)*opPiece {
			p.pieces = append(p.pieces, opPieces.Get().(*[opPiece]op))
		}
		o = p.at(p.fresh)
		o.id = uint64(p.fresh)
		p.fresh++
	} else {
		p.free = o.next
	}
	p.used++
	o.kind, o.next = k, nil
	return o
}

// put takes an op back, whose fields are as they were when it was new.
func (p *opPool) put(o *op) {
	if p.used--; p.used > 0 {
		o.next, p.free = p.free, o
		return
	}
	for i, m := range p.pieces {
		opPieces.Put(m)
		p.pieces[i] = nil
	}
	p.pieces, p.free, p.fresh = p.pieces[:0], nil, 0
}

// at is the op of an ID; nil if there has been none since the pool was last empty.
func (p *opPool) at(id int) *op {
	if id >= len(p.pieces)*opPiece {
		return nil
	}
	return &p.pieces[id/opPiece][id%opPiece]
}
