package cm

import (
	"time"

	"softiser/rdma/internal/roce/mad"
)

// rej takes the refusal of our REQ or REP, or that of a peer that waits no longer.
func (m *Manager) rej(in origin, msg *mad.REJ) {
	c := m.given(in, msg)
	if c == nil {
		if c = m.find(in, msg.RemoteCommID); c == nil {
			return
		}
	}
	if c.remote != 0 && msg.LocalCommID != 0 && c.remote != msg.LocalCommID {
		m.stats.Unmatched++
		return
	}
	switch c.state {
	case ReqSent, ReqReceived, RepSent:
		c.end(&RejectError{Peer: c.to, Reason: msg.Reason, Private: msg.Private[:]})
	case Established:
		// The peer has had none of our RTUs, nor a packet, and has stopped waiting.
		if c.active && c.remote == msg.LocalCommID {
			c.timeWait(&RejectError{Peer: c.to, Reason: msg.Reason, Private: msg.Private[:]})
		}
	default:
		m.stats.Unmatched++
	}
}

// maxMRA bounds what the peer may ask for by an MRA: Linux's applications get 68.7 s.
const maxMRA = 70 * time.Second

// mra gives the peer more time. It asks by name for its own answer to be waited for,
// and what it was asked is not sent again meanwhile.
func (m *Manager) mra(in origin, msg *mad.MRA) {
	c := m.find(in, msg.RemoteCommID)
	if c == nil {
		return
	}
	switch {
	case c.state == ReqSent && msg.Which == mad.WhichREQ, c.state == RepSent && msg.Which == mad.WhichREP && c.remote == msg.LocalCommID:
		c.arm(min(time.Duration(4096)<<msg.ServiceTimeout, maxMRA) + c.repeat.most)
	default:
		m.stats.Unmatched++
	}
}

// dreq takes the peer's end of the connection. What is not known is answered too: it
// was ended here and the peer has not heard (IBA vol. 1 §12.9.8.3.1).
func (m *Manager) dreq(in origin, msg *mad.DREQ) {
	drep := &mad.DREP{LocalCommID: msg.RemoteCommID, RemoteCommID: msg.LocalCommID}
	c := m.conns[msg.RemoteCommID]
	if c == nil || c.peer != in.peer || c.remote != msg.LocalCommID {
		m.stats.Unmatched++
		m.send(in.to, in.tid, drep)
		return
	}
	if msg.RemoteQPN != c.localQPN {
		m.stats.Malformed++
		return
	}
	switch c.state {
	case RepSent, Established:
		m.send(c.to, in.tid, drep)
		c.timeWait(ErrDisconnected)
	case DreqSent: // both sides at once
		m.send(c.to, in.tid, drep)
		c.timeWait(nil)
	case TimeWait:
		m.stats.Duplicates++
		m.send(c.to, in.tid, drep)
	default:
		m.stats.Unmatched++
	}
}

// drep takes the answer to our DREQ.
func (m *Manager) drep(in origin, msg *mad.DREP) {
	c := m.find(in, msg.RemoteCommID)
	if c == nil {
		return
	}
	if c.state != DreqSent || c.remote != msg.LocalCommID {
		m.stats.Unmatched++
		return
	}
	c.timeWait(nil)
}

// stale ends a connection whose peer has begun another with the same queue pair: it
// does not know this one any more (IBA vol. 1 §12.9.8.3.1). It is told all the same,
// in case that it does.
func (c *Conn) stale() {
	switch c.state {
	case Established, RepSent:
		c.endLocked(ErrStale)
		c.disconnectLocked()
	case DreqSent: // on its way already
	default:
		c.end(ErrStale)
	}
}
