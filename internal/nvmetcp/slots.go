package nvmetcp

import (
	"sync"
	"sync/atomic"

	"softiser/internal/nvme"
)

// command is a slot of the queue.
type command struct {
	nvme.Command
	of   *Controller
	next *command // free, or answered and sent
	buf  *buffer  // of in-capsule data
	put  *outPDU  // its last C2HData, as long as the response may be folded into it
}

// goneLocked implements notice, of the PDU that ends the command.
func (k *command) goneLocked() { k.next, k.of.done = k.of.done, k }

// buffer holds in-capsule data. There are as many as commands have some: an idle
// connection has none.
type buffer struct{ b []byte }

var (
	small, large sync.Pool // of smallBuffer bytes, and of any size above
	buffersOut   atomic.Int64
)

// smallBuffer holds what most commands bring along.
const smallBuffer = 4 << 10

// BuffersOut returns how many buffers are in use in this process: none when every
// command has been answered.
func BuffersOut() int64 { return buffersOut.Load() }

func getBuffer(n int) *buffer {
	buffersOut.Add(1)
	pool := &small
	if n > smallBuffer {
		pool = &large
	}
	if b, _ := pool.Get().(*buffer); b != nil && len(b.b) >= n {
		return b
	}
	return &buffer{make([]byte, max(n, smallBuffer))}
}

func putBuffer(b *buffer) {
	buffersOut.Add(-1)
	if len(b.b) > smallBuffer {
		large.Put(b)
	} else {
		small.Put(b)
	}
}

// slots are the commands that a queue has room for. Guarded by Controller.mu.
type slots struct {
	all    []*command
	free   *command
	memory nvme.Memory
	uses   uint64
}

func (s *slots) init(c *Controller, n int, memory nvme.Memory) {
	s.memory = memory
	s.grow(c, n)
}

// grow makes room for n commands, and as many again: a host counts a command as answered
// when its response arrives, which may be before Sent has returned, for all that were
// answered with one system call.
func (s *slots) grow(c *Controller, n int) {
	for len(s.all) < 2*n {
		k := &command{of: c}
		k.Slot = len(s.all)
		s.all = append(s.all, k)
		k.next, s.free = s.free, k
	}
}

// take returns a slot for a command with n bytes of in-capsule data; nil if the host
// exceeds its queue. The data may have no room.
func (s *slots) take(n int) *command {
	k := s.free
	if k == nil {
		return nil
	}
	s.free, k.next = k.next, nil
	s.uses++
	k.Data, k.Corrupt, k.NoRoom, k.put, k.Use = nil, false, false, nil, s.uses
	if n == 0 {
		return k
	}
	k.buf = getBuffer(n)
	if s.memory != nil && !s.memory.Reserve(len(k.buf.b)) {
		putBuffer(k.buf)
		k.buf, k.NoRoom = nil, true
		return k
	}
	k.Data = k.buf.b[:n]
	return k
}

// put takes a slot back whose command has ended.
func (s *slots) put(k *command) {
	if b := k.buf; b != nil {
		if s.memory != nil {
			s.memory.Unreserve(len(b.b))
		}
		k.buf, k.Data = nil, nil
		putBuffer(b)
	}
	k.next, s.free = s.free, k
}

// cut gives back a slot whose command has not come to its end.
func (s *slots) cut(k *command) {
	if k != nil {
		s.put(k)
	}
}
