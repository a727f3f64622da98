package config

import (
	"net"
	"slices"
	"strings"
)

// Config is a whole configuration, with defaults filled in. It is not changed
// after Load.
type Config struct {
	Portals []Portal `mapstructure:"portals" json:"portals"`
	Volumes []Volume `mapstructure:"volumes" json:"volumes"`
	Targets []Target `mapstructure:"targets" json:"targets"`
	// Subsystems serve volumes over NVMe/TCP and NVMe/RDMA, on the same portals.
	Subsystems []Subsystem `mapstructure:"subsystems" json:"subsystems,omitempty"`
	Discovery  Discovery   `mapstructure:"discovery" json:"discovery"`
	// HA is what this node shares with others of a cluster.
	HA        HA        `mapstructure:"ha" json:"ha,omitzero"`
	ISCSI     ISCSI     `mapstructure:"iscsi" json:"iscsi"`
	Transport Transport `mapstructure:"transport" json:"transport"`
	Limits    Limits    `mapstructure:"limits" json:"limits"`
	Admin     Admin     `mapstructure:"admin" json:"admin"`
	Logging   Logging   `mapstructure:"logging" json:"logging"`

	// File is where it was read from, "" for none.
	File string `mapstructure:"-" json:"file,omitempty"`
}

// Portal is one listening address. It serves all protocols: the first bytes of a connection
// tell which one it speaks.
type Portal struct {
	Listen    string   `mapstructure:"listen" json:"listen"`                 // host:port, [v6]:port, :port; roce://address[:port]
	Group     int      `mapstructure:"group" json:"group"`                   // target portal group tag, 1-65535
	Advertise string   `mapstructure:"advertise" json:"advertise,omitempty"` // address for SendTargets behind NAT
	Protocols []string `mapstructure:"protocols" json:"protocols,omitempty"` // what is spoken there: iscsi, iser, nvme-tcp, nvme-rdma; none: all
	// Freebind lets the portal listen on an address that this node does not have yet, such as
	// the address of a group that moves between nodes (IP_FREEBIND).
	Freebind   bool   `mapstructure:"freebind" json:"freebind,omitempty"`
	Congestion string `mapstructure:"congestion" json:"congestion,omitempty"`   // TCP congestion control: auto (or nothing), host, or a name
	SendBuffer Size   `mapstructure:"send_buffer" json:"send_buffer,omitempty"` // SO_SNDBUF, 0: the host's
	RecvBuffer Size   `mapstructure:"recv_buffer" json:"recv_buffer,omitempty"` // SO_RCVBUF, 0: 1 MiB for initiators on this host, else the host's
	// TLS encrypts iSCSI on the portal, for iser-initiator and for initiators that connect
	// through a tunnel such as stunnel.
	TLS *PortalTLS `mapstructure:"tls" json:"tls,omitempty"`
}

// Protocols are what a portal can speak.
var Protocols = []string{"iscsi", "iser", "nvme-tcp", "nvme-rdma"}

// roceProtocols are those of them that a portal for RoCE speaks.
var roceProtocols = []string{"iser", "nvme-rdma"}

// roceScheme begins the listening address of a portal for RoCE v2, RDMA over UDP.
const roceScheme = "roce://"

// RoCE reports whether the portal is one for RDMA over UDP. The port of its address is that
// of rdma_cm; UDP's is 4791.
func (p *Portal) RoCE() bool { return strings.HasPrefix(p.Listen, roceScheme) }

// address is where the portal listens, host:port.
func (p *Portal) address() string {
	a := strings.TrimPrefix(p.Listen, roceScheme)
	if _, _, err := net.SplitHostPort(a); err != nil && p.RoCE() {
		if strings.HasPrefix(a, "[") {
			return a + ":" + defaultPort
		}
		return net.JoinHostPort(a, defaultPort)
	}
	return a
}

// defaultPort is that of a portal for RoCE that names none.
const defaultPort = "3260"

// Speaks reports whether the portal speaks a protocol.
func (p *Portal) Speaks(protocol string) bool {
	if p.RoCE() && !slices.Contains(roceProtocols, protocol) {
		return false
	}
	return len(p.Protocols) == 0 || slices.Contains(p.Protocols, protocol)
}

// VolumeType names a backend.
type VolumeType string

// Backends of volumes.
const (
	VolumeFile   VolumeType = "file"   // a mapped regular file
	VolumeRaw    VolumeType = "raw"    // a block device
	VolumeMemory VolumeType = "memory" // RAM; gone when the process ends
	VolumeNull   VolumeType = "null"   // reads zeroes, forgets writes
	VolumeLVM    VolumeType = "lvm"    // a logical volume in LVM2's format
)

// Volume is backing store for one or more LUNs.
type Volume struct {
	Name          string     `mapstructure:"name" json:"name"`                                 // how LUNs, namespaces, groups and commands name it
	Type          VolumeType `mapstructure:"type" json:"type"`                                 // file, raw (a block device), memory, null (reads zeroes, forgets writes), lvm (a logical volume)
	Path          string     `mapstructure:"path" json:"path,omitempty"`                       // file, raw; relative to the configuration file
	Size          Size       `mapstructure:"size" json:"size,omitempty"`                       // bytes; of a file the smallest size: a longer one is served whole
	Create        bool       `mapstructure:"create" json:"create"`                             // file, lvm: make it when missing
	Preallocate   bool       `mapstructure:"preallocate" json:"preallocate"`                   // file: reserve all space at start
	WriteThrough  bool       `mapstructure:"write_through" json:"write_through"`               // file, raw: every write is durable before it is answered
	Placement     string     `mapstructure:"placement" json:"placement,omitempty"`             // of WRITE data: direct, verified; of files and devices on disks both are the same
	ReadOnly      bool       `mapstructure:"read_only" json:"read_only"`                       // open it for reading only; no initiator can write
	Removable     bool       `mapstructure:"removable" json:"removable"`                       // a medium that initiators may eject and load
	BlockSize     Size       `mapstructure:"block_size" json:"block_size,omitempty"`           // 512 or 4096
	PhysBlockSize Size       `mapstructure:"phys_block_size" json:"phys_block_size,omitempty"` // ≥ block_size
	Rotational    bool       `mapstructure:"rotational" json:"rotational"`                     // tell initiators that seeks are slow, whatever the disk below says
	Serial        string     `mapstructure:"serial" json:"serial,omitempty"`                   // VPD 80; derived when empty; a memory volume without one is another disk after each start
	WWID          string     `mapstructure:"wwid" json:"wwid,omitempty"`                       // NAA 6: 32 hex digits; derived when empty
	Lock          bool       `mapstructure:"lock" json:"lock"`                                 // mlock the mapping
	HugePages     bool       `mapstructure:"huge_pages" json:"huge_pages"`                     // memory, and files on tmpfs: ask for transparent huge pages
	VG            string     `mapstructure:"vg" json:"vg,omitempty"`                           // lvm: the volume group
	LV            string     `mapstructure:"lv" json:"lv,omitempty"`                           // lvm: the logical volume
	Devices       []string   `mapstructure:"devices" json:"devices,omitempty"`                 // lvm: files and block devices of the group
	Stripes       int        `mapstructure:"stripes" json:"stripes,omitempty"`                 // lvm, created: the number of devices to stripe over
	StripeSize    Size       `mapstructure:"stripe_size" json:"stripe_size,omitempty"`         // lvm, created: 64KiB if 0
	Pool          string     `mapstructure:"pool" json:"pool,omitempty"`                       // lvm, created: a thin volume in this pool
	PoolSize      Size       `mapstructure:"pool_size" json:"pool_size,omitempty"`             // lvm: create the pool with this size
	ErrorWhenFull bool       `mapstructure:"error_when_full" json:"error_when_full"`           // lvm, pool created: writes to a full pool fail at once
	Snapshots     Snapshots  `mapstructure:"snapshots" json:"snapshots,omitzero"`              // lvm: snapshots that the target takes and removes on a schedule
	QoS           QoS        `mapstructure:"qos" json:"qos"`
	Fault         Fault      `mapstructure:"fault" json:"fault"`
}

// QoS limits what a volume serves; 0 means no limit.
type QoS struct {
	IOPS      int64 `mapstructure:"iops" json:"iops,omitempty"`             // commands per second
	Bandwidth Size  `mapstructure:"bandwidth" json:"bandwidth,omitempty"`   // bytes per second
	Burst     Size  `mapstructure:"burst" json:"burst,omitempty"`           // bytes that may pass at once
	BurstIOPS int64 `mapstructure:"burst_iops" json:"burst_iops,omitempty"` // commands that may pass at once
}

// Fault makes a volume misbehave on purpose, for tests.
type Fault struct {
	ReadDelay  Duration `mapstructure:"read_delay" json:"read_delay,omitempty"`   // added to each read
	WriteDelay Duration `mapstructure:"write_delay" json:"write_delay,omitempty"` // added to each write
	ErrorRate  float64  `mapstructure:"error_rate" json:"error_rate,omitempty"`   // 0 to 1, share of commands
	Seed       int64    `mapstructure:"seed" json:"seed,omitempty"`               // seed of the random choice of failing commands
}

// Target is one iSCSI target node.
type Target struct {
	IQN      string   `mapstructure:"iqn" json:"iqn"`               // its name: iqn.YYYY-MM.reversed.domain:name, eui. or naa.
	Alias    string   `mapstructure:"alias" json:"alias,omitempty"` // for people; initiators show it
	LUNs     []LUN    `mapstructure:"luns" json:"luns"`
	Auth     Auth     `mapstructure:"auth" json:"auth"`
	ACL      ACL      `mapstructure:"acl" json:"acl"`
	Portals  []string `mapstructure:"portals" json:"portals,omitempty"`   // listen addresses it is offered on; empty: all
	Redirect string   `mapstructure:"redirect" json:"redirect,omitempty"` // host:port: moved temporarily
	// ALUAMode says who may change access states: implicit: only this side; explicit: initiators too.
	ALUAMode string `mapstructure:"alua_mode" json:"alua_mode,omitempty"`
}

// LUN maps a volume into a target.
type LUN struct {
	LUN      int    `mapstructure:"lun" json:"lun"`             // 0 to 16383
	Volume   string `mapstructure:"volume" json:"volume"`       // the name of one of volumes
	ReadOnly bool   `mapstructure:"read_only" json:"read_only"` // initiators of this target cannot write
	ALUA     string `mapstructure:"alua" json:"alua,omitempty"` // access state through every portal group: active-optimized, active-non-optimized, standby, unavailable, offline
	// ALUAGroups are the portal groups through which the state differs from alua.
	ALUAGroups []ALUAGroup `mapstructure:"alua_groups" json:"alua_groups,omitempty"`
}

// ALUAGroup is the access state of a LUN through one portal group.
type ALUAGroup struct {
	Group int    `mapstructure:"group" json:"group"` // of portals[].group
	State string `mapstructure:"state" json:"state"` // as in alua
}

// Subsystem is one NVMe subsystem.
type Subsystem struct {
	NQN        string      `mapstructure:"nqn" json:"nqn"`                 // its name: nqn.YYYY-MM.reversed.domain:name
	Serial     string      `mapstructure:"serial" json:"serial,omitempty"` // 20 characters; derived when empty
	Namespaces []Namespace `mapstructure:"namespaces" json:"namespaces"`
	// MinCntlID and MaxCntlID bound the identifiers of controllers, so that several targets can
	// serve one subsystem: each has a range of its own. 1 to 65519; 0: no bound.
	MinCntlID int      `mapstructure:"min_cntlid" json:"min_cntlid,omitempty"`
	MaxCntlID int      `mapstructure:"max_cntlid" json:"max_cntlid,omitempty"`
	Hosts     []string `mapstructure:"hosts" json:"hosts,omitempty"`       // NQNs; * and ? match; empty: everybody
	Networks  []string `mapstructure:"networks" json:"networks,omitempty"` // CIDR or address; empty: from anywhere
	// Keys are those of hosts that have to prove who they are. Such a host need not be
	// listed again under hosts; if there are keys and no hosts, nobody else may connect.
	Keys []HostKey `mapstructure:"keys" json:"keys,omitempty"`
	// SecureChannel says who has to use TLS: allowed (hosts whose only key is for TLS),
	// required (every host), none (nobody can); empty: allowed.
	SecureChannel string `mapstructure:"secure_channel" json:"secure_channel,omitempty"`
	// Remote are portals of other nodes that serve the subsystem too; discovery reports them to
	// hosts. This needs min_cntlid and max_cntlid, different on each node, and volumes with a wwid.
	Remote []Remote `mapstructure:"remote" json:"remote,omitempty"`
}

// Namespace maps a volume into a subsystem.
type Namespace struct {
	NSID     int    `mapstructure:"nsid" json:"nsid"`           // 1 to 1024
	Volume   string `mapstructure:"volume" json:"volume"`       // the name of one of volumes
	ReadOnly bool   `mapstructure:"read_only" json:"read_only"` // hosts of this subsystem cannot write
	// ANA is the access state through every portal group: optimized, non-optimized,
	// inaccessible, persistent-loss; empty, and no ana_groups: that of the volume, which its
	// LUNs may set.
	ANA       string     `mapstructure:"ana" json:"ana,omitempty"`
	ANAGroups []ANAGroup `mapstructure:"ana_groups" json:"ana_groups,omitempty"` // portal groups through which it differs from ana
}

// ANAGroup is the access state of a namespace through one portal group.
type ANAGroup struct {
	Group int    `mapstructure:"group" json:"group"` // of portals[].group
	State string `mapstructure:"state" json:"state"` // as in ana
}

// ACL says who may log in. Empty lists admit everybody.
type ACL struct {
	Initiators []string `mapstructure:"initiators" json:"initiators,omitempty"` // IQNs; * and ? match
	Networks   []string `mapstructure:"networks" json:"networks,omitempty"`     // CIDR or address
	// Bind reserves initiator names for CHAP users or certificates: only those may log in under
	// such a name, which need not be listed under initiators as well.
	Bind []Binding `mapstructure:"bind" json:"bind,omitempty"`
}

// Binding reserves initiator names for CHAP users, for holders of certificates, or, if it lists
// both, for users who have such a certificate.
type Binding struct {
	Initiator string   `mapstructure:"initiator" json:"initiator"`   // IQN; * and ? match
	Users     []string `mapstructure:"users" json:"users,omitempty"` // names of auth.users
	// Certificates are names in certificates that portals[].tls takes: common names, URIs and
	// hosts of subjectAltName. There are no wildcards.
	Certificates []string `mapstructure:"certificates" json:"certificates,omitempty"`
}

// Auth is how initiators prove who they are.
type Auth struct {
	Method     string   `mapstructure:"method" json:"method"`                   // none, chap
	Algorithms []string `mapstructure:"algorithms" json:"algorithms,omitempty"` // preferred first: md5, sha1, sha256, sha3-256
	Users      []User   `mapstructure:"users" json:"users,omitempty"`
	Mutual     *User    `mapstructure:"mutual" json:"mutual,omitempty"` // what the target proves when the initiator asks for mutual CHAP
}

// User is a CHAP name and where its secret comes from. The secret itself is
// never part of a configuration, nor printed.
type User struct {
	Name       string `mapstructure:"name" json:"name"`                         // CHAP name
	SecretFile string `mapstructure:"secret_file" json:"secret_file,omitempty"` // file with the secret, closed to other users; or else:
	SecretEnv  string `mapstructure:"secret_env" json:"secret_env,omitempty"`   // environment variable with the secret

	secret []byte
}

// Secret returns the CHAP secret that Load has read.
func (u *User) Secret() []byte { return u.secret }

// Discovery is the policy of discovery sessions, and what NVMe's discovery service is
// called and knows of others.
type Discovery struct {
	Auth Auth `mapstructure:"auth" json:"auth"` // iSCSI
	// NQN is a name of NVMe's discovery service that this node has alone; empty: only the
	// well-known one, to which it answers anyway.
	NQN       string     `mapstructure:"nqn" json:"nqn,omitempty"`
	Referrals []Referral `mapstructure:"referrals" json:"referrals,omitempty"`
}

// Referral is a discovery service of another node, of which NVMe hosts are told.
type Referral struct {
	Address   string   `mapstructure:"address" json:"address"`               // IP:port; roce://IP[:port]
	NQN       string   `mapstructure:"nqn" json:"nqn,omitempty"`             // empty: the well-known one
	Protocols []string `mapstructure:"protocols" json:"protocols,omitempty"` // nvme-tcp, nvme-rdma; none: both, of roce:// the second
}

// Remote is a portal of another node that serves the same subsystem.
type Remote struct {
	Address   string   `mapstructure:"address" json:"address"`               // IP:port; roce://IP[:port]
	Protocols []string `mapstructure:"protocols" json:"protocols,omitempty"` // nvme-tcp, nvme-rdma; none: both, of roce:// the second
}

// ISCSI holds the values that the target offers in login.
type ISCSI struct {
	QueueDepth         int      `mapstructure:"queue_depth" json:"queue_depth"`                     // CmdSN window
	ImmediateData      bool     `mapstructure:"immediate_data" json:"immediate_data"`               // ImmediateData: data in the PDU of a command
	InitialR2T         bool     `mapstructure:"initial_r2t" json:"initial_r2t"`                     // InitialR2T: no Data-Out before an R2T asks for it
	FirstBurst         Size     `mapstructure:"first_burst" json:"first_burst"`                     // FirstBurstLength: unsolicited data of a command; at most max_burst
	MaxBurst           Size     `mapstructure:"max_burst" json:"max_burst"`                         // MaxBurstLength: data of one R2T, or of one sequence of Data-In
	MaxRecvDataSegment Size     `mapstructure:"max_recv_data_segment" json:"max_recv_data_segment"` // MaxRecvDataSegmentLength of the target
	MaxOutstandingR2T  int      `mapstructure:"max_outstanding_r2t" json:"max_outstanding_r2t"`     // MaxOutstandingR2T: R2Ts of a command at once
	MaxConnections     int      `mapstructure:"max_connections" json:"max_connections"`             // per session, on TCP
	ErrorRecoveryLevel int      `mapstructure:"error_recovery_level" json:"error_recovery_level"`   // on TCP
	HeaderDigest       []string `mapstructure:"header_digest" json:"header_digest"`                 // preferred first: none, crc32c
	DataDigest         []string `mapstructure:"data_digest" json:"data_digest"`                     // the same for data; over iSER there are none
	Time2Wait          Duration `mapstructure:"time2wait" json:"time2wait"`                         // DefaultTime2Wait: how long an initiator waits before it logs in again
	Time2Retain        Duration `mapstructure:"time2retain" json:"time2retain"`                     // DefaultTime2Retain: how long a session without connections is kept
	NopInterval        Duration `mapstructure:"nop_interval" json:"nop_interval"`                   // a session that is silent for this long is pinged; 0s: never
	NopTimeout         Duration `mapstructure:"nop_timeout" json:"nop_timeout"`                     // a ping that is not answered for this long ends the connection
	LoginTimeout       Duration `mapstructure:"login_timeout" json:"login_timeout"`                 // how long a login may take
}

// Transport holds the settings of the software RDMA device.
type Transport struct {
	CRC        string `mapstructure:"crc" json:"crc"`                   // required, offered, off
	Zerocopy   string `mapstructure:"zerocopy" json:"zerocopy"`         // auto, on, off
	FPDU       string `mapstructure:"fpdu" json:"fpdu"`                 // auto, mss, big
	BusyPoll   string `mapstructure:"busy_poll_us" json:"busy_poll_us"` // auto, or microseconds
	IRD        int    `mapstructure:"ird" json:"ird"`                   // RDMA Reads of an initiator that may be outstanding, 1-256
	ORD        int    `mapstructure:"ord" json:"ord"`                   // RDMA Reads of the target that may be outstanding, 1-256
	StreamISER bool   `mapstructure:"stream_login" json:"stream_login"` // also accept a login over the TCP stream before RDMA mode (RFC 7145 §5.1)
}

// Limits bound what peers can make the process use.
type Limits struct {
	Sessions           int      `mapstructure:"sessions" json:"sessions"`                         // of all initiators together
	SessionsPerAddress int      `mapstructure:"sessions_per_address" json:"sessions_per_address"` // and per CHAP user, once more than half of them are in use; 0: an eighth
	ReservedSessions   int      `mapstructure:"reserved_sessions" json:"reserved_sessions"`       // for initiators that authenticate or that an ACL names; 0: an eighth
	DiscoveryAge       Duration `mapstructure:"discovery_age" json:"discovery_age"`               // a discovery session ends after this time; 0: never
	PendingLogins      int      `mapstructure:"pending_logins" json:"pending_logins"`             // connections that have not logged in
	PendingPerAddress  int      `mapstructure:"pending_per_address" json:"pending_per_address"`   // once more than half of them are in use; 0: an eighth
	Workers            int      `mapstructure:"workers" json:"workers"`                           // how many commands of a volume may wait for storage at once; twice as many for writes that have to be durable, or whose data has been received
	StagingMemory      Size     `mapstructure:"staging_memory" json:"staging_memory"`             // memory for data that is not received straight into its volume, of all peers together; writes to one volume may use an eighth, those of one initiator a quarter
}

// Admin is the local control interface.
type Admin struct {
	Socket   string `mapstructure:"socket" json:"socket,omitempty"`       // unix socket of mode 0600: everyone who may open it (this user, root) may do everything; "": none
	Metrics  string `mapstructure:"metrics" json:"metrics,omitempty"`     // host:port of the status page and of Prometheus' /metrics; "": none
	StateDir string `mapstructure:"state_dir" json:"state_dir,omitempty"` // folder of persistent reservations and saved mode pages; one target at a time uses it; the file version in it has its version
}

// Logging says what is logged and how.
type Logging struct {
	Level  string `mapstructure:"level" json:"level"`   // debug, info, warn, error
	Format string `mapstructure:"format" json:"format"` // console, json
}
