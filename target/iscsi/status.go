package iscsi

import (
	"maps"
	"time"

	"softiser/internal/iscsi"
	"softiser/target/portal"
	"softiser/target/scsi"
)

// Status is a snapshot of the front end.
type Status struct {
	Targets  []TargetStatus
	Sessions []SessionStatus

	Transports []TransportStatus
	RDMA       []portal.RDMAStatus
	Recovery   RecoveryStatus

	Logins        uint64
	LoginsRefused uint64
	Refusals      map[string]uint64 // the refused logins by reason
	LoginsAborted uint64

	Room           Room
	NoRoom         uint64 // sessions refused for want of a place
	DiscoveryEnded uint64 // discovery sessions that were too old, or made room
}

// TargetStatus is the state of a target.
type TargetStatus struct {
	Name     string      `json:"name"`
	Alias    string      `json:"alias,omitempty"`
	Auth     bool        `json:"auth"` // initiators must authenticate
	Sessions int         `json:"sessions"`
	LUNs     []LUNStatus `json:"luns"`
}

// LUNStatus is the state of a logical unit.
type LUNStatus struct {
	LUN       uint16 `json:"lun"`
	Volume    string `json:"volume,omitempty"`
	Backend   string `json:"backend,omitempty"`
	Size      int64  `json:"size_bytes"`
	BlockSize int    `json:"block_size"`
	ReadOnly  bool   `json:"read_only"`
	// Error is why a LUN that stands in the configuration is not served. A Server does
	// not know of such; the program that reads the configuration adds them.
	Error string `json:"error,omitempty"`
	// Placement says whether data of WRITEs is received into the volume or checked
	// first; Stats.PlacementCopied counts what that copied.
	Placement scsi.Placement `json:"placement"`
	// Leaving says that the LUN has been removed: initiators do not find it any more,
	// but commands still hold its volume.
	Leaving bool `json:"leaving,omitempty"`
	// Access is the asymmetric access state through each target port group.
	Access map[uint16]scsi.AccessState `json:"access"`
	// Stats are those of the volume, wherever it is served: at two LUNs the same figures
	// twice. Status.Volumes of the server has them once.
	Stats scsi.Stats `json:"stats"`
	// Latencies of the volume through this LUN, all sessions together.
	ReadLatency  scsi.Latency `json:"read_latency"`
	WriteLatency scsi.Latency `json:"write_latency"`
}

// ConnectionStatus is one connection of a session.
type ConnectionStatus struct {
	CID    uint16 `json:"cid"`
	State  string `json:"state"`
	Local  string `json:"local"`
	Remote string `json:"remote"`
	// Certificate is the name in the one that the initiator has shown in TLS.
	Certificate string `json:"certificate,omitempty"`
}

// SessionStatus is the state of a session. Transport, Connection, Local and Remote
// are those of its first connection; payload and transfers are of all that it has
// and had.
type SessionStatus struct {
	TSIH       uint16        `json:"tsih"`
	Initiator  string        `json:"initiator"`
	Alias      string        `json:"initiator_alias,omitempty"`
	User       string        `json:"user,omitempty"` // CHAP name that it has proved
	ISID       string        `json:"isid"`
	Target     string        `json:"target,omitempty"` // empty: discovery
	State      string        `json:"state"`
	Age        time.Duration `json:"age_ns"`
	Transport  string        `json:"transport"` // iSER, iSCSI/TCP, iSCSI/TCP with TLS
	Connection string        `json:"connection"`
	Local      string        `json:"local"`
	Remote     string        `json:"remote"`

	Connections []ConnectionStatus `json:"connections"`

	Window      int `json:"window"`
	Outstanding int `json:"outstanding_commands"`
	Slots       int `json:"slots_in_use"`

	Reads        uint64 `json:"reads_total"`
	Writes       uint64 `json:"writes_total"`
	Others       uint64 `json:"other_commands_total"`
	Failed       uint64 `json:"failed_commands_total"`
	Aborted      uint64 `json:"aborted_commands_total"`
	TaskRequests uint64 `json:"task_management_total"`
	Rejects      uint64 `json:"rejects_total"`
	Dropped      uint64 `json:"dropped_pdus_total"` // outside the window, or data of ended commands
	NoMemory     uint64 `json:"no_memory_total"`    // commands put off with BUSY for want of staging memory
	BytesIn      uint64 `json:"payload_in_bytes"`   // from the initiator
	BytesOut     uint64 `json:"payload_out_bytes"`  // to the initiator
	BytesCopied  uint64 `json:"payload_copied_bytes"`
	// Latencies of its commands to the LUNs that are there now.
	ReadLatency  scsi.Latency `json:"read_latency"`
	WriteLatency scsi.Latency `json:"write_latency"`

	Transfer TransferStats `json:"datamover"`
}

// TransferStats counts what the connections of a session have moved, since each began,
// and the system calls that took; bytes of payload however they travelled.
type TransferStats = iscsi.DatamoverStats

// Status returns a snapshot.
func (s *Frontend) Status() Status {
	s.mu.Lock()
	room, past := s.sessions.room, maps.Clone(s.past)
	list := s.sessions.list(nil)
	s.mu.Unlock()
	st := Status{
		Sessions:      []SessionStatus{},
		Logins:        s.stats.logins.Load(),
		LoginsAborted: s.stats.loginsAborted.Load(),
		Room:          room, NoRoom: s.stats.noRoom.Load(), DiscoveryEnded: s.stats.discoveryEnded.Load(),
	}
	st.LoginsRefused, st.Refusals = s.refusals.counts()
	count := map[*node]int{}
	for _, x := range list {
		count[x.node]++
		st.Sessions = append(st.Sessions, x.status())
	}
	st.Transports, st.RDMA, st.Recovery = s.transports(list, st.Sessions, past), s.wires.Status(), s.stats.recovery()
	for _, n := range s.nodeList() {
		t := n.status()
		t.Sessions = count[n]
		st.Targets = append(st.Targets, t)
	}
	return st
}

func (n *node) status() TargetStatus {
	t := n.access.Load()
	st := TargetStatus{Name: n.cfg.Name, Alias: t.Alias, Auth: t.Auth.Required(), LUNs: []LUNStatus{}}
	for _, e := range n.list() {
		l := LUNStatus{LUN: e.LUConfig.LUN, Volume: e.Name, Stats: e.lu.Stats(), Access: e.lu.AccessStates()}
		l.ReadLatency, l.WriteLatency = e.lu.Latency()
		if e.Volume != nil {
			info := e.Volume.Info()
			l.Backend, l.Size, l.BlockSize = info.Backend, info.Size, info.BlockSize
			l.ReadOnly = info.ReadOnly || e.ReadOnly
			l.Placement = e.Placement
			l.Leaving = e.lu.Removed()
		}
		st.LUNs = append(st.LUNs, l)
	}
	return st
}

// status is what is told of a session. It takes the session's lock.
func (s *session) status() SessionStatus {
	n, wire := &s.counters, s.wire()
	s.mu.Lock()
	sum := s.conns.members.past
	st := SessionStatus{
		TSIH: s.tsih, Transport: wire.String(), Initiator: s.key.initiator, Alias: iscsi.Printable(s.params.InitiatorAlias), User: s.user,
		ISID: s.key.isid.String(), Target: s.key.target, State: s.state.String(), Age: time.Since(s.born),
		Window: s.order.seq.win.size, Outstanding: s.order.seq.win.active, Slots: s.order.seq.win.used,
		Connections: []ConnectionStatus{},
	}
	for _, c := range s.conns.members.conns {
		st.Connections = append(st.Connections, ConnectionStatus{
			CID: c.cid, State: c.state.get().String(), Local: c.local.String(), Remote: c.remote.String(), Certificate: c.shown.subject,
		})
		sum.add(c)
	}
	if len(s.conns.members.conns) > 0 {
		c := s.conns.members.conns[0]
		st.Connection, st.Local, st.Remote = c.dm.Describe(), c.local.String(), c.remote.String()
	}
	if s.state == sessionActive && len(s.conns.members.conns) == 0 {
		st.State = "without connection"
	}
	st.Reads, st.Writes, st.Others, st.Failed = n.reads, n.writes, n.others, n.failed
	s.mu.Unlock()
	st.Aborted, st.TaskRequests, st.Rejects = n.aborted.Load(), n.taskRequests.Load(), sum.rejects
	st.NoMemory = n.noMemory.Load()
	st.Dropped = n.outOfWindow.Load() + n.strayDataOut.Load()
	st.BytesIn, st.BytesOut, st.BytesCopied = sum.in, sum.out, sum.copied+sum.dm.PayloadCopied
	if s.nexus != nil {
		st.ReadLatency, st.WriteLatency = s.nexus.Latency()
	}
	st.Transfer = sum.dm
	return st
}
