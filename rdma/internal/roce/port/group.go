package port

import (
	"fmt"
	"net/netip"
	"slices"
	"sync"

	"softiser/rdma/internal/roce/packet"
)

// groupQPN is the destination of what is sent to a multicast group (IBA vol. 1 §10.5).
const groupQPN = packet.QPNMask

// MaxGroups bounds the groups of a port: each has a socket and a goroutine.
const MaxGroups = 64

// group is a multicast group with the queue pairs that are attached to it. It has a
// receiver of its own, whose only endpoint it is.
type group struct {
	rx *receiver

	mu      sync.Mutex // guards members; a leaf
	members []member   // replaced, never changed
	busy    []member   // the receiver's goroutine's: those who have had packets of the batch
}

// member is a queue pair that is attached to a group.
type member struct {
	qpn  uint32
	take Handler
	end  func()
}

// AttachGroup has h called for what is sent to a multicast group, from whomever it comes:
// also from this port, and from the queue pair itself. Each queue pair that is attached
// gets every packet. batchEnd is as with Attach; both are called on the group's goroutine,
// beside that for packets to the queue pair alone. The port belongs to the network's group
// as long as any queue pair does.
func (p *Port) AttachGroup(addr netip.Addr, qpn uint32, h Handler, batchEnd func()) error {
	addr = plain(addr)
	p.groupMu.Lock()
	defer p.groupMu.Unlock()
	g := p.groups[addr]
	if g == nil {
		switch {
		case p.closed:
			return errClosed
		case len(p.groups) >= MaxGroups:
			return fmt.Errorf("rdma: %v belongs to %d multicast groups already, its limit", p.Addr(), MaxGroups)
		}
		rx, err := p.udp.Join(addr)
		if err != nil {
			return err
		}
		g = &group{rx: newReceiver(p, rx, addr, p.start)}
		g.rx.attach(groupQPN, netip.Addr{}, g.take, g.batchEnd)
		p.groups[addr] = g
		p.wg.Go(g.rx.loop)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.find(qpn) >= 0 {
		return fmt.Errorf("rdma: queue pair %d is attached to %v already", qpn, addr)
	}
	g.members = append(slices.Clone(g.members), member{qpn, h, batchEnd})
	return nil
}

// DetachGroup undoes AttachGroup. The calls for a batch that has begun may still be
// going on.
func (p *Port) DetachGroup(addr netip.Addr, qpn uint32) {
	addr = plain(addr)
	p.groupMu.Lock()
	defer p.groupMu.Unlock()
	g := p.groups[addr]
	if g == nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if i := g.find(qpn); i >= 0 {
		g.members = slices.Delete(slices.Clone(g.members), i, i+1)
	}
	if len(g.members) == 0 {
		delete(p.groups, addr)
		g.rx.rx.Close()
	}
}

// leaveAll closes the sockets of all groups: the port is being closed.
func (p *Port) leaveAll() {
	p.groupMu.Lock()
	defer p.groupMu.Unlock()
	p.closed = true
	for addr, g := range p.groups {
		g.rx.rx.Close()
		delete(p.groups, addr)
	}
}

// find is the place of a queue pair among the members, or -1.
func (g *group) find(qpn uint32) int {
	return slices.IndexFunc(g.members, func(m member) bool { return m.qpn == qpn })
}

// take hands a packet to every member of the batch: who attaches meanwhile waits for the
// next one. Only datagrams can be for several.
func (g *group) take(from netip.AddrPort, pkt *packet.Packet) {
	if g.busy == nil {
		g.mu.Lock()
		g.busy = g.members
		g.mu.Unlock()
	}
	for i := range g.busy {
		g.busy[i].take(from, pkt)
	}
}

func (g *group) batchEnd() {
	for i := range g.busy {
		if end := g.busy[i].end; end != nil {
			end()
		}
	}
	g.busy = nil
}
