package nvmf

import (
	"testing"

	"softiser/internal/nvme"
)

// parkedConn is a connection that stands, and notes whether anything could be given to it when
// it goes on.
type parkedConn struct {
	nvme.HostTransport
	q           *queue
	gone, early bool
}

func (p *parkedConn) Park(func() bool) bool { return true }
func (p *parkedConn) Nudge()                {}
func (p *parkedConn) Still() bool           { return true }
func (p *parkedConn) Push()                 {}

func (p *parkedConn) Unpark() {
	p.q.mu.Lock()
	p.gone, p.early = true, p.q.gate == nil
	p.q.mu.Unlock()
}

// Nothing is given to a connection before it goes on: whoever gives it something holds the lock
// of its queue, for which it may wait with its own held.
func TestResumeBeginsBelow(t *testing.T) {
	a := &Association{}
	a.mute.a = a
	a.admin, a.io = adminQueue{newQueue(a, 0, 1)}, []*queue{newQueue(a, 1, 1)}
	gate := make(chan struct{})
	for _, q := range a.queues() {
		q.tr, q.gate = &parkedConn{q: q}, gate
	}
	a.resume()
	<-gate
	for _, q := range a.queues() {
		if p := q.tr.(*parkedConn); !p.gone || p.early || q.gate != nil {
			t.Errorf("queue %d: it goes on: %t; things were sent before: %t", q.id, p.gone, p.early)
		}
	}
}
