package target

import (
	"bytes"
	"net"
	"net/netip"
	"strings"

	"go.uber.org/zap"

	"softiser/internal/iscsi"
)

// textExchange is one Text negotiation (RFC 7143 §11.10, §11.11), which may
// take several PDUs in either direction:
//
//	request C=1 ──▶             gathers
//	          ◀── empty, TTT
//	request ──▶                 complete
//	          ◀── part, F=0, TTT
//	empty, TTT ──▶
//	          ◀── rest, F=1
type textExchange struct {
	ttt uint32 // ReservedTag: no exchange is open
	in  iscsi.TextBuffer
	out []byte // still to be sent
}

// textRequest takes a Text Request.
func (s *session) textRequest(c *conn, p *iscsi.PDU) {
	req := p.BHS.Text()
	itt, ttt := req.ITT(), req.TTT()
	s.mu.Lock()
	x := &c.text
	if ttt == iscsi.ReservedTag {
		// A new exchange ends whatever was open (RFC 7143 §11.10.4).
		*x = textExchange{ttt: x.ttt + 1, in: iscsi.TextBuffer{Limit: s.srv.cfg.Limits.TextData}}
		if x.ttt == iscsi.ReservedTag {
			x.ttt = 0
		}
	} else if ttt != x.ttt {
		s.mu.Unlock()
		c.reject(p, iscsi.RejectInvalidField)
		return
	}
	if len(x.out) == 0 {
		text, complete, err := x.in.Add(p.Data, req.Continue())
		if err != nil {
			s.mu.Unlock()
			c.reject(p, iscsi.RejectProtocol)
			return
		}
		if complete {
			var ok bool
			if x.out, ok = s.answerText(c, text); !ok {
				s.mu.Unlock()
				c.reject(p, iscsi.RejectProtocol)
				return
			}
		} else {
			c.textResponse(itt, x.ttt, nil, false, false)
			s.mu.Unlock()
			p.Release()
			return
		}
	}
	part, cut := cutText(x.out, c.controlData())
	x.out = x.out[len(part):]
	c.textResponse(itt, x.ttt, part, len(x.out) == 0, cut)
	if len(x.out) == 0 {
		x.out = nil
	}
	s.mu.Unlock()
	p.Release()
}

// cutText returns as much of text as fits, between two pairs if possible; cut
// reports that a pair continues in the next PDU (the C bit).
func cutText(text []byte, limit int) (part []byte, cut bool) {
	if limit <= 0 || len(text) <= limit {
		return text, false
	}
	if i := bytes.LastIndexByte(text[:limit], 0); i >= 0 {
		return text[:i+1], false
	}
	return text[:limit], true
}

func (c *conn) textResponse(itt, ttt uint32, data []byte, final, cont bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := &c.out
	r := out.BHS.NewTextResponse()
	r.SetITT(itt)
	r.SetFinal(final)
	r.SetContinue(cont)
	r.SetTTT(ttt)
	if final {
		r.SetTTT(iscsi.ReservedTag)
	}
	out.Data = data
	c.sendLocked(out, takeStatSN)
	out.Data = nil
}

// answerText answers the pairs of a complete request: SendTargets, and the few
// keys that may be declared again in full feature phase. ok is false when the
// text breaks the protocol. The caller holds s.mu.
func (s *session) answerText(c *conn, text []byte) (answer []byte, ok bool) {
	kvs, err := iscsi.ParseText(text)
	if err != nil {
		return nil, false
	}
	rest := kvs[:0]
	for _, kv := range kvs {
		which, ok := iscsi.SendTargets([]iscsi.KeyValue{kv})
		if !ok {
			rest = append(rest, kv)
			continue
		}
		if answer, ok = s.sendTargets(c, answer, which); !ok {
			return nil, false
		}
	}
	if len(rest) == 0 {
		return answer, true
	}
	n := iscsi.NewNegotiation(iscsi.RoleTarget, s.settings(), c.dm.KeyProfile(), true)
	n.SetSessionType(s.params.SessionType)
	if answer, err = n.Receive(answer, rest, iscsi.StageFullFeature); err != nil {
		s.srv.limits.protocol.warn(c.log, "text negotiation refused", zap.Error(err))
		return nil, false
	}
	if _, ok := n.Declared(iscsi.KeyMaxRecvDataSegmentLength); ok {
		c.mu.Lock()
		c.params.MaxXmitDataSegmentLength = uint32(n.PeerMaxRecv())
		c.dm.NoticeKeyValues(&c.params)
		c.limits = c.dm.Limits()
		c.mu.Unlock()
	}
	return answer, true
}

// sendTargets answers SendTargets (RFC 7143, Appendix C). "All" is for
// discovery sessions; in a normal session the initiator may ask for its own
// target by name or with an empty value.
func (s *session) sendTargets(c *conn, dst []byte, which string) ([]byte, bool) {
	switch {
	case which == "All" && !s.discovery():
		return nil, false
	case which == "" && s.discovery():
		return nil, false
	case which == "":
		which = s.node.cfg.Name
	}
	for _, n := range s.srv.nodeList() {
		if which != "All" && !strings.EqualFold(which, n.cfg.Name) {
			continue
		}
		t := n.access.Load()
		if ok, _ := t.ACL.allow(s.key.initiator, c.remote.Addr()); !ok {
			continue
		}
		d := iscsi.DiscoveredTarget{Name: n.cfg.Name, Alias: t.Alias}
		for _, p := range s.srv.portals {
			if !n.offeredOn(p) {
				continue
			}
			if a := p.addressFor(c.local, c.remote.Addr()); a != "" {
				d.Portals = append(d.Portals, iscsi.TargetPortal{Address: a, PortalGroupTag: p.cfg.Group, HasTag: true})
			}
		}
		if len(d.Portals) > 0 {
			dst = iscsi.AppendTarget(dst, &d)
		}
	}
	return dst, true
}

// addressFor is the address under which an initiator reaches p, or "" if it
// cannot: only what answers is advertised. local is the address that the
// initiator has used for this connection.
func (p *portal) addressFor(local netip.AddrPort, remote netip.Addr) string {
	if p.cfg.Advertise != "" {
		return p.cfg.Advertise
	}
	here, ok := p.bound()
	if !ok {
		return ""
	}
	a := here.Addr().Unmap()
	if a.IsUnspecified() {
		// All addresses answer: say the one that is known to be reachable, which
		// must be of a family that the portal listens on.
		a = local.Addr().Unmap()
		if here.Addr().Is4() && !a.Is4() {
			return ""
		}
	}
	from := remote.Unmap()
	if a.IsLoopback() && !from.IsLoopback() || a.IsLinkLocalUnicast() && !from.IsLinkLocalUnicast() {
		return ""
	}
	return net.JoinHostPort(a.WithZone("").String(), portString(here.Port()))
}
