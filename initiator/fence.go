package initiator

import (
	"context"
	"errors"
	"fmt"

	"softiser/initiator/blockio"
)

// Fence has each session that is lost reinstated (RFC 7143 §6.3.5): the target ends the
// old one with all its tasks before it answers the login. It makes no difference which
// portal of the portal group is asked, so those of the other paths are; the session's own
// recovery goes on asking its own.
func (l *LUN) Fence(ctx context.Context, others []blockio.Path) error {
	for _, s := range l.paths {
		if err := (fence{s}).raise(ctx, others); err != nil {
			return err
		}
	}
	return nil
}

// fence keeps what a session has sent from taking effect later.
type fence struct{ session *Session }

// raise returns nil when nothing that the session has sent can still take effect: it is
// up again, or a login with its ISID at another path's portal of the same portal group
// has ended it at the target.
func (f fence) raise(ctx context.Context, others []blockio.Path) error {
	s := f.session
	s.mu.Lock()
	st, why, last := s.state, s.err, s.last
	s.mu.Unlock()
	if st == StateActive {
		return nil
	}
	errs := []error{fmt.Errorf("%w: %w", ErrSessionLost, why)}
	if last == nil {
		return errors.Join(errs...)
	}
	group := int(last.params.TargetPortalGroupTag)
	for _, p := range others {
		o, ok := p.(*LUN)
		if !ok || !f.leads(o, group) {
			continue
		}
		over, err := f.reinstate(ctx, o.paths[0], group)
		if over {
			return nil
		}
		if err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// leads reports whether a path that is up comes by the portal group of the session.
func (f fence) leads(o *LUN, group int) bool {
	own, c := &f.session.cfg, &o.paths[0].cfg
	if c.TargetName != own.TargetName || c.InitiatorName != own.InitiatorName || o.paths[0].Info().PortalGroup != group {
		return false
	}
	up, _ := o.Connected()
	return up
}

// reinstate logs in with the session's ISID at the portal of via, and out again. It reports
// whether that has ended the session at the target.
func (f fence) reinstate(ctx context.Context, via *Session, group int) (over bool, err error) {
	c := f.session.cfg
	c.Address, c.Transport, c.Auth = via.Info().Portal, via.cfg.Transport, via.cfg.Auth
	c.Path, c.KeepTrying, c.FailNow, c.OnEvent, c.Sessions, c.Carried = false, false, true, nil, 1, nil
	n, err := Dial(ctx, c)
	if err != nil {
		return false, err
	}
	over = n.Info().PortalGroup == group
	// Closing it may fail: the lost session may have come back and have taken its place.
	_ = n.Close()
	return over, nil
}
