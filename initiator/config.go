package initiator

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"time"

	"softiser/blockdev"
	"softiser/initiator/blockio"
	"softiser/initiator/internal/silence"
	"softiser/initiator/internal/volurl"
	"softiser/internal/iscsi"
	"softiser/rdma"
)

// Transport chooses how PDUs and data travel.
type Transport uint8

// Transports.
const (
	TransportISER Transport = iota // iSER (RFC 7145) over software iWARP
	TransportTCP                   // iSCSI (RFC 7143) over plain TCP
	TransportRoCE                  // iSER over software RoCE v2; the port is one of rdma_cm
)

var schemes = [...]string{TransportISER: "iser", TransportTCP: "iscsi", TransportRoCE: "iser+roce"}

// String returns the URL scheme of the transport.
func (t Transport) String() string {
	if int(t) < len(schemes) {
		return schemes[t]
	}
	return fmt.Sprintf("Transport(%d)", uint8(t))
}

// DefaultPort is the registered iSCSI port, used by iSER as well.
const DefaultPort = "3260"

// Secret is a CHAP secret. It never appears in what fmt or encoding/json print.
type Secret string

// String hides the secret.
func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return "(hidden)"
}

// Format hides the secret whatever the verb.
func (s Secret) Format(f fmt.State, _ rune) { io.WriteString(f, s.String()) }

// MarshalJSON hides the secret.
func (s Secret) MarshalJSON() ([]byte, error) { return json.Marshal(s.String()) }

// Auth is how the two ends prove who they are (RFC 7143 §12.1).
type Auth struct {
	User, TargetUser     string // names that go with the secrets
	Secret, TargetSecret Secret // TargetSecret set: mutual CHAP
	// Algorithms in order of preference: "md5", "sha1", "sha-256", "sha3-256".
	// Empty: all of them, the strongest first; and MD5 alone when the target
	// refuses the list.
	Algorithms []string
	// None refuses to log in with a secret even when one is set.
	None bool
}

// CRCMode says what iSER asks of the MPA CRC, the only end-to-end check there.
type CRCMode = rdma.CRCMode

// CRC modes.
const (
	CRCRequired CRCMode = rdma.CRCRequired // the connection fails without it
	CRCOffered  CRCMode = rdma.CRCOffered  // used when the peer wants it
	CRCOff      CRCMode = rdma.CRCOff      // the connection fails when the peer wants it
)

// ZerocopyMode says when iSER sends large payloads with MSG_ZEROCOPY.
type ZerocopyMode = rdma.ZerocopyMode

// Zerocopy modes.
const (
	ZerocopyAuto ZerocopyMode = rdma.ZerocopyAuto // until the kernel reports that it copied all the same
	ZerocopyOn   ZerocopyMode = rdma.ZerocopyOn
	ZerocopyOff  ZerocopyMode = rdma.ZerocopyOff
)

// Config says which target to log in to and how. The zero value of every field
// but Address and TargetName is a documented default; Dial works on a copy.
type Config struct {
	Transport  Transport
	Address    string // host:port; the port may be left out (3260)
	TargetName string // IQN; empty only for Discover
	LUN        uint64 // which LUN Open opens (0..16383)
	// LocalAddress is the address of this machine to connect from; the one on the way to the
	// target. Over RoCE its UDP port 4791 is taken by this process, and two processes of
	// one machine need one each.
	LocalAddress netip.Addr

	// InitiatorName is our IQN. Default: DefaultInitiatorName().
	InitiatorName  string
	InitiatorAlias string
	// ISID names this session among those of InitiatorName at the target. It
	// stays the same across reconnects. Zero: random. Persistent reservations
	// belong to name and ISID, so whoever keeps those across runs sets it.
	ISID [6]byte
	Auth Auth
	// TLS has plain iSCSI (TransportTCP) go in TLS; nil: it does not. Nothing is sent in clear
	// then.
	TLS *TLS

	// FallbackTCP lets an iSER Dial go on over plain TCP when the target's
	// port does not speak iSER.
	FallbackTCP bool
	// StreamLogin makes iSER log in over the TCP stream and enter RDMA mode
	// afterwards, as RFC 7145 §5.1 says. Default is what Linux does: MPA first,
	// login PDUs in Sends.
	StreamLogin bool
	CRC         CRCMode // iSER
	// BusyPoll is how long a connection spins for the next PDU before it sleeps, over iSER
	// and over TCP. rdma.BusyPollAuto, which is 0: for a few microseconds while the target
	// answers at once; rdma.BusyPollOff: never.
	BusyPoll  time.Duration
	MaxFPDU   int          // iSER: largest FPDU, bytes; 0: the path's MSS
	Zerocopy  ZerocopyMode // iSER; 0: ZerocopyAuto
	LargeFPDU bool         // iSER: offer frames above the path's MSS, up to 64 KiB
	// Congestion names the TCP congestion control. "auto" or "": reno when the
	// target is on this host, because pacing ones (bbr) halve the throughput over
	// loopback, else the host's default; "host": always that.
	Congestion string
	// SendBuffer and RecvBuffer fix the socket buffers, bytes; 0: the system
	// sizes them, but that to receive is sockio.HostBuffer when the target is on this host.
	SendBuffer, RecvBuffer int

	// HeaderDigest and DataDigest are lists in order of preference over TCP:
	// "None", "CRC32C". Default {"None"}.
	HeaderDigest, DataDigest []string

	// Parameters offered at login; defaults as open-iscsi's.
	InitialR2T        bool // default No
	NoImmediateData   bool // default: immediate data allowed
	FirstBurstLength  int  // bytes, default 262144
	MaxBurstLength    int  // bytes, default 16776192
	MaxRecvDataLength int  // bytes, default 262144: longest data segment we take
	MaxOutstandingR2T int  // default 1
	Time2Wait         int  // seconds, default 0: as long as the target wants
	Time2Retain       int  // seconds, default 0

	// QueueDepth is how many commands one session keeps outstanding; more wait
	// in the session. Default 128.
	QueueDepth int
	// Sessions is how many sessions Open spreads one LUN over. Default 1.
	Sessions int
	// MaxTransfer is the longest single command, bytes; longer requests are
	// split. Default 1 MiB, less when the LUN's Block Limits say so.
	MaxTransfer int

	// Pool is the memory of leases. Default: blockdev.DefaultPool().
	Pool *blockdev.Pool

	LoginTimeout  time.Duration // connect and login; default 30 s
	LogoutTimeout time.Duration // default 15 s
	NopInterval   time.Duration // ping when nothing was heard for so long; default 5 s, <0 never
	NopTimeout    time.Duration // the connection is dead without an answer; default 5 s
	// SilencePing and SilenceProbe are how long not a byte may come while commands are
	// outstanding: then the target is pinged, and then, if it has not answered that either,
	// a second connection is tried. When that is answered and the first one is still mute,
	// another node has taken the target's place: the session is reinstated at once.
	// Default 500 ms and 1 s; SilenceProbe <0: never. A target that answers pings keeps its
	// session, however long commands take.
	SilencePing, SilenceProbe time.Duration
	CommandTimeout            time.Duration // a command is aborted after; default 60 s, <0 never
	AbortTimeout              time.Duration // ABORT TASK is answered within; default 15 s
	ResetTimeout              time.Duration // LUN RESET is answered within; default 30 s
	// ReplacementTimeout is how long I/O is held while the session tries to come
	// back, as open-iscsi's replacement_timeout. Default 120 s; <0 for ever.
	ReplacementTimeout time.Duration
	// KeepTrying goes on looking for the target when that time is over, or when
	// the target refuses us: commands fail with ErrSessionLost (the session is in
	// StateDown) until a login succeeds and the LUNs are the same as before.
	KeepTrying bool
	// FailNow gives up at the first loss of the connection
	// (open-iscsi's replacement_timeout = 0).
	FailNow bool

	// Path makes the session one of several to the same volume: commands fail at once
	// when the connection is lost (FailNow, KeepTrying), and with blockio.ErrInaccessible
	// instead of waiting where the target says that this path is not the one to use.
	Path bool
	// Cache is the account of the volume's volatile cache, which its paths share. Nil:
	// the LUN has its own.
	Cache *blockio.Cache

	// Carried are the sessions of another process to go on with instead of logging in, as many as
	// Sessions says, over plain TCP or iSER, with the names and the ISID that are configured here.
	// Their descriptors are taken. What is wrong with one is an error; once it goes on, its loss is like
	// any other.
	Carried []*CarriedSession

	// OnEvent, when set, is told what happens to sessions. It is called on
	// their goroutines and must not block. Of one session one event is told at a time, in
	// the order in which they come about; those of several may come at once.
	OnEvent func(Event)

	firstRetry, maxRetry time.Duration // back-off; shorter in tests

	// dial replaces the transports in tests.
	dial func(ctx context.Context, cfg *Config, addr string) (iscsi.Datamover, error)
}

// withDefaults returns c with every zero field replaced by its default.
func (c Config) withDefaults() Config {
	def := func(p *int, v int) {
		if *p == 0 {
			*p = v
		}
	}
	dur := func(p *time.Duration, v time.Duration) {
		if *p == 0 {
			*p = v
		}
	}
	if c.Pool == nil {
		c.Pool = blockdev.DefaultPool()
	}
	if c.InitiatorName == "" {
		c.InitiatorName = DefaultInitiatorName()
	}
	if c.ISID == ([6]byte{}) {
		c.ISID = randomISID()
	}
	if len(c.HeaderDigest) == 0 {
		c.HeaderDigest = []string{"None"}
	}
	if len(c.DataDigest) == 0 {
		c.DataDigest = []string{"None"}
	}
	def(&c.FirstBurstLength, 262144)
	def(&c.MaxBurstLength, 16776192)
	def(&c.MaxRecvDataLength, 262144)
	def(&c.MaxOutstandingR2T, 1)
	def(&c.QueueDepth, 128)
	def(&c.Sessions, 1)
	def(&c.MaxTransfer, 1<<20)
	dur(&c.firstRetry, firstRetry)
	dur(&c.maxRetry, maxRetry)
	// LIO takes one iSER login at a time, and a login whose connection has died blocks the
	// portal for 15 s. If we gave up within that time, ours would be the next to block it.
	dur(&c.LoginTimeout, 30*time.Second)
	dur(&c.LogoutTimeout, 15*time.Second)
	dur(&c.NopInterval, 5*time.Second)
	dur(&c.NopTimeout, 5*time.Second)
	times := c.silence().WithDefaults()
	c.SilencePing, c.SilenceProbe = times.Ping, times.Probe
	dur(&c.CommandTimeout, 60*time.Second)
	dur(&c.AbortTimeout, 15*time.Second)
	dur(&c.ResetTimeout, 30*time.Second)
	dur(&c.ReplacementTimeout, 120*time.Second)
	if c.Path {
		c.FailNow, c.KeepTrying = true, true
	}
	return c
}

// ConfigError is a setting of a Config that cannot be used. Nothing has been sent.
type ConfigError = blockio.ConfigError

// validate checks what withDefaults has completed, and completes the address; the error
// is a *ConfigError.
func (c *Config) validate(discovery bool) error {
	if err := c.problem(discovery); err != nil {
		return &ConfigError{Err: err}
	}
	return nil
}

// problem is the first thing that is wrong with the configuration. Discovery needs no
// target and no LUN.
func (c *Config) problem(discovery bool) error {
	in := func(name string, v, lo, hi int) error {
		if v < lo || v > hi {
			return fmt.Errorf("%s %d is outside %d..%d", name, v, lo, hi)
		}
		return nil
	}
	for _, err := range []error{
		in("FirstBurstLength", c.FirstBurstLength, 512, 1<<24-1),
		in("MaxBurstLength", c.MaxBurstLength, 512, 1<<24-1),
		in("MaxRecvDataLength", c.MaxRecvDataLength, 512, 1<<24-1),
		in("MaxOutstandingR2T", c.MaxOutstandingR2T, 1, 65535),
		in("Time2Wait", c.Time2Wait, 0, 3600),
		in("Time2Retain", c.Time2Retain, 0, 3600),
		in("QueueDepth", c.QueueDepth, 1, 4096),
		in("Sessions", c.Sessions, 1, 64),
		in("MaxTransfer", c.MaxTransfer, 4096, 1<<30),
		in("LUN", int(min(c.LUN, 1<<20)), 0, 1<<14-1),
	} {
		if err != nil {
			return fmt.Errorf("initiator: %w", err)
		}
	}
	if c.Address == "" {
		return fmt.Errorf("initiator: no address given: want host[:port]")
	}
	if _, port, err := net.SplitHostPort(c.Address); err != nil || port == "" {
		if c.Address, err = volurl.HostPort(strings.TrimSuffix(c.Address, ":"), DefaultPort); err != nil {
			return fmt.Errorf("initiator: address: %w", err)
		}
	}
	if c.Transport == TransportRoCE && (c.FallbackTCP || c.StreamLogin) {
		return errors.New("initiator: over RoCE there is neither a fall-back to TCP nor a login over the stream")
	}
	if c.TLS != nil {
		if err := c.TLS.problem(c.Transport); err != nil {
			return fmt.Errorf("initiator: %w", err)
		}
	}
	if err := iscsi.CheckName(c.InitiatorName); err != nil {
		return fmt.Errorf("initiator: initiator name: %w", err)
	}
	if !discovery {
		if err := iscsi.CheckName(c.TargetName); err != nil {
			return fmt.Errorf("initiator: target name: %w", err)
		}
	}
	if err := c.silence().Check(); err != nil {
		return fmt.Errorf("initiator: %w", err)
	}
	if err := c.Auth.validate(); err != nil {
		return fmt.Errorf("initiator: %w", err)
	}
	if c.FirstBurstLength > c.MaxBurstLength {
		c.FirstBurstLength = c.MaxBurstLength // RFC 7143 §13.14
	}
	return nil
}

// randomISID returns an ISID of the random format (RFC 7143 §11.12.5: T = 10b).
func randomISID() (id [6]byte) {
	rand.Read(id[:]) // never fails
	id[0] = 0x80
	id[4], id[5] = 0, 0 // qualifier: index of the session within its process
	return id
}

func (c *Config) silence() silence.Times {
	return silence.Times{Ping: c.SilencePing, Probe: c.SilenceProbe}
}
