package iscsi

import (
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"softiser/internal/iscsi"
	"softiser/target/scsi"
)

// This file is about how a session comes into the table of the front end.

// register enters a new session. An older one of the same initiator port is
// ended first (session reinstatement, RFC 7143 §6.3.5): the new one begins only
// when the old tasks are over and the nexus is lost. c is its leading connection.
func (s *Frontend) register(n *session, c *conn) error {
	s.awaitEnding(n, c)
	deadline := afterLogin(s)
	defer deadline.Stop()
	for {
		s.mu.Lock()
		if s.draining() {
			s.mu.Unlock()
			return iscsi.Refuse(iscsi.LoginUnavailable, "the target is shutting down")
		}
		if n.node != nil && n.node.gone {
			s.mu.Unlock()
			return iscsi.Refuse(iscsi.LoginTargetRemoved, "target %s has been removed", n.key.target)
		}
		if err := s.checkOwnerLocked(n); err != nil {
			s.mu.Unlock()
			return err
		}
		old := s.sessions.ports[n.key]
		if old == nil {
			victim, err := s.sessions.placeFor(n, !n.known && s.targets.knowSome())
			switch {
			case err != nil:
				s.stats.noRoom.Add(1)
			case victim == nil:
				err = s.enterLocked(n)
			}
			s.mu.Unlock()
			if victim == nil {
				return err
			}
			s.stats.discoveryEnded.Add(1)
			victim.dismiss(errDiscoveryRoom)
			<-victim.done // it has no tasks to wait for
			continue
		}
		s.mu.Unlock()
		s.stats.reinstated.Add(1)
		s.limits.sessions.Info(old.log(), "session reinstatement: the old session ends", zap.Stringer("new_connection", c.remote))
		old.shut(errReinstated)
		select {
		case <-old.done:
		case <-c.ended:
			return errors.New("the connection ended while the old session was being closed")
		case <-deadline.C:
			return iscsi.Refuse(iscsi.LoginUnavailable, "tasks of the old session of %s are still running", n.key.initiator)
		}
	}
}

// afterLogin is how long a login waits for what it replaces.
func afterLogin(s *Frontend) *time.Timer {
	return time.NewTimer(max(s.cfg.Timeouts.Login, time.Second))
}

// enterLocked gives n a TSIH and its nexus. The caller holds s.mu.
func (s *Frontend) enterLocked(n *session) error {
	n.tsih = s.sessions.freeTSIH()
	if !n.discovery() {
		if err := n.openNexus(); err != nil {
			return err
		}
	}
	s.sessions.add(n)
	n.limitAgeLocked()
	s.stats.logins.Add(1)
	return nil
}

// KillSession ends the session with the given TSIH. Its initiator is told
// (AsyncEvent 3), and usually logs in again.
func (s *Frontend) KillSession(tsih uint16) error {
	x := s.sessionByTSIH(tsih)
	if x == nil {
		return fmt.Errorf("target: there is no session %d", tsih)
	}
	x.dismiss(errKilled)
	return nil
}

// openNexus registers the I_T nexus of the session.
func (s *session) openNexus() (err error) {
	s.nexus, err = s.node.device.NewNexus(scsi.NexusConfig{Initiator: s.key.initiator, ISID: s.key.isid, User: s.user, Holder: s.account, RelPort: s.key.group,
		Queries: s.params.ProtocolLevel >= 2})
	return err
}
