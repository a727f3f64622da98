package nvmf

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"time"

	"softiser/blockdev"
	"softiser/initiator/blockio"
	"softiser/initiator/internal/redial"
	"softiser/internal/congestion"
	"softiser/internal/nvme"
	"softiser/internal/nvmetcp"
	"softiser/internal/sockio"
)

// Transport is what carries the queues.
type Transport uint8

// Transports.
const (
	TransportTCP  Transport = iota
	TransportRDMA           // soft-iWARP
	TransportRoCE           // NVMe/RDMA over soft-RoCE v2; the port is one of rdma_cm
)

var transportNames = [...]string{"tcp", "rdma", "roce"}

// String returns the name of the transport, as it stands in URLs.
func (t Transport) String() string {
	if int(t) < len(transportNames) {
		return transportNames[t]
	}
	return fmt.Sprintf("Transport(%d)", uint8(t))
}

// rdma reports whether queues are queue pairs.
func (t Transport) rdma() bool { return t != TransportTCP }

// Config says whom to connect to, and how. Zero fields mean the documented defaults.
type Config struct {
	Transport Transport
	Address   string // host[:port]; the port is 4420 by default, 8009 for Discover over TCP
	Subsystem string // NQN
	NSID      uint32 // of Open; default 1
	// LocalAddress is the address of this machine to connect from (nvme-cli's host-traddr); the
	// one on the way to the controller. Over RoCE its UDP port 4791 is taken by this
	// process, and two processes of one machine need one each.
	LocalAddress netip.Addr

	// HostNQN and HostID say who connects; one identifier belongs to one name. Default:
	// /etc/nvme/hostnqn and hostid, else derived from the machine.
	HostNQN string
	HostID  [16]byte

	Queues      int // I/O queues, each a connection; default 1, at most what the controller allows
	QueueDepth  int // commands that one queue keeps outstanding; default 128
	MaxTransfer int // longest single command, bytes; default 1 MiB, less when the controller says so

	HeaderDigest, DataDigest bool // NVMe/TCP: CRC32C

	RDMA RDMA // NVMe/RDMA

	KeepAlive time.Duration // keep alive timeout; default 5 s, negative: none
	// ConnectTimeout bounds an attempt to make an association. Default 30 s.
	ConnectTimeout time.Duration
	// SilencePing and SilenceProbe are how long not a byte may come while commands are
	// outstanding: then a Keep Alive goes out, and then, if that is not answered either, a
	// second connection is tried. When that is answered and the first ones are still mute,
	// another node has taken the controller's place: the association is made again at once.
	// Default 500 ms and 1 s; SilenceProbe <0: never. A controller that answers Keep Alive
	// keeps its association, however long commands take.
	SilencePing, SilenceProbe time.Duration
	CommandTimeout            time.Duration // an unanswered command costs the association; default 60 s, negative: none
	// ReconnectDelay is the longest time between attempts to connect again. Default 5 s.
	ReconnectDelay time.Duration
	// CtrlLossTimeout is how long commands wait while there is no association, before
	// they fail (nvme-cli's ctrl-loss-tmo). Default 120 s; negative: for ever, or until the
	// controller has refused us for 20 s in a way that it calls final.
	CtrlLossTimeout time.Duration
	// Path makes the association one of several to the same volumes: commands fail with
	// blockio.ErrSessionLost at once when it is lost, and it is looked for nevertheless.
	Path bool

	// Cache is the account of the volume's volatile cache, which its paths share. Nil:
	// the namespace has its own.
	Cache *blockio.Cache
	// Pool is the memory of leases. Default: blockdev.DefaultPool().
	Pool *blockdev.Pool

	// Carried is an association of another process to go on with instead of connecting, over
	// plain TCP or RDMA, with the names that are configured here. Its descriptors are taken. What is
	// wrong with it is an error; once it goes on, its loss is like any other.
	Carried *CarriedAssociation

	// Keys are for DH-HMAC-CHAP and TLS; they set Authenticate and Secure.
	Keys Keys
	// Authenticate proves who we are, on each queue after its Connect. required says that
	// the controller asks for it. Nil: a controller that asks is refused.
	Authenticate func(ctx context.Context, x Exchange, qid uint16, required bool) error
	// Reauthenticate is how often that is done again while the association lives, on every
	// queue whose controller asks for it; a failure costs the association. 0: never.
	Reauthenticate time.Duration
	// Secure makes a TCP connection secure before its first PDU; it closes nc when it
	// fails. RDMA has no such thing, and is refused with it.
	Secure func(ctx context.Context, nc net.Conn) (net.Conn, error)

	pace     *redial.Pace  // of the attempts after a loss; nil: a single connection
	patience time.Duration // for TCP's part of a connection; 0: as long as the attempt may take

	SendBuffer, RecvBuffer int // socket buffers, bytes; 0: as initiator.Config has it
	// BusyPoll is how long a queue spins for the next completion before it sleeps, over TCP
	// and over RDMA. rdma.BusyPollAuto, which is 0: for a few microseconds while the
	// controller answers at once; rdma.BusyPollOff: never.
	BusyPoll time.Duration
	// Congestion names the TCP congestion control. "auto" or "": reno when the controller
	// is on this host; "host": the host's default.
	Congestion string

	// OnEvent, when set, is told what happens to the association, one event at a time, in
	// the order in which they come about. It must not block.
	OnEvent func(Event)
}

// Exchange is the way of the messages of an authentication.
type Exchange interface {
	Send(ctx context.Context, msg []byte) error
	// Receive returns the controller's next message, at most room bytes long.
	Receive(ctx context.Context, room int) ([]byte, error)
}

// Ports. A discovery service over RDMA has the default port.
const (
	DefaultPort   = "4420"
	DiscoveryPort = "8009"
)

// discoveryPort returns the port of discovery services.
func (t Transport) discoveryPort() string {
	if t.rdma() {
		return DefaultPort
	}
	return DiscoveryPort
}

const (
	maxQueues     = 128
	adminDepth    = 31 // commands outstanding on the admin queue
	firstRetry    = 100 * time.Millisecond
	refusedRetry  = 800 * time.Millisecond // while nobody listens there
	maxNamespaces = 1 << 16
)

// withDefaults returns c with the documented default wherever a field is zero.
func (c Config) withDefaults() Config {
	c.NSID = cmp.Or(c.NSID, 1)
	c.Queues = cmp.Or(c.Queues, 1)
	c.QueueDepth = cmp.Or(c.QueueDepth, 128)
	c.MaxTransfer = cmp.Or(c.MaxTransfer, 1<<20)
	c.KeepAlive = cmp.Or(c.KeepAlive, 5*time.Second)
	c.ConnectTimeout = cmp.Or(c.ConnectTimeout, 30*time.Second)
	times := c.silence().WithDefaults()
	c.SilencePing, c.SilenceProbe = times.Ping, times.Probe
	c.CommandTimeout = cmp.Or(c.CommandTimeout, 60*time.Second)
	c.ReconnectDelay = cmp.Or(c.ReconnectDelay, 5*time.Second)
	c.CtrlLossTimeout = cmp.Or(c.CtrlLossTimeout, 120*time.Second)
	if c.Pool == nil {
		c.Pool = blockdev.DefaultPool()
	}
	if c.HostNQN == "" {
		c.HostNQN = DefaultHostNQN()
	}
	if c.HostID == [16]byte{} {
		c.HostID = hostIDOf(c.HostNQN)
	}
	return c
}

// ConfigError is a setting of a Config that cannot be used. Nothing has been sent.
type ConfigError = blockio.ConfigError

// validate checks what withDefaults has completed, and completes the address; the error
// is a *ConfigError.
func (c *Config) validate(port string) error {
	if err := c.problem(port); err != nil {
		return &ConfigError{Err: err}
	}
	return nil
}

// problem is what is wrong with the configuration.
func (c *Config) problem(port string) error {
	in := func(name string, v, lo, hi int) error {
		if v < lo || v > hi {
			return fmt.Errorf("nvmf: %s %d is outside %d..%d", name, v, lo, hi)
		}
		return nil
	}
	if err := errors.Join(
		in("Queues", c.Queues, 1, maxQueues),
		in("QueueDepth", c.QueueDepth, 1, nvme.MaxHostEntries-1),
		in("MaxTransfer", c.MaxTransfer, 4096, 1<<30),
	); err != nil {
		return err
	}
	if err := c.silence().Check(); err != nil {
		return fmt.Errorf("nvmf: %w", err)
	}
	if c.Address == "" {
		return errors.New("nvmf: no address given: want host[:port]")
	}
	if _, p, err := net.SplitHostPort(c.Address); err != nil || p == "" {
		c.Address = net.JoinHostPort(strings.Trim(strings.TrimSuffix(c.Address, ":"), "[]"), port)
	}
	if err := nvme.CheckNQN(c.Subsystem); err != nil {
		return fmt.Errorf("nvmf: subsystem NQN: %w", err)
	}
	if err := nvme.CheckNQN(c.HostNQN); err != nil {
		return fmt.Errorf("nvmf: host NQN: %w", err)
	}
	if err := c.Keys.use(c); err != nil {
		return err
	}
	if c.Transport.rdma() && c.Secure != nil {
		return errors.New("nvmf: TLS is not for RDMA: leave the TLS key out, or use TCP")
	}
	return nil
}

// dialer makes what connects, and what gives its resources back when every connection
// has ended.
func (c *Config) dialer() (d nvme.HostDialer, release func() error, err error) {
	if c.Transport.rdma() {
		return c.dialerRDMA()
	}
	return c.dialerTCP(), func() error { return nil }, nil
}

// tcp returns what makes TCP connections.
func (c *Config) tcp() func(ctx context.Context, network, addr string) (net.Conn, error) {
	d := net.Dialer{Timeout: c.patience, Control: congestion.Dialing(c.Congestion)}
	if c.LocalAddress.IsValid() {
		d.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(c.LocalAddress, 0))
	}
	p := c.pace
	if p == nil {
		p = &redial.Pace{}
	}
	return func(ctx context.Context, _, addr string) (net.Conn, error) { return p.Dial(ctx, d, addr) }
}

func (c *Config) dialerTCP() nvme.HostDialer {
	t := nvmetcp.HostConfig{
		Address: c.Address, Secure: c.Secure,
		Socket: sockio.Options{SendBuffer: c.SendBuffer, RecvBuffer: c.RecvBuffer, BusyPoll: c.BusyPoll},
		Dial:   c.tcp(),
	}
	if c.HeaderDigest {
		t.Digests |= nvmetcp.DigestHeader
	}
	if c.DataDigest {
		t.Digests |= nvmetcp.DigestData
	}
	return &nvmetcp.HostDialer{Config: t}
}
