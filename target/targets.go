package target

import (
	"context"
	"strings"

	"softiser/target/scsi"
)

// SetCertificates changes what the portal of a listening address has for TLS (Portal.Listen),
// for connections that come from now on; nil: nothing.
func (s *Server) SetCertificates(listen string, c *Certificates) error {
	return s.server.SetCertificates(listen, c)
}

// AddTarget adds a target with its LUNs. A LUN that cannot be added is an error
// that names it; the target and the other LUNs are there all the same, so that
// one bad volume does not take the rest with it.
func (s *Server) AddTarget(t Target) error { return s.iscsi.AddTarget(t) }

// UpdateTarget changes who may log in to a target and what it is called: Alias,
// Auth, ACL and Redirect are taken from t, the rest of it does not count. Sessions
// that are there stay; the next login goes by the new rules.
func (s *Server) UpdateTarget(t Target) error { return s.iscsi.UpdateTarget(t) }

// RemoveTarget ends the sessions of a target and takes it away. Volumes are
// flushed. If ctx ends while commands still hold a volume, the target is gone for
// initiators, and RemoveTarget may be called again to wait for the rest: only when it
// returns something else than ctx's error may the volumes be closed.
func (s *Server) RemoveTarget(ctx context.Context, name string) error {
	return s.iscsi.RemoveTarget(ctx, name)
}

// VacantLUN says why AddLUN would refuse every LUN of that number; nil: it does not. Who opens a
// volume for it, and perhaps makes it, asks beforehand.
func (s *Server) VacantLUN(target string, number uint16) error { return s.iscsi.Vacant(target, number) }

// AddLUN adds a volume to a target; initiators that are logged in are told.
func (s *Server) AddLUN(target string, l LUN) error { return s.iscsi.AddLUN(target, l) }

// RemoveLUN takes a volume away from a target, under load if need be: new
// commands find no such unit, and when RemoveLUN returns without an error
// nothing uses the volume any more, so that its owner may close it.
func (s *Server) RemoveLUN(ctx context.Context, target string, number uint16) error {
	return s.iscsi.RemoveLUN(ctx, target, number)
}

// SetAccessState changes the asymmetric access state of a LUN (ALUA), or of a namespace
// (ANA) if target is a subsystem's NQN, through one portal group. Initiators are told by a
// unit attention, hosts by an event. A namespace follows the LUNs of its volume.
func (s *Server) SetAccessState(target string, number, group uint16, state scsi.AccessState) error {
	if strings.HasPrefix(target, "nqn.") {
		return s.nvmf.SetAccessState(target, uint32(number), group, state.Path())
	}
	return s.iscsi.SetAccessState(target, number, group, state)
}

// ReleaseInitiator takes an initiator's name at a target from the user whom it belongs
// to: its sessions end, and its persistent registrations, which stay, are those of
// whoever next proves a right to the name.
func (s *Server) ReleaseInitiator(target, initiator string) error {
	return s.iscsi.ReleaseInitiator(target, initiator)
}

// KillSession ends the session with the given TSIH. Its initiator is told
// (AsyncEvent 3), and usually logs in again.
func (s *Server) KillSession(tsih uint16) error { return s.iscsi.KillSession(tsih) }
