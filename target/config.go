package target

import (
	"time"

	"go.uber.org/zap"

	"softiser/blockdev"
	"softiser/rdma"
	"softiser/target/iscsi"
	"softiser/target/nvmf"
	"softiser/target/portal"
)

// DefaultPort is the registered port of iSCSI (RFC 7143 §4.2.7.1) and of iSER.
const DefaultPort = portal.DefaultPort

// What a configuration consists of, from the packages that define it.
type (
	// Portal is one listening address, on which every protocol answers that is not switched off.
	Portal = portal.Config
	// Certificates are what a portal has for TLS, inside which iSCSI is spoken.
	Certificates = portal.Certificates
	// CRCMode is what a portal asks of the CRC of iWARP.
	CRCMode = rdma.CRCMode
	// ZerocopyMode says when a portal sends long payloads by MSG_ZEROCOPY.
	ZerocopyMode = rdma.ZerocopyMode

	// Target is one iSCSI target node.
	Target = iscsi.Target
	// LUN is a volume at a number of a target. The volume stays the caller's: it is flushed, but
	// not closed, by Shutdown, RemoveTarget and RemoveLUN.
	LUN = iscsi.LUN
	// Redirect tells an initiator that a target is elsewhere.
	Redirect = iscsi.Redirect
	// RemotePortal is a portal of another node.
	RemotePortal = iscsi.RemotePortal
	// Auth says what an initiator must prove, and what the target proves in return.
	Auth = iscsi.Auth
	// Credential is a CHAP name and secret.
	Credential = iscsi.Credential
	// Rule lets an initiator in when every part that is set matches.
	Rule = iscsi.Rule
	// ACL is a list of rules, of which an initiator must match one; nil admits everybody, an empty one nobody.
	ACL = iscsi.ACL
	// SessionParams are the target's side of the negotiation (RFC 7143 §13).
	SessionParams = iscsi.SessionParams
)

// CRC and zerocopy modes of a portal.
const (
	CRCRequired  = rdma.CRCRequired
	CRCOffered   = rdma.CRCOffered
	CRCOff       = rdma.CRCOff
	ZerocopyAuto = rdma.ZerocopyAuto
	ZerocopyOff  = rdma.ZerocopyOff
	ZerocopyOn   = rdma.ZerocopyOn
)

// ErrServerClosed is returned by Serve after Shutdown.
var ErrServerClosed = portal.ErrServerClosed

// ErrVolumesHeld is the error of a Shutdown that has not waited any longer for storage:
// some volume is still in use and may not be closed.
var ErrVolumesHeld = portal.ErrVolumesHeld

// Config describes a server. Zero fields mean the documented defaults. It is
// copied by New; targets, LUNs and limits are changed by methods.
type Config struct {
	// Portals are the addresses to listen on; at least one.
	Portals []Portal
	// DiscoveryAuth is what a discovery session must prove. A zero Auth lets
	// every initiator discover; it is shown only the targets it may log in to.
	DiscoveryAuth Auth
	// DiscoveryACL says who may open a discovery session.
	DiscoveryACL ACL
	// DiscoveryNQN is a name of NVMe's discovery service that this server has alone; its
	// hosts may use it in place of the well-known one. "": none.
	DiscoveryNQN string
	// Referrals are discovery services of other nodes that NVMe hosts are told of.
	Referrals []nvmf.Remote

	Limits   Limits
	Timeouts Timeouts
	Session  SessionParams

	// StateDir keeps what must survive a restart (persistent reservations with
	// APTPL, saved mode pages). Empty: neither is offered.
	StateDir string

	// Staging bounds what peers can make the server hold: WRITE data that nobody has
	// asked for, PDUs ahead of their turn, answers that are not read, data kept for
	// recovery, what LUNs with verified placement receive into. A command that finds
	// no room ends with BUSY. It is usually the pool of the volumes; nil:
	// blockdev.DefaultPool.
	Staging *blockdev.Pool

	// Log receives what an operator should know: connections refused and why,
	// sessions that come and go, task management. Nothing is logged per command.
	// nil: nothing is logged.
	Log *zap.Logger
}

// Limits bound what peers may use. 0 means the default.
type Limits struct {
	// PendingLogins is how many connections may be before their full feature
	// phase at once, and PendingPerAddress how many of them from one address once
	// they are more than half: whoever has many makes room. An IPv6 address stands for
	// its /64. Default 256, and an eighth of it.
	PendingLogins, PendingPerAddress int
	// Sessions is how many sessions there may be, and SessionsPerAddress how many of
	// them, of each kind, from one address or by one CHAP user once the table is more
	// than half full. Default 4096, and an eighth of it.
	Sessions, SessionsPerAddress int
	// ReservedSessions are only for initiators that have authenticated or that an access
	// list names, if any target knows such. Default an eighth of Sessions.
	ReservedSessions int
	// Controllers is how many NVMe hosts may have, of all subsystems; once half are there a
	// host that has proved its name, or else an address, has an eighth. Default 1024; New
	// alone looks at it.
	Controllers int
	// DiscoveryAge is how long a discovery session may last. Default 10 min; negative:
	// no limit.
	DiscoveryAge time.Duration
	// Commands is the CmdSN window: how many commands one session may have in
	// execution. Default 128. Over iSER the receive credits may lower it.
	Commands int
	// TextData bounds the key text of one negotiation sequence, bytes. Default 16384.
	TextData int
}

// Timeouts bound how long a peer may be silent. 0 means the default, a negative
// value no limit.
type Timeouts struct {
	// FirstBytes: from accept until the transport is known. Default 5 s (what
	// the Linux siw driver allows for an MPA Request).
	FirstBytes time.Duration
	// Login: from accept until the full feature phase. Default 15 s.
	Login time.Duration
	// NopInterval: a session that was silent this long is pinged. Default 15 s.
	NopInterval time.Duration
	// NopReply: a pinged initiator that stays silent this long is gone. Default 15 s.
	NopReply time.Duration
	// FirstCommand: over iSER, where nothing may be sent to an initiator before its first
	// command, that has to come this long after login. Default 60 s.
	FirstCommand time.Duration
	// DataOut: a WRITE waits this long for data that the initiator owes. Default 30 s.
	DataOut time.Duration
	// Sequence: at error recovery level 1 and above, a WRITE waits this long for the
	// next PDU of its data before the target asks for what is missing. Default 3 s.
	Sequence time.Duration
	// Drain: Shutdown asks initiators to log out and waits this long before it
	// closes their connections. Default 5 s.
	Drain time.Duration
	// Storage: once initiators are gone Shutdown waits this long for volumes, whose
	// last commands have to end and which are flushed. Default 50 s.
	Storage time.Duration
	// Rest: Freeze waits this long for sessions and controllers to stand still. Those that
	// do not by then are not carried. Default 1 s.
	Rest time.Duration
}

func def[T int | time.Duration](p *T, v T) {
	if *p == 0 {
		*p = v
	}
}

// defaultShare is what one holder may have of n places once half of them are taken: an
// eighth, or as good as all where there are few.
func defaultShare(n int) int { return max(n/8, min(n, 8)) }

func (l *Limits) fill() {
	def(&l.PendingLogins, 256)
	def(&l.PendingPerAddress, defaultShare(l.PendingLogins))
	def(&l.Sessions, 4096)
	def(&l.SessionsPerAddress, defaultShare(l.Sessions))
	def(&l.ReservedSessions, l.Sessions/8)
	def(&l.DiscoveryAge, 10*time.Minute)
}

// fill sets the defaults that concern every front end.
func (c *Config) fill() {
	c.Limits.fill()
	def(&c.Timeouts.FirstBytes, 5*time.Second)
	def(&c.Timeouts.Drain, 5*time.Second)
	def(&c.Timeouts.Storage, 50*time.Second)
	def(&c.Timeouts.Rest, time.Second)
	if c.Staging == nil {
		c.Staging = blockdev.DefaultPool()
	}
	if c.Log == nil {
		c.Log = zap.NewNop()
	}
}
