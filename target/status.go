package target

import (
	"time"

	"softiser/target/iscsi"
	"softiser/target/portal"
)

// Status is a snapshot of a server, for people, the admin socket and metrics.
// Its JSON form is the one that `iser-target status --json` prints.
type Status struct {
	State    string          `json:"state"`
	Uptime   time.Duration   `json:"uptime_ns"`
	Portals  []PortalStatus  `json:"portals"`
	Targets  []TargetStatus  `json:"targets"`
	Sessions []SessionStatus `json:"sessions"`

	Logins        uint64 `json:"logins_total"`
	LoginsRefused uint64 `json:"logins_refused_total"`
	// Refusals are the refused logins by reason.
	Refusals      map[string]uint64 `json:"logins_refused_by_reason"`
	LoginsAborted uint64            `json:"logins_aborted_total"`
	Pending       int               `json:"pending_logins"`

	Limits  LimitStatus   `json:"limits"`
	Staging StagingStatus `json:"staging"`
}

// LimitStatus is what peers share, as it is in force: less than configured where the
// process may not open that many files.
type LimitStatus struct {
	Sessions           int           `json:"sessions"`
	SessionsPerAddress int           `json:"sessions_per_address"` // once more than half are there
	ReservedSessions   int           `json:"reserved_sessions"`
	DiscoveryAge       time.Duration `json:"discovery_age_ns"`
	PendingLogins      int           `json:"pending_logins"`
	PendingPerAddress  int           `json:"pending_per_address"` // once more than half are there

	NoRoom         uint64 `json:"sessions_refused_total"` // for want of a place
	DiscoveryEnded uint64 `json:"discovery_ended_total"`  // too old, or to make room
}

// StagingStatus is how much of Config.Staging is in use, bytes.
type StagingStatus struct {
	Used     int64 `json:"used_bytes"`     // buffers of volumes included
	Reserved int64 `json:"reserved_bytes"` // of these, what sessions hold; at most half of Limit
	Limit    int64 `json:"limit_bytes"`
}

// What the parts of a Status are.
type (
	PortalStatus     = portal.Status
	TargetStatus     = iscsi.TargetStatus
	LUNStatus        = iscsi.LUNStatus
	ConnectionStatus = iscsi.ConnectionStatus
	SessionStatus    = iscsi.SessionStatus
)

// Status returns a snapshot.
func (s *Server) Status() Status {
	f := s.iscsi.Status()
	state, uptime := s.server.State()
	pending, perAddress := s.server.Limits()
	st := Status{
		State:         state,
		Uptime:        uptime,
		Targets:       f.Targets,
		Sessions:      f.Sessions,
		Logins:        f.Logins,
		LoginsRefused: f.LoginsRefused,
		Refusals:      f.Refusals,
		LoginsAborted: f.LoginsAborted,
		Pending:       s.server.Pending(),
		Limits: LimitStatus{
			Sessions: f.Room.Sessions, SessionsPerAddress: f.Room.SessionsPerAddress, ReservedSessions: f.Room.ReservedSessions,
			DiscoveryAge: max(f.Room.DiscoveryAge, 0), PendingLogins: pending, PendingPerAddress: perAddress,
			NoRoom: f.NoRoom, DiscoveryEnded: f.DiscoveryEnded,
		},
		Staging: StagingStatus{
			Used: s.cfg.Staging.Out(), Reserved: s.cfg.Staging.Reserved(), Limit: s.cfg.Staging.Cap(),
		},
	}
	for _, p := range s.server.Portals() {
		st.Portals = append(st.Portals, p.Status())
	}
	return st
}
