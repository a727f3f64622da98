package iser

import (
	"sync/atomic"

	"softiser/internal/iscsi"
	"softiser/internal/rdmamsg"
)

// unread is what a peer has made this side say, and has not read yet. A peer that has many
// answers to read is itself not read from (Conn.awaitReader). Guarded by Conn.mu.
type unread struct {
	iscsi.Unsent
	behind atomic.Bool   // there are many; read without the lock
	room   chan struct{} // there are not any more, or the state of the connection has changed; one slot
}

func (u *unread) init(m iscsi.Memory) { u.Memory, u.room = m, make(chan struct{}, 1) }

// msgCost is the memory of a queued message that needs no buffer, roughly.
const msgCost = 512

// owe counts a message that the peer has asked for.
func (u *unread) owe(m *rdmamsg.Message) {
	m.Tag = msgCost
	if len(m.Buf) > rdmamsg.InlineLen {
		m.Tag += recvBufLen
	}
	u.Add(m.Tag)
	if u.Many() {
		u.behind.Store(true)
	}
}

// sent counts off a message, of Tag cost, that is on its way.
func (u *unread) sent(cost int) {
	u.Sub(cost)
	if u.behind.Load() && u.Room() {
		u.behind.Store(false)
		u.goOn()
	}
}

// goOn lets awaitReader look again.
func (u *unread) goOn() {
	select {
	case u.room <- struct{}{}:
	default:
	}
}
