package cm

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"time"

	"softiser/rdma/internal/roce/mad"
	"softiser/rdma/internal/verbs"
)

// Lookup asks for the queue pair of a datagram service.
type Lookup struct {
	Service mad.ServiceID
	SrcPort uint16
	Peer    netip.Addr // received: who asks, not proved
	Private []byte     // at most mad.UserSIDRREQ bytes when sent, always so many when received
}

// LookupAnswer names it, or says why not.
type LookupAnswer struct {
	Status  mad.SIDRStatus
	QPN     uint32
	QKey    uint32
	Private []byte // at most mad.PrivateSIDRREP bytes when sent, always so many when received
}

// Serve answers lookups of service by f, which must not block nor call the Manager.
// Nothing is kept of a lookup. It is an error when somebody does so already.
func (m *Manager) Serve(service mad.ServiceID, f func(*Lookup) LookupAnswer) error {
	m.mu.Lock()
	defer m.unlock()
	switch {
	case m.closed:
		return errManagerClosed
	case m.services[service] != nil:
		return verbs.Invalid("%v of %v is taken: somebody answers lookups there", service, m.cfg.Local)
	}
	m.services[service] = f
	return nil
}

// Unserve ends Serve.
func (m *Manager) Unserve(service mad.ServiceID) {
	m.mu.Lock()
	defer m.unlock()
	delete(m.services, service)
}

func (m *Manager) sidrReq(in origin, msg *mad.SIDRREQ) {
	rep := &mad.SIDRREP{RequestID: msg.RequestID, ServiceID: msg.ServiceID, Status: mad.SIDRUnsupported}
	var h mad.IPHeader
	if f := m.services[msg.ServiceID]; f != nil {
		rep.Status = mad.SIDRReject
		if h.Parse(msg.Private[:]) == nil && h.Src == in.peer && h.Dst == m.cfg.Local {
			a := f(&Lookup{Service: msg.ServiceID, SrcPort: h.SrcPort, Peer: in.to, Private: bytes.Clone(msg.Private[mad.IPHeaderLen:])})
			rep.Status, rep.QPN, rep.QKey = a.Status, a.QPN, a.QKey
			copy(rep.Private[:], a.Private)
		}
	}
	m.send(in.to, in.tid, rep)
}

// lookup is one that waits for its answer.
type lookup struct {
	m      *Manager
	id     uint32
	peer   netip.Addr
	to     netip.Addr
	repeat repeat
	timer  *time.Timer
	done   chan struct{}
	answer LookupAnswer
	err    error
}

// Resolve asks the Manager at an address for the queue pair of a datagram service.
func (m *Manager) Resolve(ctx context.Context, to netip.Addr, l *Lookup) (*LookupAnswer, error) {
	if len(l.Private) > mad.UserSIDRREQ {
		return nil, verbs.Invalid("private data of %d bytes: a lookup over RoCE has room for %d", len(l.Private), mad.UserSIDRREQ)
	}
	if plain(to).Is4() != m.cfg.Local.Is4() {
		return nil, verbs.Invalid("peer %v and local address %v are of different families", to, m.cfg.Local)
	}
	q := &lookup{m: m, peer: plain(to), to: to, done: make(chan struct{})}
	msg := &mad.SIDRREQ{PKey: fullPKey, ServiceID: l.Service}
	(&mad.IPHeader{SrcPort: l.SrcPort, Src: m.cfg.Local, Dst: q.peer}).Put(msg.Private[:])
	copy(msg.Private[mad.IPHeaderLen:], l.Private)

	m.mu.Lock()
	if m.closed {
		m.unlock()
		return nil, errManagerClosed
	}
	for q.id == 0 || m.lookups[q.id] != nil {
		q.id = m.newID()
	}
	m.lookups[q.id] = q
	msg.RequestID = q.id
	q.repeat = newRepeat(m.send(to, m.tid|uint64(q.id), msg), repeatsSIDR, timeout(responseTimeout))
	q.timer = time.AfterFunc(q.repeat.wait, q.expired)
	m.unlock()

	select {
	case <-q.done:
	case <-ctx.Done():
		m.mu.Lock()
		q.endLocked(nil, fmt.Errorf("rdma: lookup of %v at %v: %w", l.Service, to, context.Cause(ctx)))
		m.unlock()
	}
	if q.err != nil {
		return nil, q.err
	}
	return &q.answer, nil
}

func (q *lookup) expired() {
	q.m.mu.Lock()
	defer q.m.unlock()
	if q.m.lookups[q.id] != q {
		return
	}
	if !q.repeat.next() {
		q.endLocked(nil, errSilent(mad.AttrSIDRREQ, q.to, q.repeat.sent))
		return
	}
	q.m.stats.Retries++
	q.m.sendAgain(q.to, mad.AttrSIDRREQ, q.repeat.b)
	q.timer.Reset(q.repeat.wait)
}

// endLocked ends the wait, once.
func (q *lookup) endLocked(a *LookupAnswer, err error) {
	if q.m.lookups[q.id] != q {
		return
	}
	delete(q.m.lookups, q.id)
	q.timer.Stop()
	if q.err = err; a != nil {
		q.answer = *a
	}
	close(q.done)
}

func (m *Manager) sidrRep(in origin, msg *mad.SIDRREP) {
	q := m.lookups[msg.RequestID]
	if q == nil || q.peer != in.peer {
		m.stats.Unmatched++
		return
	}
	q.endLocked(&LookupAnswer{Status: msg.Status, QPN: msg.QPN, QKey: msg.QKey, Private: msg.Private[:]}, nil)
}
