package target

import (
	"fmt"
	"iter"
	"slices"
	"time"

	"softiser/blockdev"
	"softiser/rdma"
	"softiser/target/iscsi"
	"softiser/target/nvmf"
	"softiser/target/portal"
	"softiser/target/snapshots"
	"softiser/target/volume"
)

// Status is a snapshot of a server, for people, the admin socket and metrics.
// Its JSON form is the one that `iser-target status --json` prints.
type Status struct {
	State    string          `json:"state"`
	Uptime   time.Duration   `json:"uptime_ns"`
	Portals  []PortalStatus  `json:"portals"`
	RoCE     []rdma.RoCEPort `json:"roce,omitempty"` // the ports beneath portals of RoCE
	Targets  []TargetStatus  `json:"targets"`
	Sessions []SessionStatus `json:"sessions"`

	Subsystems  []SubsystemStatus  `json:"subsystems"`
	Controllers []ControllerStatus `json:"controllers"` // of NVMe hosts, those of the discovery service included
	// ISCSI and NVMe are what initiators and hosts have done, by transport.
	ISCSI []iscsi.TransportStatus `json:"iscsi"`
	NVMe  []nvmf.TransportStatus  `json:"nvme"`
	// RDMA are the queue pairs below, by transport.
	RDMA []portal.RDMAStatus `json:"rdma,omitempty"`
	// Recovery counts what has become of connections of iSCSI that were lost.
	Recovery iscsi.RecoveryStatus `json:"recovery"`
	// Volumes are what LUNs and namespaces are made of, each once however many there are. A
	// Server knows no names; the program that opens the volumes adds them.
	Volumes []VolumeStatus `json:"volumes,omitempty"`

	// Reload is what has become of reloads of the configuration; nil: there is no file. The program that
	// reads the configuration adds it.
	Reload *ReloadStatus `json:"reload,omitempty"`

	// TakenOver tells of the process whose place this one has taken; nil: it was started as the
	// first. The program adds it.
	TakenOver *TakenOver `json:"taken_over,omitempty"`

	// Groups are those of volumes that move between the nodes of a cluster; the program that
	// moves them adds them.
	Groups []GroupStatus `json:"groups,omitempty"`

	Logins        uint64 `json:"logins_total"`
	LoginsRefused uint64 `json:"logins_refused_total"`
	// Refusals are the refused logins by reason.
	Refusals      map[string]uint64 `json:"logins_refused_by_reason"`
	LoginsAborted uint64            `json:"logins_aborted_total"`
	// ConnectsRefused are Connect commands of NVMe hosts, by status.
	ConnectsRefused map[string]uint64 `json:"connects_refused_by_status"`
	// ProofsFailed are authentications of NVMe hosts.
	ProofsFailed uint64 `json:"nvme_authentication_failures_total"`
	Pending      int    `json:"pending_logins"`

	Limits  LimitStatus   `json:"limits"`
	Staging StagingStatus `json:"staging"`
}

// TakenOver is how one process has taken the place of another.
type TakenOver struct {
	PID   int           `json:"pid"` // of the former process
	At    time.Time     `json:"at"`
	Pause time.Duration `json:"pause_ns"` // from the stop of the former process until sessions went on
}

// GroupStatus is the state of a group of volumes that moves between nodes.
type GroupStatus struct {
	Name       string   `json:"name"`
	State      string   `json:"state"`                      // standby, promoting, active, demoting, stuck
	Ownerships uint64   `json:"ownerships_total,omitempty"` // of the group so far, while this node is active
	Fencing    string   `json:"fencing"`
	Volumes    []string `json:"volumes"`
	Error      string   `json:"error,omitempty"` // why the last change has failed
}

// ReloadStatus is what reloads of the configuration have done.
type ReloadStatus struct {
	Done   uint64    `json:"succeeded_total"` // all changes are in force
	Failed uint64    `json:"failed_total"`    // mistakes in the file, or changes that could not be made
	OK     bool      `json:"last_succeeded"`
	Last   time.Time `json:"last_success,omitzero"` // when the configuration in force was taken
	Error  string    `json:"last_error,omitempty"`  // of the last one
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

// Parts of a Status, from the packages that define them.
type (
	// PortalStatus is the state of a listening address.
	PortalStatus = portal.Status
	// TargetStatus is the state of an iSCSI target.
	TargetStatus = iscsi.TargetStatus
	// LUNStatus is the state of a logical unit.
	LUNStatus = iscsi.LUNStatus
	// ConnectionStatus is one connection of a session.
	ConnectionStatus = iscsi.ConnectionStatus
	// SessionStatus is the state of a session.
	SessionStatus = iscsi.SessionStatus
	// SubsystemStatus is the state of an NVMe subsystem.
	SubsystemStatus = nvmf.SubsystemStatus
	// NamespaceStatus is the state of a namespace.
	NamespaceStatus = nvmf.NamespaceStatus
	// ControllerStatus is the association of an NVMe host.
	ControllerStatus = nvmf.ControllerStatus
)

// Status returns a snapshot.
func (s *Server) Status() Status {
	f, n := s.iscsi.Status(), s.nvmf.Status()
	state, uptime := s.server.State()
	pending, perAddress := s.server.Limits()
	st := Status{
		State:         state,
		Uptime:        uptime,
		Targets:       f.Targets,
		Sessions:      f.Sessions,
		Subsystems:    n.Subsystems,
		Controllers:   n.Controllers,
		ISCSI:         f.Transports,
		NVMe:          n.Transports,
		RDMA:          slices.Concat(f.RDMA, n.RDMA),
		Recovery:      f.Recovery,
		Logins:        f.Logins,
		LoginsRefused: f.LoginsRefused,
		Refusals:      f.Refusals,
		LoginsAborted: f.LoginsAborted, ConnectsRefused: n.Refused, ProofsFailed: n.FailedProofs,
		Pending: s.server.Pending(),
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
	st.RoCE = s.server.RoCEPorts()
	return st
}

// VolumeStatus is the state of a volume, whichever wires reach it.
type VolumeStatus struct {
	Name    string   `json:"name"`
	Backend string   `json:"backend"`
	Size    int64    `json:"size_bytes"`
	Served  []string `json:"served"` // "LUN 0 of iqn.…", "namespace 1 of nqn.…"
	// Stats counts what all of them have done.
	Stats volume.Stats `json:"stats"`
	// Reservation is nil when nobody is registered.
	Reservation *ReservationStatus `json:"reservation,omitempty"`
	// Snapshots are those that are taken at set times; nil: there is no plan for them. Whoever
	// takes them adds it.
	Snapshots *snapshots.Status `json:"snapshots,omitempty"`
}

// ReservationStatus is who has registered, by whichever wire, and what is reserved.
type ReservationStatus struct {
	Type        string             `json:"type,omitempty"` // "": registrations only
	Generation  uint32             `json:"generation"`
	Persist     bool               `json:"persists_through_power_loss"`
	Registrants []RegistrantStatus `json:"registrants"`
}

// RegistrantStatus is one registration.
type RegistrantStatus struct {
	Wire      string `json:"wire"`      // iSCSI, NVMe
	Initiator string `json:"initiator"` // initiator port, or host NQN
	HostID    string `json:"host_id,omitempty"`
	Node      string `json:"node"` // target, or subsystem
	Key       string `json:"key"`
	Holder    bool   `json:"holder"`
}

// VolumeStatus describes the volume of a device that is served, without its name and where that is.
func (s *Server) VolumeStatus(d blockdev.Device) VolumeStatus {
	info := d.Info()
	st := VolumeStatus{Backend: info.Backend, Size: info.Size}
	if v := s.volumes.Volume(d); v != nil {
		st.Stats, st.Reservation = v.Stats(), reservationStatus(v.Reservations())
	}
	return st
}

func reservationStatus(now *volume.Reservations) *ReservationStatus {
	if now.Len() == 0 {
		return nil
	}
	st := &ReservationStatus{Generation: now.Generation, Persist: now.Persist}
	if now.Type != volume.NoReservation {
		st.Type = now.Type.String()
	}
	for _, k := range now.Registrants() {
		reg, _ := now.Find(k)
		r := RegistrantStatus{Wire: "iSCSI", Initiator: k.Initiator, Node: k.Target, Key: fmt.Sprintf("%#016x", reg.Key), Holder: now.Holds(k)}
		if host, id, ok := nvmf.HostOf(k); ok {
			r.Wire, r.Initiator, r.HostID = "NVMe", host, id
		}
		st.Registrants = append(st.Registrants, r)
	}
	return st
}

// Unserved goes through what is configured and not served: where, and why.
func (st *Status) Unserved() iter.Seq2[string, string] {
	return func(yield func(where, why string) bool) {
		for _, t := range st.Targets {
			for _, l := range t.LUNs {
				if l.Error != "" && !yield(fmt.Sprintf("LUN %d of %s", l.LUN, t.Name), l.Error) {
					return
				}
			}
		}
		for _, s := range st.Subsystems {
			for _, n := range s.Namespaces {
				if n.Error != "" && !yield(fmt.Sprintf("namespace %d of %s", n.NSID, s.NQN), n.Error) {
					return
				}
			}
		}
	}
}

// BackendWords says what a place's volume is made of, and how it is served there.
func BackendWords(backend string, readOnly bool, placement volume.Placement, leaving bool) string {
	if readOnly {
		backend += ", ro"
	}
	if placement == volume.PlacementVerified {
		backend += ", verified"
	}
	if leaving {
		backend += ", leaving"
	}
	return backend
}
