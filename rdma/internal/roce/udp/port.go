package udp

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"softiser/internal/sockio"
)

// PortNumber is the destination port of all packets (IBA vol. 1 annex A17.4.2.1).
const PortNumber = 4791

// Config describes a Port. Zero fields mean the value beside them.
type Config struct {
	Addr      netip.Addr // local; not the unspecified one: the ICRC covers it
	Receivers int        // sockets to receive by, a power of two, at most 128; 1
	Lanes     int        // source ports to send from; 4
	// RecvBuffer is what is asked for of the kernel for each receiver, bytes; 8 MiB.
	// Peers have no other congestion control than the loss of packets, and recover
	// from it in seconds.
	RecvBuffer int
	NoGSO      bool // send each packet by itself
	NoGRO      bool // have none joined on receipt
}

// Port is the sockets of one local address.
type Port struct {
	addr      netip.Addr
	receivers []*Receiver
	lanes     []*Lane
	gro       bool
	crowd     sockio.Crowd  // of the receivers
	sends     atomic.Uint64 // calls of the lanes
}

// ErrNoGSO: the kernel, or the device on the way, does not cut messages into packets.
// From then on Lane.MaxPackets is 1; what was not sent needs other ICRCs.
var ErrNoGSO = errors.New("rdma: no segmentation of UDP messages here")

// Open takes port 4791 of an address.
func Open(cfg Config) (*Port, error) {
	cfg.Addr = cfg.Addr.Unmap()
	if !cfg.Addr.IsValid() || cfg.Addr.IsUnspecified() || cfg.Addr.IsMulticast() {
		return nil, fmt.Errorf("rdma: RoCE needs the address of an interface, not %v", cfg.Addr)
	}
	if cfg.Receivers == 0 {
		cfg.Receivers = 1
	}
	if n := cfg.Receivers; n < 1 || n > 128 || n&(n-1) != 0 {
		return nil, fmt.Errorf("rdma: %d receiving sockets; it must be a power of two up to 128", n)
	}
	if cfg.Lanes == 0 {
		cfg.Lanes = 4
	}
	if cfg.Lanes < 1 || cfg.Lanes > 1024 {
		return nil, fmt.Errorf("rdma: %d source ports; it must be 1 to 1024", cfg.Lanes)
	}
	if cfg.RecvBuffer == 0 {
		cfg.RecvBuffer = 8 << 20
	}
	p := &Port{addr: cfg.Addr, gro: !cfg.NoGRO}
	err := p.open(&cfg)
	if err != nil {
		p.Close()
		return nil, err
	}
	return p, nil
}

// open makes the sockets of a port: the receivers, which share its address, and the lanes to send by.
func (p *Port) open(cfg *Config) error {
	v4 := p.addr.Is4()
	for i := range cfg.Receivers {
		buffer := 0
		s, err := listen(p.addr, PortNumber, func(o *sockopts) {
			if cfg.Receivers > 1 {
				o.set("SO_REUSEPORT", unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
			}
			o.acceptNoChecksum(v4)
			o.tellECN(v4)
			buffer = o.receiveBuffer(cfg.RecvBuffer)
			if !cfg.NoGRO {
				// Kernels before 5.0 have none.
				_ = unix.SetsockoptInt(o.fd, unix.SOL_UDP, unix.UDP_GRO, 1)
			}
		})
		if err != nil {
			return portError(p.addr, err)
		}
		p.receivers = append(p.receivers, p.newReceiver(s, buffer))
		if i == 0 && cfg.Receivers > 1 {
			if err := s.control(func(o *sockopts) {
				o.filter("SO_ATTACH_REUSEPORT_CBPF", unix.SO_ATTACH_REUSEPORT_CBPF, steerByQPN(cfg.Receivers))
			}); err != nil {
				return err
			}
		}
	}
	for i := range cfg.Lanes {
		l, err := p.openLane(i, !cfg.NoGSO)
		if err != nil {
			return err
		}
		p.lanes = append(p.lanes, l)
	}
	return nil
}

// portError says who has the port.
func portError(a netip.Addr, err error) error {
	if !errors.Is(err, unix.EADDRINUSE) {
		return err
	}
	who := "another process has it"
	if _, serr := os.Stat("/sys/module/rdma_rxe"); serr == nil {
		who = "the kernel module rdma_rxe is loaded, and has it on all addresses of the first network namespace: unload it (modprobe -r rdma_rxe), or run in another network namespace; if that is one, another process has it"
	}
	return fmt.Errorf("rdma: UDP port %d of %v is in use: %s: %w", PortNumber, a, who, err)
}

// Addr is the local address.
func (p *Port) Addr() netip.Addr { return p.addr }

// GRO reports whether packets may be joined on receipt.
func (p *Port) GRO() bool { return p.gro }

// Receivers are the sockets to receive by, one goroutine each.
func (p *Port) Receivers() []*Receiver { return p.receivers }

// Lane picks a lane for a flow, the same for the same label: packets of one queue pair
// stay in order on the way by having one source port.
func (p *Port) Lane(label uint32) *Lane { return p.lanes[label%uint32(len(p.lanes))] }

// Close closes all sockets: receivers and senders that wait come back with
// net.ErrClosed.
func (p *Port) Close() {
	for _, r := range p.receivers {
		r.ending.Store(true)
		_ = r.s.nc.Close()
	}
	for _, l := range p.lanes {
		_ = l.s.nc.Close()
	}
}

// socket is one UDP socket, in the Go network poller.
type socket struct {
	nc *net.UDPConn
	rc syscall.RawConn
}

// listen binds a socket whose options set sets before.
func listen(a netip.Addr, port uint16, set func(*sockopts)) (*socket, error) {
	network := "udp6"
	if a.Is4() {
		network = "udp4"
	}
	lc := net.ListenConfig{Control: func(_, _ string, rc syscall.RawConn) error {
		return control(rc, func(o *sockopts) {
			o.noFragments(a.Is4())
			set(o)
		})
	}}
	pc, err := lc.ListenPacket(context.Background(), network, netip.AddrPortFrom(a, port).String())
	if err != nil {
		return nil, fmt.Errorf("rdma: %w", err)
	}
	nc := pc.(*net.UDPConn)
	rc, err := nc.SyscallConn()
	if err != nil {
		_ = nc.Close()
		return nil, fmt.Errorf("rdma: %w", err)
	}
	return &socket{nc, rc}, nil
}

func (s *socket) control(f func(*sockopts)) error { return control(s.rc, f) }

func control(rc syscall.RawConn, f func(*sockopts)) error {
	var o sockopts
	if err := rc.Control(func(fd uintptr) {
		o.fd = int(fd)
		f(&o)
	}); err != nil {
		return fmt.Errorf("rdma: %w", err)
	}
	return o.err
}

// gsiSourcePort is what Linux's rxe sends the management datagrams of queue pair 1
// from; other flows have ports from firstSourcePort up, as the standard has it for
// entropy of routes (IBA vol. 1 annex A17.9.2).
const (
	gsiSourcePort   = 55410
	firstSourcePort = 0xc000
)

// openLane binds a lane to a source port: the first to that of the management
// datagrams, if it is free, the others at random.
func (p *Port) openLane(i int, gso bool) (*Lane, error) {
	const tries = 64
	a := p.addr
	var err error
	for try := range tries {
		port := uint16(firstSourcePort + rand.IntN(0x10000-firstSourcePort))
		if i == 0 && try == 0 {
			port = gsiSourcePort
		}
		var s *socket
		s, err = listen(a, port, func(o *sockopts) {
			o.receiveNothing()
			o.sendBuffer(sendBuffer)
			o.multicastFrom(a)
			if !gso {
				o.noChecksum(a.Is4())
			}
		})
		if err == nil {
			l := &Lane{s: s, port: port, sends: &p.sends, mayGSO: gso}
			l.gso.Store(gso)
			return l, nil
		}
		if !errors.Is(err, unix.EADDRINUSE) {
			break
		}
	}
	return nil, err
}
