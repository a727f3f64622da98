package target

import (
	"context"

	"softiser/target/nvmf"
	"softiser/target/volume"
)

// AddSubsystem serves an NVMe subsystem with its namespaces on every portal that allows
// NVMe. A volume may be a namespace and a LUN, of any number of targets, at once.
func (s *Server) AddSubsystem(c nvmf.SubsystemConfig) error { return s.nvmf.AddSubsystem(c) }

// VacantNamespace is VacantLUN for AddNamespace.
func (s *Server) VacantNamespace(nqn string, nsid uint32) error { return s.nvmf.Vacant(nqn, nsid) }

// AddNamespace adds a namespace to a subsystem; hosts that are there are told.
func (s *Server) AddNamespace(nqn string, c nvmf.NamespaceConfig) error {
	return s.nvmf.AddNamespace(nqn, c)
}

// RemoveNamespace takes a namespace away, under load if need be. When it returns something
// else than ErrVolumesHeld nothing uses the volume at this place any more; until then it may be
// called again to wait.
func (s *Server) RemoveNamespace(ctx context.Context, nqn string, nsid uint32) error {
	return s.nvmf.RemoveNamespace(ctx, nqn, nsid)
}

// Controllers returns the NVMe controllers that hosts have now.
func (s *Server) Controllers() []nvmf.ControllerStatus { return s.nvmf.Controllers() }

// SetNamespaceAccess is SetAccessState for a namespace, in the words of NVMe.
func (s *Server) SetNamespaceAccess(nqn string, nsid uint32, group uint16, state volume.PathState) error {
	return s.nvmf.SetAccessState(nqn, nsid, group, state)
}

// RemoveSubsystem ends the controllers of a subsystem and takes it away; volumes are
// flushed. If ctx ends while commands still hold a volume the error is ErrVolumesHeld: the
// subsystem is gone for hosts, and RemoveSubsystem may be called again to wait for the rest.
func (s *Server) RemoveSubsystem(ctx context.Context, nqn string) error {
	return s.nvmf.RemoveSubsystem(ctx, nqn)
}

// SetHosts changes who may connect to a subsystem, what they have to prove and whether
// through TLS, from the next Connect and authentication on.
func (s *Server) SetHosts(nqn string, hosts []nvmf.HostRule, channel nvmf.SecureChannel) error {
	return s.nvmf.SetHosts(nqn, hosts, channel)
}

// SetReferrals changes which discovery services of other nodes NVMe hosts are told of.
func (s *Server) SetReferrals(l []nvmf.Remote) error { return s.nvmf.SetReferrals(l) }

// SetRemote changes which portals of other nodes NVMe hosts are told of for a subsystem.
func (s *Server) SetRemote(nqn string, l []nvmf.Remote) error { return s.nvmf.SetRemote(nqn, l) }

// Authentications counts the proofs that NVMe hosts have been asked for.
func (s *Server) Authentications() nvmf.Authentications { return s.nvmf.Authentications() }
