package nvmerdma

import (
	"softiser/internal/nvme"
	"softiser/internal/rdmamsg"
)

// command is a command in one of the slots.
type command struct {
	nvme.Command
	next *command      // free, or in a dueList
	recv *rdmamsg.Recv // where its in-capsule data is

	list [][]byte // the memory of its PutDatas
	puts int      // that are under way
	get  rdmamsg.Move
	// reading: a Read is under way; stale: nobody waits for it any more.
	reading, stale bool

	cqe      nvme.CQE
	answered bool  // Respond was called
	dropped  bool  // the response will not be sent
	ended    bool  // Sent is due
	err      error // with which DataArrived is due
}

// putOf is a command as the user of its Puts.
type putOf command

// slots are the commands of a queue: those that are outstanding, and those whose response
// has been sent but has not been reaped. They are made as they are needed; a host that
// keeps to the size of its queue bounds both.
type slots struct {
	all  []*command // by slot
	free *command
	uses uint64
}

func (s *slots) take() *command {
	k := s.free
	if k == nil {
		k = &command{}
		k.Slot = len(s.all)
		s.all = append(s.all, k)
	} else {
		s.free, k.next = k.next, nil
	}
	s.uses++
	k.Use = s.uses
	k.Data, k.NoRoom = nil, false
	k.answered, k.dropped, k.ended = false, false, false
	return k
}

// put takes a slot back whose command has ended.
func (s *slots) put(k *command) {
	if k.recv != nil {
		k.recv.Free()
		k.recv, k.Data = nil, nil
	}
	clear(k.list)
	k.list = k.list[:0]
	k.next, s.free = s.free, k
}

// dueList is a queue of commands of which the upper layer is to be told.
type dueList struct{ head, tail *command }

func (l *dueList) put(k *command) {
	k.next = nil
	if l.tail == nil {
		l.head = k
	} else {
		l.tail.next = k
	}
	l.tail = k
}

func (l *dueList) take() *command {
	k := l.head
	l.head, l.tail = nil, nil
	return k
}
