package portal

import (
	"cmp"
	"fmt"
	"net"
	"strings"
	"time"

	"softiser/rdma"
)

// DefaultPort is the registered port of iSCSI (RFC 7143 §4.2.7.1) and of iSER.
const DefaultPort = "3260"

// Config describes one listening address. Every protocol answers on it, unless it is
// switched off: the first bytes of a connection tell which one the peer speaks.
type Config struct {
	// Listen is "host:port"; an empty host or an unspecified address means all
	// addresses. Port 0 lets the system choose (see Server.Addrs).
	//
	// "roce://address[:port]" is RDMA over UDP: iSER and NVMe/RDMA over RoCE v2 at the address of
	// one interface, whose UDP port 4791 the process takes for it; the port is that of
	// rdma_cm. What is said below of TCP means nothing there.
	Listen string
	// Advertise, when set, is the "host:port" that SendTargets reports instead
	// of the listening address: for a target behind address translation.
	Advertise string
	// Group is the target portal group tag; 0 means 1.
	Group uint16

	NoISER     bool // refuse iSER connections
	NoTCP      bool // refuse plain iSCSI connections
	NoNVMeTCP  bool // refuse NVMe/TCP connections
	NoNVMeRDMA bool // refuse NVMe/RDMA connections

	// IRD and ORD are how many RDMA Reads the initiator, and we, may have outstanding, 1
	// to MaxReads; 0 means 128. What the initiator asks for, and serves, lowers them. It is
	// the target that reads; nothing of its own can be read, and IRD is what peers are
	// told that insist on one.
	IRD, ORD int
	// StreamLogin also accepts RFC 7145's own start-up: a login over TCP that
	// negotiates RDMAExtensions=Yes turns into an RDMA connection.
	StreamLogin bool

	// CRC is how strongly the portal insists on the MPA CRC (RFC 5044 §4.4); iSCSI
	// digests do not exist over iSER, and the default is that it is required.
	CRC rdma.CRCMode
	// LargeFPDU accepts frames above the path's segment size when the initiator
	// offers them (never beyond 64 KiB).
	LargeFPDU bool
	Zerocopy  rdma.ZerocopyMode // of large payloads; 0: ZerocopyAuto

	// Certificates lets initiators speak iSCSI in TLS, at first (see Server.SetCertificates);
	// nil: they cannot.
	Certificates *Certificates

	// Freebind lets the portal listen on an address that the machine does not have yet.
	Freebind bool
	// CongestionControl names the TCP congestion control. "auto" or "": reno for
	// initiators on this host, because pacing ones (bbr) halve the throughput over
	// loopback, else the host's default; "host": always that.
	CongestionControl string
	// SendBuffer and RecvBuffer fix the socket buffers, bytes; 0: the system
	// sizes them automatically, but that to receive is sockio.HostBuffer for initiators
	// on this host.
	SendBuffer, RecvBuffer int
	// BusyPoll is how long a receiver spins before it sleeps, whatever the wire.
	// rdma.BusyPollAuto, which is 0: for a few microseconds while an initiator sends its
	// next commands at once; rdma.BusyPollOff: never.
	BusyPoll time.Duration
}

// MaxReads bounds the RDMA Reads of a connection that are outstanding at once.
const MaxReads = 256

// fill sets defaults and checks what can be checked without listening.
func (c *Config) fill() error {
	if c.Group == 0 {
		c.Group = 1
	}
	if c.RoCE() {
		if err := c.fillRoCE(); err != nil {
			return err
		}
	} else if !strings.Contains(c.Listen, ":") {
		c.Listen = net.JoinHostPort(c.Listen, DefaultPort)
	}
	for _, a := range []string{c.address(), c.Advertise} {
		if a == "" {
			continue
		}
		if _, _, err := net.SplitHostPort(a); err != nil {
			return fmt.Errorf("target: portal %q: %v; want host:port, for example 127.0.0.1:3260 or [::1]:3260", a, err)
		}
	}
	for _, d := range []*int{&c.IRD, &c.ORD} {
		if *d == 0 {
			*d = 128
		}
		if *d < 1 || *d > MaxReads {
			return fmt.Errorf("target: portal %q: IRD %d, ORD %d; want 1 to %d", c.Listen, c.IRD, c.ORD, MaxReads)
		}
	}
	if c.NoISER && c.NoTCP && c.NoNVMeTCP && c.NoNVMeRDMA {
		return fmt.Errorf("target: portal %q allows neither iSER nor iSCSI nor NVMe", c.Listen)
	}
	return nil
}

// off reports whether the portal refuses connections of a kind.
func (c *Config) off(h Hello) bool {
	switch h {
	case Hello{ISCSI, TCP}, Hello{ISCSI, TLS}:
		return c.NoTCP
	case Hello{ISCSI, RDMA}, Hello{ISCSI, RoCE}:
		return c.NoISER
	case Hello{NVMe, TCP}, Hello{NVMe, TLS}:
		return c.NoNVMeTCP
	case Hello{NVMe, RDMA}, Hello{NVMe, RoCE}:
		return c.NoNVMeRDMA
	}
	return true
}

// RDMA returns what the portal asks of an RDMA connection.
func (c *Config) RDMA() rdma.ConnParams {
	if c.RoCE() {
		return rdma.ConnParams{IRD: min(c.IRD, maxRoCEReads), ORD: min(c.ORD, maxRoCEReads)}
	}
	return rdma.ConnParams{
		IRD: c.IRD, ORD: c.ORD, CRC: c.CRC, Zerocopy: cmp.Or(c.Zerocopy, rdma.ZerocopyAuto),
		MPA: rdma.MPAParams{GSO: c.LargeFPDU}, BusyPoll: c.BusyPoll,
		SndBuf: c.SendBuffer, RcvBuf: c.RecvBuffer, Congestion: c.CongestionControl,
	}
}
