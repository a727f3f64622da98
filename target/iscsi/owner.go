package iscsi

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"go.uber.org/zap"

	"softiser/internal/iscsi"
)

// This file is about whose an initiator's name is. A name and an ISID say which
// session a login replaces, whose reservations it finds, and everybody can write
// them into a Login Request; what CHAP proves is a user. So, at each target:
//
//   - A name that a rule of the access list binds to users is theirs (Rule.Users).
//   - Any other name is that of the user who has proved himself under it, as long as a
//     session or a persistent registration of that name lives.
//   - A target without authentication knows no users: there a name is whose it says.

// errReleased ends the sessions of a name that the administrator takes from its user.
var errReleased = errors.New("the administrator has released the initiator's name")

// checkOwnerLocked refuses a session under a name that belongs to another user. The
// caller holds s.mu, so that none of that user begins meanwhile.
func (s *Frontend) checkOwnerLocked(n *session) error {
	if n.user == "" || n.bound || n.discovery() {
		return nil
	}
	refuse := func(other, by string) error {
		return iscsi.Refuse(iscsi.LoginForbidden, "at %s the name %s is %s's, by a %s; %s may have it when that is gone, or after `iser-target session release %s %s`",
			n.key.target, n.key.initiator, iscsi.Printable(other), by, iscsi.Printable(n.user), n.key.target, n.key.initiator)
	}
	if other, ok := s.sessions.kin.otherUser(n); ok {
		return refuse(other, "session")
	}
	if other, ok := n.node.device.RegisteredUser(n.key.initiator, n.user); ok {
		return refuse(other, "persistent registration")
	}
	return nil
}

// ReleaseInitiator takes an initiator's name at a target from the user whom it belongs
// to: its sessions end, and its persistent registrations, which stay, are those of
// whoever next proves a right to the name.
func (s *Frontend) ReleaseInitiator(target, initiator string) error {
	n, err := s.node(target)
	if err != nil {
		return err
	}
	name := iscsi.NormalizeName(initiator)
	ended := 0
	var others []string
	for _, x := range s.sessionList(n) {
		if x.key.initiator == name {
			x.dismiss(errReleased)
			ended++
		} else {
			others = append(others, iscsi.Printable(x.key.initiator))
		}
	}
	if _, registered := n.device.RegisteredUser(name, ""); ended == 0 && !registered {
		slices.Sort(others)
		there := strings.Join(slices.Compact(others), ", ")
		if there == "" {
			there = "nobody"
		}
		return fmt.Errorf("target %s: %s has no session there, and no registration that belongs to a user; sessions are of: %s", n.cfg.Name, iscsi.Printable(name), there)
	}
	if err := n.device.DisownRegistrations(name); err != nil {
		return fmt.Errorf("target %s: the registrations of %s still belong to their user: %w", n.cfg.Name, name, err)
	}
	s.log.Info("initiator name released", zap.String("target", n.cfg.Name), zap.String("initiator", name), zap.Int("sessions_ended", ended))
	return nil
}
