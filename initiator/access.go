package initiator

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"softiser/initiator/blockio"
	"softiser/internal/spc"
)

// The LUN as one of several paths to a volume, see Config.Path.

var _ blockio.Path = (*LUN)(nil)

// Connected reports whether commands flow over any session of the LUN, and if not, why.
func (l *LUN) Connected() (bool, error) {
	var why error
	for _, s := range l.paths {
		st, err := s.State()
		if st == StateActive {
			return true, nil
		}
		if err == nil {
			err = fmt.Errorf("the session is %v", st)
		}
		why = err
	}
	return false, why
}

// Epoch is the life of the target's cache that the LUN is in.
func (l *LUN) Epoch() *blockio.Epoch { return l.epoch.Load() }

// Access asks for the state of the target port group that the LUN is reached through
// (REPORT TARGET PORT GROUPS). A target without groups has one path that is as good as
// any, if it says that the unit is ready.
func (l *LUN) Access(ctx context.Context) (state blockio.Access, shared bool, err error) {
	at := lookup{l.path(), l.wire}
	if _, err := at.command(ctx, spc.AppendTestUnitReady(nil), nil); err != nil {
		var se *spc.SenseError
		if !errors.As(err, &se) || se.Sense.Key != spc.KeyNotReady {
			return blockio.AccessGone, false, err
		}
		switch se.Sense.ASC {
		case spc.ASCAccessTransition, spc.ASCBecomingReady:
			return blockio.AccessTransitioning, false, nil
		case spc.ASCAccessStandby, spc.ASCAccessUnavailable:
			return blockio.AccessInaccessible, false, nil
		case spc.ASCAccessOffline:
			return blockio.AccessGone, false, nil
		}
		return blockio.AccessGone, false, err
	}
	page, err := at.vpd(ctx, spc.VPDIdentification)
	if lostConnection(err) {
		return blockio.AccessGone, false, err
	}
	ds, _ := spc.ParseDesignators(page)
	group := -1
	for _, d := range ds {
		if d.Association == spc.AssocPort && d.Type == spc.DesignatorPortGroup && len(d.ID) == 4 {
			group = int(binary.BigEndian.Uint16(d.ID[2:]))
		}
	}
	if group < 0 {
		return blockio.AccessOptimized, false, nil
	}
	buf := make([]byte, 4<<10)
	n, err := at.command(ctx, spc.AppendReportTargetPortGroups(nil, false, uint32(len(buf))), buf)
	var se *spc.SenseError
	switch {
	case errors.As(err, &se) && se.Sense.Key == spc.KeyIllegalRequest:
		return blockio.AccessOptimized, false, nil
	case err != nil:
		return blockio.AccessGone, false, err
	}
	groups, err := spc.ParsePortGroups(buf[:n])
	if err != nil {
		return blockio.AccessGone, false, err
	}
	for _, g := range groups {
		if int(g.ID) == group {
			state = accessOf(g.State)
		} else if accessOf(g.State).Usable() {
			shared = true
		}
	}
	return state, shared, nil
}

// accessOf translates an asymmetric access state (SPC-4 §6.37.2).
func accessOf(state byte) blockio.Access {
	switch state {
	case 0:
		return blockio.AccessOptimized
	case 1, 4: // LBA dependent: some of it is elsewhere
		return blockio.AccessNonOptimized
	case 0xF:
		return blockio.AccessTransitioning
	case 0xE:
		return blockio.AccessGone
	}
	return blockio.AccessInaccessible
}

// Fence has each session that is lost reinstated (RFC 7143 §6.3.5): the target ends the
// old one with all its tasks before it answers the login. It makes no difference which
// portal of the portal group is asked, so those of the other paths are; the session's own
// recovery goes on asking its own.
func (l *LUN) Fence(ctx context.Context, others []blockio.Path) error {
	for _, s := range l.paths {
		if err := s.fence(ctx, others); err != nil {
			return err
		}
	}
	return nil
}

// fence returns nil when nothing that this session has sent can still take effect: it is
// up again, or a login with its ISID at another path's portal of the same portal group
// has ended it at the target (RFC 7143 §6.3.5).
func (s *Session) fence(ctx context.Context, others []blockio.Path) error {
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
		if !ok {
			continue
		}
		t := o.paths[0]
		ti := t.Info()
		if t.cfg.TargetName != s.cfg.TargetName || t.cfg.InitiatorName != s.cfg.InitiatorName || ti.PortalGroup != group {
			continue
		}
		if up, _ := o.Connected(); !up {
			continue
		}
		// A login with our ISID at any portal of the group reinstates the session.
		c := s.cfg
		c.Address, c.Transport, c.Auth = ti.Portal, t.cfg.Transport, t.cfg.Auth
		c.Path, c.KeepTrying, c.FailNow, c.OnEvent, c.Sessions = false, false, true, nil, 1
		n, err := Dial(ctx, c)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		same := n.Info().PortalGroup == group
		// Its end may be that the lost session has come back, which reinstates it in turn.
		_ = n.Close()
		if same {
			return nil
		}
	}
	return errors.Join(errs...)
}

// Reset resets the logical unit.
func (l *LUN) Reset(ctx context.Context) error { return l.path().ResetLUN(ctx, l.num) }

// Cancel ends r before its time.
func (l *LUN) Cancel(r *Request, err error) {
	if q := stateOf(r); q.sess != nil {
		q.sess.abandon(q, err)
	}
}
