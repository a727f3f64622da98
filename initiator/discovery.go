package initiator

import (
	"context"
	"errors"
	"fmt"

	"softiser/initiator/internal/wrongport"
	"softiser/internal/iscsi"
)

// Target is one target that discovery found.
type Target struct {
	Name    string   `json:"name"`
	Alias   string   `json:"alias,omitempty"`
	Portals []Portal `json:"portals"`
}

// Portal is one address of a target.
type Portal struct {
	Address string `json:"address"` // host:port, IPv6 hosts in brackets
	Group   int    `json:"group"`   // portal group tag; -1 when not told
}

// maxSendTargets bounds the answer to SendTargets, bytes.
const maxSendTargets = 4 << 20

// Discover asks the portal at cfg.Address which targets it serves (SendTargets
// in a discovery session, RFC 7143 Appendix C). cfg.TargetName and cfg.LUN do
// not matter.
func Discover(ctx context.Context, cfg Config) ([]Target, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(true); err != nil {
		return nil, err
	}
	ts, err := discover(ctx, &cfg)
	if err != nil {
		return nil, fmt.Errorf("initiator: discovery at %s://%s: %w", cfg.Transport, cfg.Address, err)
	}
	return ts, nil
}

// discover logs in for discovery (RFC 7143 §4.3), asks for all targets, and logs out.
func discover(ctx context.Context, cfg *Config) (ts []Target, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, cfg.LoginTimeout,
		wrongport.Silent("no answer", cfg.LoginTimeout))
	defer cancel()
	tr := transport{cfg: cfg}
	c, err := open(ctx, &tr, cfg.Address, iscsi.DiscoverySession, nil)
	if err != nil {
		return nil, errors.Join(err, tr.close())
	}
	defer func() {
		c.dm.Terminate(nil)
		<-c.gone
		err = errors.Join(err, tr.close())
	}()
	text, err := c.text.sendTargets(ctx, c)
	if err != nil {
		return nil, err
	}
	found, err := iscsi.ParseTargets(text)
	if err != nil {
		return nil, err
	}
	ts = make([]Target, 0, len(found))
	for _, f := range found {
		t := Target{Name: f.Name, Alias: f.Alias}
		for _, p := range f.Portals {
			g := -1
			if p.HasTag {
				g = int(p.PortalGroupTag)
			}
			t.Portals = append(t.Portals, Portal{onLink(p.Address, cfg.Address), g})
		}
		if len(t.Portals) == 0 {
			// A target without an address is at the portal that was asked.
			t.Portals = []Portal{{cfg.Address, -1}}
		}
		ts = append(ts, t)
	}
	return ts, nil
}

// textExchange is a discovery session in full feature phase: one Text Request
// at a time, and a logout.
type textExchange struct {
	answers chan textAnswer
	cmdSN   uint32
	statSN  uint32
}

type textAnswer struct {
	bhs  iscsi.BHS
	data []byte
}

// notify runs on the receive goroutine.
func (x *textExchange) notify(c *conn, p *iscsi.PDU) {
	defer p.Release()
	b := &p.BHS
	if p.Bad != nil {
		c.dm.Terminate(p.Bad)
		return
	}
	switch b.Opcode() {
	case iscsi.OpNopIn:
		x.pong(c, b)
		return
	case iscsi.OpAsync:
		return
	}
	select {
	case x.answers <- textAnswer{*b, append([]byte(nil), p.Data...)}:
	default: // an answer too many: dropped
	}
}

// pong answers a ping of the target.
func (x *textExchange) pong(c *conn, b *iscsi.BHS) {
	if b.TTT() == iscsi.ReservedTag {
		return
	}
	var p iscsi.PDU
	q := p.BHS.NewNopOut()
	q.SetImmediate(true)
	q.SetLUN(b.LUN())
	q.SetITT(iscsi.ReservedTag)
	q.SetTTT(b.TTT())
	q.SetCmdSN(c.login.win.CmdSN)
	q.SetExpStatSN(c.login.statSN)
	if err := c.dm.SendControl(&p); err != nil {
		return // the connection is ending
	}
}

// wait returns the next answer of one opcode.
func (x *textExchange) wait(ctx context.Context, c *conn, want iscsi.Opcode) (textAnswer, error) {
	c.dm.Push()
	select {
	case a := <-x.answers:
		switch op := a.bhs.Opcode(); {
		case op == iscsi.OpReject:
			return a, fmt.Errorf("the target rejected the request: %v", a.bhs.Reject().Reason())
		case op != want:
			return a, fmt.Errorf("the target answered with a %v", op)
		}
		x.statSN = a.bhs.StatSN() + 1
		return a, nil
	case <-c.gone:
		return textAnswer{}, errConnGone
	case <-ctx.Done():
		return textAnswer{}, context.Cause(ctx)
	}
}

// sendTargets returns the complete answer, which may come in several PDUs:
// each that is not final is asked to be continued (RFC 7143 §11.11).
func (x *textExchange) sendTargets(ctx context.Context, c *conn) ([]byte, error) {
	x.cmdSN, x.statSN = c.login.win.CmdSN, c.login.statSN
	data := iscsi.AppendSendTargets(nil, "All")
	ttt := uint32(iscsi.ReservedTag)
	var text []byte
	for {
		var p iscsi.PDU
		q := p.BHS.NewTextRequest()
		q.SetFinal(true)
		q.SetITT(1)
		q.SetTTT(ttt)
		q.SetCmdSN(x.cmdSN)
		q.SetExpStatSN(x.statSN)
		q.SetDataLen(len(data))
		p.Data = data
		if err := c.dm.SendControl(&p); err != nil {
			return nil, err
		}
		if !q.Immediate() {
			x.cmdSN++
		}
		a, err := x.wait(ctx, c, iscsi.OpTextResponse)
		if err != nil {
			return nil, err
		}
		if len(a.data) > maxSendTargets-len(text) {
			return nil, fmt.Errorf("the answer is longer than %d bytes", maxSendTargets)
		}
		text = append(text, a.data...)
		r := a.bhs.Text()
		if r.Final() {
			x.logout(ctx, c)
			return text, nil
		}
		if ttt = r.TTT(); ttt == iscsi.ReservedTag {
			return nil, errors.New("the target's answer is not complete, and it gives no tag to ask for the rest")
		}
		data = nil
	}
}

// logout ends the session. Whatever the target makes of it, it has told what it was asked for.
func (x *textExchange) logout(ctx context.Context, c *conn) {
	var p iscsi.PDU
	q := p.BHS.NewLogoutRequest(iscsi.LogoutSession)
	q.SetITT(2)
	q.SetCmdSN(x.cmdSN)
	q.SetExpStatSN(x.statSN)
	if c.dm.SendControl(&p) != nil {
		return
	}
	if _, err := x.wait(ctx, c, iscsi.OpLogoutResp); err == nil || errors.Is(err, errConnGone) {
		c.awaitClose()
	}
}
