package rdma

import (
	"context"
	"net"
	"net/netip"
	"time"

	"softiser/internal/sockio"
	"softiser/rdma/internal/iwarp"
	"softiser/rdma/internal/mpa"
)

// CRCMode is a side's wish about the CRC32C over every FPDU. It is used when
// either side insists (RFC 5044 §7.1.1).
type CRCMode = mpa.CRCMode

// CRC modes.
const (
	CRCRequired CRCMode = mpa.CRCRequired // default
	CRCOffered  CRCMode = mpa.CRCOffered  // follow the peer
	CRCOff      CRCMode = mpa.CRCOff      // refuse a peer that wants it
)

// ParseCRCMode reads "required", "offered" or "off".
func ParseCRCMode(s string) (CRCMode, error) { return mpa.ParseCRCMode(s) }

// P2PMode is the set of message kinds with which the initiator may open a
// peer-to-peer connection (RFC 6581 §9): one in which the responder may be the
// first to send, because the initiator sends an empty message by itself.
type P2PMode = mpa.RTR

// Kinds of ready-to-receive message. P2POff asks for no peer-to-peer set-up; a
// responder still grants what the initiator asks for.
const (
	P2POff   P2PMode = 0
	P2PSend  P2PMode = mpa.RTRSend
	P2PWrite P2PMode = mpa.RTRWrite
	P2PRead  P2PMode = mpa.RTRRead
)

// ZerocopyMode says whether payload leaves by MSG_ZEROCOPY: from the memory of the
// work request, without the kernel's copy. It pays for long payloads on real
// links; over loopback the kernel copies anyway, later and at a higher price.
type ZerocopyMode = iwarp.ZerocopyMode

// Modes. The zero value is the default of the setting it stands in.
const (
	ZerocopyOff  ZerocopyMode = iwarp.ZerocopyOff
	ZerocopyAuto ZerocopyMode = iwarp.ZerocopyAuto // until the kernel reports that it copied, or runs out of room
	ZerocopyOn   ZerocopyMode = iwarp.ZerocopyOn   // always, for payloads of ZerocopyMin bytes and more
)

// ParseZerocopyMode reads "auto", "on" or "off".
func ParseZerocopyMode(s string) (ZerocopyMode, error) { return iwarp.ParseZerocopyMode(s) }

// Values of a busy-poll setting, ConnParams.BusyPoll and those of the packages above, that
// are no durations. The zero value of all of them is BusyPollAuto.
const (
	// BusyPollAuto spins only where that pays: while the peer answers at once.
	BusyPollAuto time.Duration = sockio.BusyPollAuto
	// BusyPollOff never spins.
	BusyPollOff time.Duration = sockio.BusyPollOff
)

// ConnParams are a side's wishes for one connection. nil or zero fields mean the
// default beside them.
type ConnParams struct {
	// PrivateData is for the peer's ULP. iWARP: at most 508 bytes; Linux siw takes 252.
	// RoCE: 56 in a request, 196 in the answer, and the peer sees zeros behind it.
	PrivateData []byte
	IRD         int // Reads of the peer served at once; 16, negative: none. Use powers of two. RoCE: at most 255, and so with ORD
	ORD         int // own Reads outstanding; 16, negative: none
	CRC         CRCMode
	// BusyPoll is how long the receiver spins on an empty socket before it sleeps;
	// it costs a core while traffic flows. After silence it sleeps all the same.
	// BusyPollAuto, which is 0, spins where that saves more than it costs; BusyPollOff
	// never does. Over RoCE, where connections of an address share a receiver, the longest
	// duration counts, then BusyPollAuto.
	BusyPoll time.Duration
	// Zerocopy sends payloads of ZerocopyMin bytes (64 KiB) and more by reference;
	// the default is off.
	Zerocopy    ZerocopyMode
	ZerocopyMin int
	// SndBuf, RcvBuf fix the sizes of the socket buffers, bytes; 0: automatic, but RcvBuf is
	// 1 MiB between two ends on the same host.
	SndBuf, RcvBuf int
	// Congestion names the TCP congestion control, for example "cubic". "auto" or ""
	// is reno between two ends on the same host, where pacing algorithms only cost,
	// and else the host's default; "host" is always that.
	Congestion string
	// Timeout bounds the start-up; 10 s for the initiator, 5 s for the responder.
	Timeout time.Duration
	// Extensions allows the operations of RFC 7306 (atomics, immediate data) when
	// the other end is this implementation too and allows them; see docs/adr/0012.
	Extensions bool
	MPA        MPAParams  // what only iWARP has
	RoCE       RoCEParams // what only RoCE has
}

// RoCEParams are wishes for a connection over RoCE. What ConnParams says about TCP, and
// its CRC, means nothing there: every packet has one. Zero fields mean the value beside
// them.
type RoCEParams struct {
	LocalAddr netip.Addr // of the active side; the one on the way to the peer
	// PathMTU is the payload of a packet, bytes: 256, 512, 1024, 2048 or 4096. The active
	// side chooses; the largest that its interface carries.
	PathMTU int
	// AckTimeout is how long a request waits for an answer before it is sent again. It is
	// made a power of two of 4.096 µs, up; 537 ms. The peer is told the same.
	AckTimeout time.Duration
	// RetryCount is how often in a row, without any progress, a request is sent again; 7, which is the
	// most; negative: never. Then the connection ends with StatusRetryExceeded.
	RetryCount int
	// RNRRetry is how often the peer asks this side again that had no receive buffer; 7,
	// which stands for ever; negative: never.
	RNRRetry int
}

// MPAParams are wishes for the framing and the start-up of iWARP (RFC 5044, 6581).
type MPAParams struct {
	Rev int     // revision of the initiator, 1 or 2; 2
	P2P P2PMode // off
	// GSO asks for FPDUs larger than the path's segment size; it takes both sides.
	GSO bool
	// MaxFPDU limits the FPDUs that are sent, bytes; 0: what the path carries in one
	// segment, or 64 KiB over loopback and after GSO was agreed on.
	MaxFPDU int
	// SpeakFirst, at a responder, lets it send this long after the connection even
	// when nothing has come from the initiator yet. MPA forbids that (RFC 5044
	// §7.1.2), but programs in which the passive side begins, such as rdma-core's
	// ucmatose, work over Linux siw only this way, because siw asks for no
	// peer-to-peer start-up by default. 0: never.
	SpeakFirst time.Duration
	// Abortive has a connection end by a reset, unless Disconnect ends it or the peer has closed it: nothing
	// that waits in the socket reaches the peer any more. It is for a side that repeats its requests
	// over another connection, which the peer may learn of before the end of this one.
	Abortive bool
}

// ConnInfo is what the two sides have agreed on.
type ConnInfo struct {
	PrivateData []byte // of the peer
	Initiator   bool   // this side was the active one
	CRC         bool   // every FPDU carries a CRC32C; over RoCE, every packet its ICRC
	IRD, ORD    int    // Reads at once: of the peer that this side serves, of this side
	LocalAddr   net.Addr
	RemoteAddr  net.Addr
	MPA         MPAInfo  // what only iWARP has
	RoCE        RoCEInfo // what only RoCE has
}

// RoCEInfo is what was agreed on about a connection over RoCE.
type RoCEInfo struct {
	PathMTU   int    // payload of a packet, bytes
	RemoteQPN uint32 // number of the peer's queue pair
}

// MPAInfo is what was agreed on about the framing of iWARP.
type MPAInfo struct {
	Rev      int     // revision, 1 or 2
	GSO      bool    // FPDUs may be longer than the path's segments
	P2P      P2PMode // kind of the ready-to-receive message, or off
	MSS      int     // TCP payload per segment; 0: unknown
	FPDUSize int     // largest FPDU sent, bytes
}

const defaultQueue = 16

// queues are the Reads at once that p asks for: this side's, the peer's.
func (p *ConnParams) queues(d *Device) (ird, ord int, err error) {
	ird, ord = p.IRD, p.ORD
	for _, q := range []*int{&ird, &ord} {
		def(q, defaultQueue)
		*q = max(*q, 0)
	}
	if ird > d.cfg.MaxIRD || ord > d.cfg.MaxORD {
		return 0, 0, invalid("IRD %d, ORD %d: the device allows %d and %d", ird, ord, d.cfg.MaxIRD, d.cfg.MaxORD)
	}
	return ird, ord, nil
}

// Info is what the two ends have agreed on; the zero value before the connection.
func (qp *QP) Info() ConnInfo { return qp.pd.dev.transport.info(qp) }

// Extensions reports whether atomics and immediate data can be used. Over iWARP these are
// the operations of RFC 7306: both ends are this implementation and allow them. Just after
// the connection the answer may still be on its way; requests posted meanwhile wait for
// it. Over RoCE everybody has them.
func (qp *QP) Extensions() bool { return qp.pd.dev.transport.extensions(qp) }

// Dial connects qp to the listener at addr, as the active side. The network is that of the
// device's provider: "tcp", "tcp4" or "tcp6", or "roce". The error is a *RejectError when
// the peer's ULP refused, and wraps syscall.ECONNREFUSED when nobody listens there.
func Dial(ctx context.Context, network, addr string, qp *QP, p *ConnParams) (*ConnInfo, error) {
	d := qp.pd.dev
	if err := d.transport.dial(ctx, network, addr, qp, p); err != nil {
		return nil, public(err)
	}
	d.connected()
	info := qp.Info()
	return &info, nil
}
