package iscsi

import (
	"fmt"
	"time"

	"go.uber.org/zap"

	"softiser/blockdev"
	"softiser/target/portal"
	"softiser/target/scsi"
	"softiser/target/volume"
)

// Config describes the front end. Zero fields mean the documented defaults.
type Config struct {
	// Portals are where targets can be reached.
	Portals []*portal.Portal
	// DiscoveryAuth is what a discovery session must prove. A zero Auth lets
	// every initiator discover; it is shown only the targets it may log in to.
	DiscoveryAuth Auth
	// DiscoveryACL says who may open a discovery session.
	DiscoveryACL ACL

	// Commands is the CmdSN window: how many commands one session may have in
	// execution. Default 128. Over iSER the receive credits may lower it.
	Commands int
	// TextData bounds the key text of one negotiation sequence, bytes. Default 16384.
	TextData int
	Room     Room
	Timeouts Timeouts
	Session  SessionParams

	Volumes  *volume.Registry // shared with other front ends; default: its own
	StateDir string           // of what must survive a restart; empty: nothing does
	Staging  *blockdev.Pool   // bounds what peers can make the target hold
	Log      *zap.Logger
}

// Room is how many sessions there may be, and whose. It has no defaults.
type Room struct {
	// Sessions is how many sessions there may be, and SessionsPerAddress how many of
	// them, of each kind, from one address or by one CHAP user once the table is more
	// than half full.
	Sessions, SessionsPerAddress int
	// ReservedSessions are only for initiators that have authenticated or that an access
	// list names, if any target knows such.
	ReservedSessions int
	// DiscoveryAge is how long a discovery session may last; negative: no limit.
	DiscoveryAge time.Duration
}

// Timeouts bound how long an initiator may be silent. 0 means the default, a negative
// value no limit.
type Timeouts struct {
	Login        time.Duration // from accept until the full feature phase; default 15 s
	NopInterval  time.Duration // a session that was silent this long is pinged; default 15 s
	NopReply     time.Duration // a pinged initiator that stays silent this long is gone; default 15 s
	FirstCommand time.Duration // over iSER, from login until the first command; default 60 s
	DataOut      time.Duration // for data that the initiator owes to a WRITE; default 30 s
	// Sequence: for the next PDU of its data, at error recovery level 1 and above. Default 3 s.
	Sequence time.Duration
	Drain    time.Duration // that Drain says initiators have, when its context has no end; default 5 s
}

func def[T int | time.Duration](p *T, v T) {
	if *p == 0 {
		*p = v
	}
}

// fill sets defaults and checks the rest.
func (c *Config) fill() error {
	def(&c.Commands, 128)
	if c.Volumes == nil {
		c.Volumes = new(volume.Registry)
	}
	def(&c.TextData, 16384)
	if c.Commands < 1 || c.Commands > maxWindow {
		return fmt.Errorf("target: Limits.Commands is %d; want 1 to %d", c.Commands, maxWindow)
	}
	t := &c.Timeouts
	def(&t.Login, 15*time.Second)
	def(&t.NopInterval, 15*time.Second)
	def(&t.NopReply, 15*time.Second)
	def(&t.FirstCommand, time.Minute)
	def(&t.DataOut, 30*time.Second)
	def(&t.Sequence, 3*time.Second)
	def(&t.Drain, 5*time.Second)
	return c.Session.fill()
}

// beat is how often a session is looked at: with every ping, or else as often as there
// is something to look for; 0 when there is nothing.
func (t *Timeouts) beat() time.Duration {
	switch {
	case t.NopInterval > 0:
		return t.NopInterval
	case t.FirstCommand > 0 && t.DataOut > 0:
		return min(t.FirstCommand, t.DataOut)
	}
	return max(t.FirstCommand, t.DataOut, 0)
}

// SessionParams are the target's side of the negotiation (RFC 7143 §13).
type SessionParams struct {
	AllowUnsolicited bool // accept InitialR2T=No: Data-Out PDUs that nobody asked for
	NoImmediateData  bool // ImmediateData=No: no data in command PDUs

	MaxBurstLength           int // bytes; default 1 MiB
	FirstBurstLength         int // bytes; default 64 KiB
	MaxRecvDataSegmentLength int // bytes; default 256 KiB; over iSER at most 16 KiB (TargetRecvDataSegmentLength)
	MaxOutstandingR2T        int // default 8
	MaxConnections           int // per session, on TCP; default 1, at most 32
	ErrorRecoveryLevel       int // on TCP; default 0
	DefaultTime2Wait         int // s; default 0: reinstatement ends the old tasks itself
	DefaultTime2Retain       int // s; default 20, negative: 0, tasks end with their connection (RFC 7143 §13.16)
	// HeaderDigest and DataDigest list what is accepted on TCP, preferred first:
	// "CRC32C", "None". Default: both, and the initiator's order decides. Leaving
	// None out refuses initiators without digests. Over iSER they are always None.
	HeaderDigest, DataDigest []string
}

// Auth says what an initiator must prove, and what the target proves in return.
// The zero Auth asks for nothing.
type Auth struct {
	// Users are the CHAP names and secrets that are accepted.
	Users []Credential
	// Mutual is the target's own name and secret; it is used when an initiator
	// asks the target to authenticate itself.
	Mutual Credential
	// Algorithms lists the CHAP algorithms in order of preference by their
	// registered numbers (5 MD5, 6 SHA-1, 7 SHA-256, 8 SHA3-256). Default: 8, 7, 6, 5.
	Algorithms []int
}

// Required reports whether an initiator must authenticate itself.
func (a *Auth) Required() bool { return len(a.Users) > 0 }

// Credential is a CHAP name and secret. Its secret is never printed.
type Credential struct {
	Name   string
	Secret string
}

// String hides the secret.
func (c Credential) String() string { return fmt.Sprintf("%s:***", c.Name) }

// GoString hides the secret from %#v too.
func (c Credential) GoString() string { return c.String() }

// Target is one iSCSI target node.
type Target struct {
	Name  string // iqn., eui. or naa. name, lower case
	Alias string // for people; reported as TargetAlias
	Auth  Auth
	ACL   ACL
	// Session overrides Config.Session when set.
	Session *SessionParams
	// Portals lists the target portal groups through which the target is
	// reached; empty: all.
	Portals []uint16
	// Listen are the listening addresses (Portal.Listen) of the portals it is offered on, of
	// those groups; empty: all of them. Portal groups are those of each target,
	// which need not have all portals of a tag.
	Listen []string
	// PortGroups replaces the target port groups, of which there is one for each
	// portal group otherwise. Relative target ports are portal group tags.
	PortGroups []scsi.PortGroup
	// ExplicitALUA lets initiators change access states, see scsi.Config.
	ExplicitALUA bool
	// Remote are portals of other nodes that serve the target, too. Their groups are those
	// of no portal here.
	Remote []RemotePortal
	// Redirect, when its Address is set, sends every login elsewhere.
	Redirect Redirect
	LUNs     []LUN
}

// RemotePortal is a portal of another node.
type RemotePortal struct {
	Address string // "ip:port"
	RoCE    bool   // a portal for RDMA over UDP; only initiators that have come by that are told of it
	Group   uint16 // target portal group tag there
}

// Redirect tells an initiator that a target is elsewhere (RFC 7143 §11.13.5,
// status 0101 and 0102).
type Redirect struct {
	Address   string // "host:port"
	Permanent bool
}

// LUN is a volume at a number of a target. The caller owns the volume: it is
// flushed, but not closed, by Shutdown, RemoveTarget and RemoveLUN.
type LUN struct {
	Name string // of the volume, for people
	scsi.LUConfig
}

// maxWindow bounds the CmdSN window: command slots are addressed by 16 bits.
const maxWindow = 4096

// maxConnections bounds the connections of one session: each may hold slots for
// a whole command window.
const maxConnections = 32

const maxErrorRecoveryLevel = 2

// fill sets defaults and checks limits.
func (p *SessionParams) fill() error {
	def(&p.MaxBurstLength, 1<<20)
	def(&p.FirstBurstLength, 64<<10)
	def(&p.MaxRecvDataSegmentLength, 256<<10)
	def(&p.MaxOutstandingR2T, 8)
	def(&p.MaxConnections, 1)
	def(&p.DefaultTime2Retain, 20)
	const maxLen = 1<<24 - 1
	for _, l := range []struct {
		name string
		v    int
	}{{"MaxBurstLength", p.MaxBurstLength}, {"FirstBurstLength", p.FirstBurstLength}, {"MaxRecvDataSegmentLength", p.MaxRecvDataSegmentLength}} {
		if l.v < 512 || l.v > maxLen {
			return fmt.Errorf("target: %s is %d; want 512 to %d", l.name, l.v, maxLen)
		}
	}
	if p.MaxConnections < 1 || p.MaxConnections > maxConnections {
		return fmt.Errorf("target: MaxConnections is %d; want 1 to %d", p.MaxConnections, maxConnections)
	}
	if p.ErrorRecoveryLevel < 0 || p.ErrorRecoveryLevel > maxErrorRecoveryLevel {
		return fmt.Errorf("target: ErrorRecoveryLevel is %d; want 0 to %d", p.ErrorRecoveryLevel, maxErrorRecoveryLevel)
	}
	if p.FirstBurstLength > p.MaxBurstLength {
		return fmt.Errorf("target: FirstBurstLength (%d) is above MaxBurstLength (%d)", p.FirstBurstLength, p.MaxBurstLength)
	}
	for _, d := range []*[]string{&p.HeaderDigest, &p.DataDigest} {
		if len(*d) == 0 {
			*d = []string{"CRC32C", "None"}
		}
		for _, v := range *d {
			if v != "CRC32C" && v != "None" {
				return fmt.Errorf("target: digest %q; want CRC32C or None", v)
			}
		}
	}
	return nil
}
