package nvmf

import (
	"cmp"
	"encoding/hex"
	"maps"
	"slices"
	"time"

	"softiser/internal/nvme"
	"softiser/target/portal"
	"softiser/target/volume"
)

// Status is a snapshot of the front end.
type Status struct {
	Subsystems  []SubsystemStatus
	Controllers []ControllerStatus
	Transports  []TransportStatus
	RDMA        []portal.RDMAStatus
	// Refused are the Connect commands that were refused, by status; FailedProofs the
	// authentications, over which a connection ends.
	Refused      map[string]uint64
	FailedProofs uint64
	// Generation is that of the discovery log.
	Generation uint64
}

// SubsystemStatus is the state of a subsystem.
type SubsystemStatus struct {
	NQN         string            `json:"nqn"`
	Serial      string            `json:"serial"`
	Hosts       []string          `json:"hosts,omitempty"` // who may connect, as in path.Match; none: everybody
	Auth        bool              `json:"auth"`            // some hosts must prove who they are
	TLS         bool              `json:"tls"`             // every host has to use TLS
	Controllers int               `json:"controllers"`
	Namespaces  []NamespaceStatus `json:"namespaces"`
}

// NamespaceStatus is the state of a namespace.
type NamespaceStatus struct {
	NSID      uint32           `json:"nsid"`
	Volume    string           `json:"volume,omitempty"`
	Backend   string           `json:"backend,omitempty"`
	Size      int64            `json:"size_bytes"`
	BlockSize int              `json:"block_size"`
	ReadOnly  bool             `json:"read_only"`
	Placement volume.Placement `json:"placement"`
	UUID      string           `json:"uuid,omitempty"`
	NGUID     string           `json:"nguid,omitempty"`
	// Error is why a namespace that stands in the configuration is not served. A Server
	// does not know of such; the program that reads the configuration adds them.
	Error string `json:"error,omitempty"`
	// Access is the asymmetric access state through each portal group.
	Access map[uint16]volume.PathState `json:"access,omitempty"`
	// Latencies of the volume through this namespace, all controllers together.
	ReadLatency  volume.Latency `json:"read_latency"`
	WriteLatency volume.Latency `json:"write_latency"`
	// Leaving says that it has been removed: hosts do not see it any more, but commands
	// still hold its volume.
	Leaving bool `json:"leaving,omitempty"`
}

// ControllerStatus is what a controller is now.
type ControllerStatus struct {
	Subsystem string `json:"subsystem"`
	ID        uint16 `json:"controller_id"`
	Host      string `json:"host_nqn"`
	HostID    string `json:"host_id"`
	Transport string `json:"transport"`
	// Connection is what the admin queue's connection has agreed on: digests, or what there is
	// of RDMA.
	Connection string `json:"connection,omitempty"`
	Address    string `json:"remote"` // where the admin queue comes from
	// Remotes is where each of its queues comes from, the admin queue's first.
	Remotes []string `json:"connections"`
	Queues  int      `json:"io_queues"`
	Ready   bool     `json:"ready"`
	Proved  bool     `json:"authenticated"` // the host has authenticated itself by DH-HMAC-CHAP
	TLS     bool     `json:"tls"`           // the admin queue is behind TLS
	// ProvedBy is how the host has authenticated itself last: hash, group, and which side.
	ProvedBy string `json:"authenticated_by,omitempty"`
	// TLSKey is the kind of the key's name: version of the identity, and hash.
	TLSKey string `json:"tls_key,omitempty"`
	// Proofs and FailedProofs count the authentications of all of its queues.
	Proofs       uint64        `json:"authentications_total"`
	FailedProofs uint64        `json:"authentication_failures_total"`
	KeepAlive    time.Duration `json:"keep_alive_ns"` // 0: none
	Since        time.Time     `json:"since"`

	Outstanding int `json:"outstanding_commands"` // requests for events included
	Traffic
}

// TransportStatus is what connections of one kind are and have done.
type TransportStatus struct {
	Name        string `json:"transport"`
	Connections int    `json:"connections"` // now: queues, and those before Connect
	// Retransmits are segments that TCP has sent again below NVMe/TCP; what is below RDMA counts
	// for itself.
	Retransmits uint64 `json:"tcp_retransmits_total"`
	Traffic            // of those that have ended as well
}

// Status returns a snapshot.
func (f *Frontend) Status() Status {
	st := Status{Subsystems: []SubsystemStatus{}, Controllers: f.Controllers(), Transports: f.transports(), RDMA: f.wires.Status(), Generation: f.generation.Load(), Refused: map[string]uint64{}, FailedProofs: f.notProved.Load()}
	f.mu.Lock()
	for why, n := range f.refused {
		st.Refused[why.String()] = n
	}
	f.mu.Unlock()
	for _, s := range f.list() {
		st.Subsystems = append(st.Subsystems, s.status())
	}
	return st
}

// transports adds up connections by what carries them.
func (f *Frontend) transports() []TransportStatus {
	resent := map[portal.Transport]uint64{portal.TCP: f.wires.Tally(portal.TCP).Retransmits(), portal.TLS: f.wires.Tally(portal.TLS).Retransmits()}
	f.mu.Lock()
	defer f.mu.Unlock()
	sum := map[portal.Transport]TransportStatus{}
	for t, past := range f.past {
		sum[t] = TransportStatus{Traffic: past}
	}
	for q := range f.queues {
		x := sum[q.conn.Transport]
		x.Connections++
		x.add(&q.counters)
		sum[q.conn.Transport] = x
	}
	l := []TransportStatus{}
	for _, t := range slices.Sorted(maps.Keys(sum)) {
		x := sum[t]
		x.Retransmits = resent[t]
		x.Name = portal.Hello{Protocol: portal.NVMe, Transport: t}.String()
		l = append(l, x)
	}
	return l
}

func (s *subsystem) status() SubsystemStatus {
	st := SubsystemStatus{TLS: s.secureChannel() == SecureRequired, NQN: s.cfg.NQN, Serial: s.cfg.Serial, Controllers: len(s.all()), Namespaces: []NamespaceStatus{}}
	for _, h := range s.hostRules() {
		st.Auth = st.Auth || h.Secret != nil || h.TLSKey != nil
		st.Hosts = append(st.Hosts, cmp.Or(h.NQN, "*"))
	}
	s.mu.Lock()
	served, leaving := s.list(), s.leaving
	s.mu.Unlock()
	for _, n := range served {
		st.Namespaces = append(st.Namespaces, n.status())
	}
	for _, n := range leaving {
		x := n.status()
		x.Leaving = true
		st.Namespaces = append(st.Namespaces, x)
	}
	return st
}

func (n *namespace) status() NamespaceStatus {
	info := n.vol.Geo().Info
	st := NamespaceStatus{
		NSID: n.id, Volume: n.cfg.Name, Backend: info.Backend, Size: info.Size, BlockSize: info.BlockSize,
		ReadOnly: !n.place.Writable(), Placement: n.cfg.Placement, UUID: nvme.HostID(n.names.UUID).String(),
	}
	for _, p := range n.sub.fe.cfg.Portals {
		if st.Access == nil {
			st.Access = map[uint16]volume.PathState{}
		}
		g := p.Config().Group
		st.Access[g], _ = n.vol.Path(g)
	}
	st.ReadLatency, st.WriteLatency = n.latency.sum()
	if n.names.NGUID != [16]byte{} {
		st.NGUID = hex.EncodeToString(n.names.NGUID[:])
	}
	return st
}

// Controllers returns the controllers of all subsystems, those of the discovery service
// included.
func (f *Frontend) Controllers() []ControllerStatus {
	l := []ControllerStatus{}
	for _, s := range append(slices.Clone(f.list()), f.discovery) {
		for _, c := range s.all() {
			l = append(l, c.snapshot())
		}
	}
	slices.SortFunc(l, func(a, b ControllerStatus) int {
		return cmp.Or(cmp.Compare(a.Subsystem, b.Subsystem), cmp.Compare(a.ID, b.ID))
	})
	return l
}

func (c *controller) snapshot() ControllerStatus {
	c.mu.Lock()
	defer c.mu.Unlock()
	admin := c.queues[0]
	st := ControllerStatus{
		Subsystem: c.sub.cfg.NQN, ID: c.id, Host: c.host, HostID: c.hostID.String(), Transport: c.transport, Address: c.from,
		Ready: c.status.Ready(), Proved: admin != nil && admin.auth != nil && admin.proved.Load(), TLS: c.tlsKey != "", KeepAlive: c.alive.timeout, Since: c.since, Traffic: c.past,
		Connection: c.connection, TLSKey: c.tlsKey, Proofs: c.proofs.succeeded.Load(), FailedProofs: c.proofs.failed.Load(),
	}
	if how := c.proofs.last.Load(); how != nil {
		st.ProvedBy = *how
	}
	for _, id := range slices.Sorted(maps.Keys(c.queues)) {
		q := c.queues[id]
		st.Remotes = append(st.Remotes, q.conn.Remote.String())
		if id != 0 {
			st.Queues++
		}
		st.Outstanding += int(q.open.Load())
		st.add(&q.counters)
	}
	return st
}
