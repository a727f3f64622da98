package rdma

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"time"

	"softiser/rdma/internal/roce"
	"softiser/rdma/internal/roce/cm"
	"softiser/rdma/internal/roce/mad"
	"softiser/rdma/internal/roce/ud"
	"softiser/rdma/internal/verbs"
)

// DefaultQKey is the Q_Key of rdma_cm's datagram services and multicast groups.
const DefaultQKey = 0x01234567

// MulticastQPN is the queue pair number that datagrams to a multicast group carry.
const MulticastQPN = ud.GroupQPN

// GRHLen is how many bytes of a receive buffer of a queue pair of the type UD come before
// what was sent: the network header, for ParseGRH.
const GRHLen = ud.GRHLen

// DatagramParams are the settings of a queue pair of the type UD. Zero fields mean the value
// beside them.
type DatagramParams struct {
	LocalAddr netip.Addr // required: an address of an interface
	QKey      uint32     // what datagrams to the queue pair must carry; DefaultQKey
	// PathMTU is the most that a datagram carries, bytes: 256, 512, 1024, 2048 or 4096; the
	// largest that the interface carries.
	PathMTU int
}

// AH is an address handle: where datagrams go, an address or a multicast group. It need
// not be given back.
type AH struct {
	pd *PD
	a  verbs.AddressHandle
}

// CreateAH makes an address handle for queue pairs of the domain, of a device of RoCE.
func (pd *PD) CreateAH(addr netip.Addr) (*AH, error) {
	if err := pd.dev.wants(ProviderRoCE, "an address handle"); err != nil {
		return nil, err
	}
	if !addr.IsValid() || addr.IsUnspecified() {
		return nil, invalid("an address handle for %v", addr)
	}
	return &AH{pd: pd, a: verbs.AddressHandle{Addr: addr.Unmap()}}, nil
}

// Addr is the address.
func (ah *AH) Addr() netip.Addr { return ah.a.Addr }

// Destination is whom a datagram is for.
type Destination struct {
	AH  *AH
	QPN uint32 // of the receiving queue pair, or MulticastQPN
	// QKey is what the receiver's queue pair wants to see. Its highest bit says that the
	// sender's own Q_Key is to be sent instead.
	QKey uint32
}

// ParseGRH reads the first GRHLen bytes of a buffer that a datagram was received into
// (WCWithGRH): its source, to which an answer goes by CreateAH, and its destination, which
// is an address of this side or a multicast group.
//
//	IPv6:  | IPv6 header, 40                      | payload
//	IPv4:  | not used, 20     | IPv4 header, 20   | payload
func ParseGRH(b []byte) (from, to netip.Addr, err error) {
	if len(b) < GRHLen {
		return from, to, invalid("a network header of %d bytes instead of %d", len(b), GRHLen)
	}
	switch v4 := b[GRHLen-20 : GRHLen]; {
	case b[0]>>4 == 6:
		return netip.AddrFrom16([16]byte(b[8:])).Unmap(), netip.AddrFrom16([16]byte(b[24:])).Unmap(), nil
	case v4[0]>>4 == 4 && binary.BigEndian.Uint16(v4[2:]) >= 20:
		return netip.AddrFrom4([4]byte(v4[12:])), netip.AddrFrom4([4]byte(v4[16:])), nil
	}
	return from, to, invalid("neither an IPv6 nor an IPv4 header")
}

// datagrams is the engine of a queue pair of the type UD.
func (qp *QP) datagrams() (*roce.Unreliable, error) {
	if qp.cfg.Type != TypeUD {
		return nil, invalid("a queue pair of type %v does not take datagrams, %v does", qp.cfg.Type, TypeUD)
	}
	return qp.v.Engine.(*roce.Unreliable), nil
}

// QKey is the Q_Key that datagrams to the queue pair must carry; 0 for other types than UD.
func (qp *QP) QKey() uint32 {
	u, err := qp.datagrams()
	if err != nil {
		return 0
	}
	return u.QKey()
}

// JoinMulticast has a queue pair of the type UD receive what is sent to a multicast group,
// and returns whom to send to for that, as rdma_join_multicast does. What is sent to a group comes
// back to members on the same host, the sender included: WC.SrcQPN tells. The network is
// asked by IGMP or MLD. A Port of RoCE belongs to DeviceAttr.MaxMulticastGroups groups at most. Sending needs no
// membership: an AH of the group's address, and MulticastQPN, will do.
func (qp *QP) JoinMulticast(group netip.Addr) (Destination, error) {
	u, err := qp.datagrams()
	if err != nil {
		return Destination{}, err
	}
	if err := u.JoinGroup(group); err != nil {
		return Destination{}, err
	}
	return Destination{AH: &AH{pd: qp.pd, a: verbs.AddressHandle{Addr: group.Unmap()}}, QPN: MulticastQPN, QKey: u.QKey()}, nil
}

// LeaveMulticast undoes JoinMulticast. Datagrams that have come before may still complete.
// The end of the queue pair leaves all groups.
func (qp *QP) LeaveMulticast(group netip.Addr) error {
	u, err := qp.datagrams()
	if err != nil {
		return err
	}
	return u.LeaveGroup(group)
}

// DatagramPeer is the answer to a lookup.
type DatagramPeer struct {
	Destination
	PrivateData []byte // of the service: 136 bytes, with zeros behind what was sent
}

// Resolve asks who serves datagrams at addr, as rdma_resolve_addr and rdma_connect do for
// RDMA_PS_UDP: what SendWR.Dest needs. The network is "roce", private data are 180 bytes
// at most. It waits for 10 s at most. The error is a *RejectError when the service has refused, and wraps
// syscall.ECONNREFUSED when there is none. Nothing is kept of it at either side.
func (qp *QP) Resolve(ctx context.Context, network, addr string, privateData []byte) (*DatagramPeer, error) {
	u, err := qp.datagrams()
	if err != nil {
		return nil, err
	}
	all, err := resolveAll(ctx, network, addr, qp.cfg.Datagram.LocalAddr)
	if err != nil {
		return nil, err
	}
	var peer *DatagramPeer
	err = oneOf(ctx, all, startTimeout, func(to netip.AddrPort, d time.Duration) (bool, error) {
		var err error
		peer, err = lookUp(ctx, qp.pd, u, to, privateData, d)
		return elsewhere(err), err
	})
	return peer, err
}

// lookUp is QP.Resolve at one address, within d.
func lookUp(ctx context.Context, pd *PD, u *roce.Unreliable, to netip.AddrPort, privateData []byte, d time.Duration) (*DatagramPeer, error) {
	a, err := u.Lookup(ctx, to, privateData, d)
	if err != nil {
		return nil, err
	}
	switch a.Status {
	case mad.SIDROK:
		return &DatagramPeer{Destination{&AH{pd: pd, a: verbs.AddressHandle{Addr: to.Addr()}}, a.QPN, a.QKey}, a.Private}, nil
	case mad.SIDRReject:
		return nil, &RejectError{PrivateData: a.Private}
	case mad.SIDRUnsupported:
		return nil, fmt.Errorf("rdma: %v: %w", to, syscall.ECONNREFUSED)
	}
	return nil, fmt.Errorf("%w: %v says: %v", ErrRefused, to, a.Status)
}

// Lookup is the question of a peer for the queue pair of a datagram service. The same one
// may come again when its answer was lost: Remote tells, as every asker has a port of its own.
type Lookup struct {
	Local, Remote RoCEAddr // nobody has proved the latter
	PrivateData   []byte   // always 180 bytes, with zeros behind what was sent
}

// LookupAnswer says with whom the peer may speak.
type LookupAnswer struct {
	QP          *QP    // of the type UD, at the address that was asked; nil refuses
	PrivateData []byte // at most 136 bytes
}

// DatagramListener answers lookups; see ServeDatagrams.
type DatagramListener struct{ s *roce.Service }

// ServeDatagrams has f answer lookups of a port for datagrams, as rdma_listen does for
// RDMA_PS_UDP. f runs on the goroutine that receives for the address; it must not block, nor
// connect, listen, look up or create a queue pair: those that it names are made before. Port 0 is any that is free. Ports for datagrams have nothing to do
// with those that Listen takes.
func (d *Device) ServeDatagrams(network, addr string, f func(*Lookup) LookupAnswer) (*DatagramListener, error) {
	if err := d.wants(ProviderRoCE, "a datagram service"); err != nil {
		return nil, err
	}
	if d.life.over() {
		return nil, errGone("device")
	}
	at, err := resolve(context.Background(), network, addr)
	if err != nil {
		return nil, err
	}
	s, err := d.transport.(*overUDP).dev.Serve(at, func(at netip.AddrPort, q *cm.Lookup) cm.LookupAnswer {
		a := f(&Lookup{Local: RoCEAddr(at), Remote: RoCEAddr(netip.AddrPortFrom(q.Peer.Unmap(), q.SrcPort)), PrivateData: q.Private})
		out := cm.LookupAnswer{Status: mad.SIDRReject, Private: a.PrivateData[:min(len(a.PrivateData), mad.PrivateSIDRREP)]}
		if a.QP == nil {
			return out
		}
		u, err := a.QP.datagrams()
		if err != nil || a.QP.State() != StateRTS {
			out.Status = mad.SIDRNoQP
			return out
		}
		out.Status, out.QPN, out.QKey = mad.SIDROK, a.QP.Num(), u.QKey()
		return out
	})
	if err != nil {
		return nil, err
	}
	return &DatagramListener{s}, nil
}

// Addr is where it answers.
func (l *DatagramListener) Addr() net.Addr { return RoCEAddr(l.s.Addr()) }

// Close ends the service. Queue pairs that were named go on.
func (l *DatagramListener) Close() error {
	l.s.Close()
	return nil
}
