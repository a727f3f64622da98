package rdma

import (
	"net/netip"

	"softiser/rdma/internal/roce"
)

// Endpoint is one end of a connection that is made without the connection manager: what
// programs of verbs tell each other by other means before they change the state of their
// queue pairs, as ibv_rc_pingpong does.
type Endpoint struct {
	Addr netip.Addr
	QPN  uint32 // number of the queue pair
	PSN  uint32 // sequence number of the first packet that it sends, 24 bits
}

// Attach connects qp, of the type RC or UC over RoCE, to a queue pair that its owner has
// told of, and that is connected to this one in the same way: local is what the peer has
// been told of qp. Nothing is sent; packets that come before the peer is ready are lost,
// for RC to send again. What ConnParams says about the peer's side (path MTU, IRD, ORD)
// must be agreed on by other means too. The end of the connection is not told to the
// peer, who goes on asking until its repetitions are spent.
func (qp *QP) Attach(local, peer Endpoint, p *ConnParams) error {
	d := qp.pd.dev
	if err := d.wants(ProviderRoCE, "a connection without the connection manager"); err != nil {
		return err
	}
	const max24 = 1<<24 - 1
	switch {
	case local.QPN != qp.Num():
		return invalid("local queue pair %d, this one is %d", local.QPN, qp.Num())
	case !local.Addr.IsValid() || !peer.Addr.IsValid() || local.Addr.Unmap().Is4() != peer.Addr.Unmap().Is4():
		return invalid("a connection from %v to %v", local.Addr, peer.Addr)
	case local.PSN > max24 || peer.PSN > max24 || peer.QPN > max24:
		return invalid("PSN %#x, peer's PSN %#x and queue pair %#x: 24 bits each", local.PSN, peer.PSN, peer.QPN)
	}
	w, err := p.roce(d, 0)
	if err != nil {
		return err
	}
	w.Local = local.Addr.Unmap()
	err = roce.Join(roceOf(qp), local.PSN, roce.Endpoint{Addr: peer.Addr.Unmap(), QPN: peer.QPN, PSN: peer.PSN}, w)
	if err != nil {
		return err
	}
	d.connected()
	return nil
}

// PathMTU is the largest path MTU over RoCE, bytes, that the interface of a local address
// carries: what ends that connect without the connection manager have to agree on.
func PathMTU(local netip.Addr) int { return roce.PathMTU(local.Unmap()) }
