package target

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"go.uber.org/zap"

	"softiser/blockdev"
	"softiser/target/scsi"
)

// DefaultPort is the registered port of iSCSI (RFC 7143 §4.2.7.1) and of iSER.
const DefaultPort = "3260"

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

// Portal is one listening address. Both transports answer on it: the first
// bytes of a connection tell which one the initiator speaks.
type Portal struct {
	// Listen is "host:port"; an empty host or an unspecified address means all
	// addresses. Port 0 lets the system choose (see Server.Addrs).
	Listen string
	// Advertise, when set, is the "host:port" that SendTargets reports instead
	// of the listening address: for a target behind address translation.
	Advertise string
	// Group is the target portal group tag; 0 means 1.
	Group uint16

	NoISER bool // refuse RDMA connections
	NoTCP  bool // refuse plain iSCSI connections

	IRD, ORD int // RDMA Reads the initiator, and we, may have outstanding; default 128
	// StreamLogin also accepts RFC 7145's own start-up: a login over TCP that
	// negotiates RDMAExtensions=Yes turns into an RDMA connection.
	StreamLogin bool

	CRC CRCMode // MPA CRC of RDMA connections
	// LargeFPDU accepts frames above the path's segment size when the initiator
	// offers them (never beyond 64 KiB).
	LargeFPDU bool
	Zerocopy  ZerocopyMode

	// CongestionControl names the TCP congestion control. "auto" or "": reno for
	// initiators on this host, because pacing ones (bbr) halve the throughput over
	// loopback, else the host's default; "host": always that.
	CongestionControl string
	// SendBuffer and RecvBuffer fix the socket buffers, bytes; 0: the system
	// sizes them automatically.
	SendBuffer, RecvBuffer int
	// BusyPoll is how long a receiver spins before it sleeps. 0: over iSER for a few
	// microseconds while an initiator has single commands answered one after the
	// other; negative: never.
	BusyPoll time.Duration
}

// CRCMode says how strongly a portal insists on the MPA CRC (RFC 5044 §4.4).
type CRCMode uint8

// CRC modes of a portal.
const (
	CRCRequired CRCMode = iota // always on: iSCSI digests do not exist over iSER
	CRCOffered                 // on when the initiator asks for it
	CRCOff                     // off; an initiator that insists is refused
)

// ZerocopyMode says when payload is sent with MSG_ZEROCOPY.
type ZerocopyMode uint8

// Zerocopy modes of a portal.
const (
	ZerocopyAuto ZerocopyMode = iota // for large payloads, until the kernel reports that it copied
	ZerocopyOff
	ZerocopyOn
)

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
	MaxRecvDataSegmentLength int // bytes; default 256 KiB (TCP), 8 KiB (iSER: TargetRecvDataSegmentLength)
	MaxOutstandingR2T        int // default 8
	MaxConnections           int // per session, on TCP; default 1, at most 32
	ErrorRecoveryLevel       int // on TCP; default 0
	DefaultTime2Wait         int // s; default 0: reinstatement ends the old tasks itself
	DefaultTime2Retain       int // s; default 20
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
	// PortGroups replaces the target port groups, of which there is one for each
	// portal group otherwise. Relative target ports are portal group tags.
	PortGroups []scsi.PortGroup
	// ExplicitALUA lets initiators change access states, see scsi.Config.
	ExplicitALUA bool
	// Redirect, when its Address is set, sends every login elsewhere.
	Redirect Redirect
	LUNs     []LUN
}

// Redirect tells an initiator that a target is elsewhere (RFC 7143 §11.13.5,
// status 0101 and 0102).
type Redirect struct {
	Address   string // "host:port"
	Permanent bool
}

var errNoPortal = errors.New("target: no portal configured: set Config.Portals, for example {Listen: \"127.0.0.1:3260\"}")

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
	def(&l.Commands, 128)
	def(&l.TextData, 16384)
}

// fill sets defaults and checks what can be checked without listening.
func (c *Config) fill() error {
	if len(c.Portals) == 0 {
		return errNoPortal
	}
	for i := range c.Portals {
		p := &c.Portals[i]
		if p.Group == 0 {
			p.Group = 1
		}
		if !strings.Contains(p.Listen, ":") {
			p.Listen = net.JoinHostPort(p.Listen, DefaultPort)
		}
		for _, a := range []string{p.Listen, p.Advertise} {
			if a == "" {
				continue
			}
			if _, _, err := net.SplitHostPort(a); err != nil {
				return fmt.Errorf("target: portal %q: %v; want host:port, for example 127.0.0.1:3260 or [::1]:3260", a, err)
			}
		}
		def(&p.IRD, 128)
		def(&p.ORD, 128)
		if p.NoISER && p.NoTCP {
			return fmt.Errorf("target: portal %q allows neither iSER nor TCP", p.Listen)
		}
	}
	c.Limits.fill()
	if c.Limits.Commands < 1 || c.Limits.Commands > maxWindow {
		return fmt.Errorf("target: Limits.Commands is %d; want 1 to %d", c.Limits.Commands, maxWindow)
	}
	def(&c.Timeouts.FirstBytes, 5*time.Second)
	def(&c.Timeouts.Login, 15*time.Second)
	def(&c.Timeouts.NopInterval, 15*time.Second)
	def(&c.Timeouts.NopReply, 15*time.Second)
	def(&c.Timeouts.FirstCommand, time.Minute)
	def(&c.Timeouts.DataOut, 30*time.Second)
	def(&c.Timeouts.Sequence, 3*time.Second)
	def(&c.Timeouts.Drain, 5*time.Second)
	if c.Staging == nil {
		c.Staging = blockdev.DefaultPool()
	}
	if c.Log == nil {
		c.Log = zap.NewNop()
	}
	return c.Session.fill()
}

// maxWindow bounds the CmdSN window: command slots are addressed by 16 bits.
const maxWindow = 4096

// maxConnections bounds the connections of one session: each may hold slots for
// a whole command window.
const maxConnections = 32

const maxErrorRecoveryLevel = 2

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
