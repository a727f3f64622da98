package port

import (
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"softiser/rdma/internal/roce/cm"
	"softiser/rdma/internal/roce/mad"
	"softiser/rdma/internal/roce/packet"
	"softiser/rdma/internal/roce/udp"
)

// Config describes a Port.
type Config struct {
	UDP udp.Config // with the address
	CM  cm.Limits
}

// Port is one address that speaks RoCE.
type Port struct {
	udp       *udp.Port
	cm        *cm.Manager
	qpns      cm.QPNs
	receivers []*receiver
	start     time.Time
	wg        sync.WaitGroup // of the receivers, those of groups included
	stat      counters

	groupMu sync.Mutex // guards what follows; below it: group.mu
	groups  map[netip.Addr]*group
	closed  bool
}

// Open takes UDP port 4791 of an address, and begins to answer what comes to queue pair 1.
func Open(cfg Config) (*Port, error) {
	u, err := udp.Open(cfg.UDP)
	if err != nil {
		return nil, err
	}
	p := &Port{udp: u, start: time.Now(), groups: map[netip.Addr]*group{}}
	for _, rx := range u.Receivers() {
		p.receivers = append(p.receivers, newReceiver(p, rx, u.Addr(), p.start))
	}
	g := newGSI(p)
	p.cm = cm.New(cm.Config{Local: u.Addr(), GUID: cm.NewGUID(), Send: g.send, Limits: cfg.CM})
	p.Attach(mad.GSIQPN, netip.Addr{}, g.take, nil)
	for _, r := range p.receivers {
		p.wg.Go(r.loop)
	}
	return p, nil
}

var errClosed = fmt.Errorf("rdma: %w", net.ErrClosed)

// Close ends the connections, telling their peers once, and the port. Nothing is taken
// by anybody when it returns.
func (p *Port) Close() {
	p.cm.Close()
	p.leaveAll()
	p.udp.Close()
	p.wg.Wait()
}

// Addr is the local address.
func (p *Port) Addr() netip.Addr { return p.udp.Addr() }

// RecvBuffer is the size of the smallest receive buffer, as the kernel counts it; see
// udp.Receiver.
func (p *Port) RecvBuffer() int {
	n := p.receivers[0].rx.Buffer()
	for _, r := range p.receivers[1:] {
		n = min(n, r.rx.Buffer())
	}
	return n
}

// Offload reports whether the kernel cuts what is sent into packets (GSO), and joins what
// comes (GRO).
func (p *Port) Offload() (gso, gro bool) { return p.udp.Lane(0).MaxPackets() > 1, p.udp.GRO() }

// RecvErr is why no packets come for a queue pair: the newest error of receiving, nil when some
// have come since.
func (p *Port) RecvErr(qpn uint32) error { return p.receivers[p.udp.ReceiverOf(qpn)].rx.Err() }

// CM makes and ends connections from and to this address.
func (p *Port) CM() *cm.Manager { return p.cm }

// QPNs hands out numbers for queue pairs of this address.
func (p *Port) QPNs() *cm.QPNs { return &p.qpns }

// Handler takes the packets of one queue pair, in the order in which they come, on one
// goroutine; it must not block. The packet, with its payload, is its own until it
// returns.
type Handler func(from netip.AddrPort, pkt *packet.Packet)

// Attach has h called for packets to a queue pair that come from peer; the zero address
// stands for any. batchEnd, unless it is nil, is called on the same goroutine behind the
// packets that have come at once: for answers that may go together.
func (p *Port) Attach(qpn uint32, peer netip.Addr, h Handler, batchEnd func()) {
	p.receivers[p.udp.ReceiverOf(qpn)].attach(qpn, plain(peer), h, batchEnd)
}

// Detach undoes Attach, and Spin. The calls for a batch that has begun may still be going on.
func (p *Port) Detach(qpn uint32) { p.receivers[p.udp.ReceiverOf(qpn)].detach(qpn) }

// Spin has the receiver of a queue pair look for packets for so long before it sleeps, which
// costs a processor meanwhile. The longest time of its queue pairs counts; if there is none,
// one with sockio.BusyPollAuto is enough for looks that pay.
func (p *Port) Spin(qpn uint32, d time.Duration) { p.receivers[p.udp.ReceiverOf(qpn)].spinFor(qpn, d) }

// plain is an address in its one form: no zone, no IPv4 in IPv6.
func plain(a netip.Addr) netip.Addr { return a.Unmap().WithZone("") }
