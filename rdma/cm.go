package rdma

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"time"

	"softiser/internal/congestion"
	"softiser/internal/sockio"
	"softiser/rdma/internal/mem"
	"softiser/rdma/internal/mpa"
	"softiser/rdma/internal/wire"
)

// CRCMode is a side's wish about the CRC32C over every FPDU. It is used when
// either side insists (RFC 5044 §7.1.1).
type CRCMode = mpa.CRCMode

// CRC modes.
const (
	CRCRequired = mpa.CRCRequired // default
	CRCOffered  = mpa.CRCOffered  // follow the peer
	CRCOff      = mpa.CRCOff      // refuse a peer that wants it
)

// P2PMode is the set of message kinds with which the initiator may open a
// peer-to-peer connection (RFC 6581 §9): one in which the responder may be the
// first to send, because the initiator sends an empty message by itself.
type P2PMode = mpa.RTR

// Kinds of ready-to-receive message. P2POff asks for no peer-to-peer set-up; a
// responder still grants what the initiator asks for.
const (
	P2POff   P2PMode = 0
	P2PSend          = mpa.RTRSend
	P2PWrite         = mpa.RTRWrite
	P2PRead          = mpa.RTRRead
)

// ConnParams are a side's wishes for one connection. nil or zero fields mean the
// default beside them.
type ConnParams struct {
	PrivateData []byte // at most 508 bytes; Linux siw takes 252
	IRD         int    // Reads of the peer served at once; 16, negative: none. Use powers of two
	ORD         int    // own Reads outstanding; 16, negative: none
	CRC         CRCMode
	Rev         int     // MPA revision of the initiator, 1 or 2; 2
	P2P         P2PMode // off
	// GSO asks for FPDUs larger than the path's segment size; it takes both sides.
	GSO bool
	// MaxFPDU limits the FPDUs that are sent, bytes; 0: what the path carries in one
	// segment, or 64 KiB over loopback and after GSO was agreed on.
	MaxFPDU int
	// BusyPoll is how long the receiver spins on an empty socket before it sleeps;
	// it costs a core while traffic flows. After silence it sleeps all the same.
	// BusyPollAuto spins where that saves more than it costs.
	BusyPoll time.Duration
	// Zerocopy sends payloads of ZerocopyMin bytes (64 KiB) and more by reference.
	Zerocopy    ZerocopyMode
	ZerocopyMin int
	// SndBuf, RcvBuf fix the sizes of the socket buffers; 0: automatic.
	SndBuf, RcvBuf int
	// Congestion names the TCP congestion control, for example "cubic". "auto" or ""
	// is reno between two ends on the same host, where pacing algorithms only cost,
	// and else the host's default; "host" is always that.
	Congestion string
	// Timeout bounds the MPA start-up; 10 s for the initiator, 5 s for the responder.
	Timeout time.Duration
	// SpeakFirst, at a responder, lets it send this long after the connection even
	// when nothing has come from the initiator yet. MPA forbids that (RFC 5044
	// §7.1.2), but programs in which the passive side begins, such as rdma-core's
	// ucmatose, work over Linux siw only this way, because siw asks for no
	// peer-to-peer start-up by default. 0: never.
	SpeakFirst time.Duration
	// Extensions allows the operations of RFC 7306 (atomics, immediate data) when
	// the other end is this implementation too and allows them; see docs/adr/0012.
	Extensions bool
}

// ConnInfo is what the two sides have agreed on.
type ConnInfo struct {
	PrivateData []byte // of the peer
	Initiator   bool   // this side was the MPA initiator
	Rev         int
	CRC         bool
	GSO         bool
	IRD, ORD    int
	P2P         P2PMode // kind of the ready-to-receive message, or off
	MSS         int     // TCP payload per segment; 0: unknown
	FPDUSize    int     // largest FPDU sent
	LocalAddr   net.Addr
	RemoteAddr  net.Addr
}

// Timers of the start-up; the same as those of Linux siw.
const (
	requestTimeout = 5 * time.Second
	replyTimeout   = 10 * time.Second
	defaultQueue   = 16
)

func (p *ConnParams) wish(d *Device) (mpa.Wish, error) {
	w := mpa.Wish{Rev: p.Rev, CRC: p.CRC, IRD: p.IRD, ORD: p.ORD, P2P: p.P2P, GSO: p.GSO, Private: p.PrivateData}
	if p.Rev < 0 || p.Rev > 2 {
		return w, invalid("MPA revision %d, supported are 1 and 2", p.Rev)
	}
	for _, q := range []*int{&w.IRD, &w.ORD} {
		def(q, defaultQueue)
		*q = max(*q, 0)
	}
	if w.IRD > d.cfg.MaxIRD || w.ORD > d.cfg.MaxORD {
		return w, invalid("IRD %d, ORD %d: the device allows %d and %d", w.IRD, w.ORD, d.cfg.MaxIRD, d.cfg.MaxORD)
	}
	return w, nil
}

// Dial opens a TCP connection to addr and connects qp over it as MPA initiator.
func Dial(ctx context.Context, network, addr string, qp *QP, p *ConnParams) (*ConnInfo, error) {
	var cc string
	if p != nil {
		cc = p.Congestion
	}
	d := net.Dialer{Control: congestion.Dialing(cc)}
	nc, err := d.DialContext(ctx, network, addr)
	if err != nil {
		return nil, fmt.Errorf("rdma: %w", err)
	}
	return Client(ctx, nc, qp, p)
}

// Client connects qp over an open connection as MPA initiator. It takes nc over,
// and closes it on error. The error is a *RejectError when the peer's ULP refused.
func Client(ctx context.Context, nc net.Conn, qp *QP, p *ConnParams) (*ConnInfo, error) {
	if p == nil {
		p = &ConnParams{}
	}
	info, err := qp.connect(ctx, nc, p)
	if err != nil {
		_ = nc.Close()
		return nil, err
	}
	return info, nil
}

func (qp *QP) connect(ctx context.Context, nc net.Conn, p *ConnParams) (*ConnInfo, error) {
	w, err := p.wish(qp.dev)
	if err != nil {
		return nil, err
	}
	if err := congestion.Apply(p.Congestion, nc); err != nil {
		return nil, fmt.Errorf("rdma: %w", err)
	}
	if err := sockio.Apply(nc, sockio.Options{SendBuffer: p.SndBuf, RecvBuffer: p.RcvBuf}); err != nil {
		return nil, err
	}
	req, err := w.Request()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	var rep mpa.Frame
	err = startup(ctx, nc, p.Timeout, replyTimeout, func() error {
		if _, err := nc.Write(req.Append(nil)); err != nil {
			return err
		}
		return mpa.ReadFrame(nc, &rep, true)
	})
	if err != nil {
		return nil, fmt.Errorf("rdma: MPA start-up with %v: %w", nc.RemoteAddr(), err)
	}
	if rep.Flags&mpa.FlagReject != 0 {
		return nil, &RejectError{PrivateData: rep.Private}
	}
	res, err := w.Agree(req, &rep)
	if err != nil {
		var r *mpa.Refusal
		if errors.As(err, &r) {
			sendRefusal(nc, r, req, &rep)
			return nil, fmt.Errorf("%w: %w", ErrRefused, err)
		}
		return nil, fmt.Errorf("rdma: %w", err)
	}
	return qp.attach(nc, p, &res, true)
}

// startup runs f on nc, bounded by ctx and a time-out.
func startup(ctx context.Context, nc net.Conn, d, dflt time.Duration, f func() error) error {
	if d <= 0 {
		d = dflt
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	_ = nc.SetDeadline(time.Now().Add(d))
	stop := context.AfterFunc(ctx, func() { _ = nc.SetDeadline(time.Unix(1, 0)) })
	err := f()
	if !stop() && err == nil {
		// The deadline in the past may be set only now, and would end the connection.
		err = ctx.Err()
	}
	var ne net.Error
	if errors.As(err, &ne) && ne.Timeout() {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return fmt.Errorf("%w: %v", ErrTimeout, d)
	}
	return err
}

// sendRefusal tells the responder by a Terminate why its Reply is not acceptable
// (RFC 6581 §8).
func sendRefusal(nc net.Conn, r *mpa.Refusal, req, rep *mpa.Frame) {
	h := wire.Untagged{Ctrl: wire.Ctrl(wire.Terminate, true), QN: wire.QNTerminate, MSN: 1}
	t := wire.Term{Cause: r.Cause}
	crc := (req.Flags|rep.Flags)&mpa.FlagCRC != 0
	_ = nc.SetWriteDeadline(time.Now().Add(termTimeout))
	_, _ = nc.Write(wire.AppendFPDU(nil, t.Append(h.Append(nil)), crc))
}

// attach hands nc to qp for good and starts it.
func (qp *QP) attach(nc net.Conn, p *ConnParams, r *mpa.Result, initiator bool) (*ConnInfo, error) {
	conn, err := sockio.New(nc, sockio.Options{})
	if err != nil {
		return nil, fmt.Errorf("rdma: %w", err)
	}
	if r.RTR == mpa.RTRRead && initiator {
		r.ORD = max(r.ORD, 1)
	}
	sinks, err := qp.makeSinks(r.ORD)
	if err != nil {
		return nil, err
	}
	info := ConnInfo{
		PrivateData: r.Private, Initiator: initiator, Rev: r.Rev, CRC: r.CRC, GSO: r.GSO, IRD: r.IRD, ORD: r.ORD,
		P2P: r.RTR, MSS: conn.MSS(), LocalAddr: nc.LocalAddr(), RemoteAddr: nc.RemoteAddr(),
	}
	info.FPDUSize = fpduSize(info.MSS, r.GSO || isLoopback(info.RemoteAddr), p.MaxFPDU)

	qp.sqMu.Lock()
	if qp.state != StateIdle || qp.closed.Load() {
		qp.sqMu.Unlock()
		for _, s := range sinks {
			qp.dev.tab.Remove(s)
		}
		return nil, fmt.Errorf("%w: queue pair %d is in state %v, a connection needs Idle", ErrState, qp.num, qp.state)
	}
	qp.conn, qp.info, qp.sinks = conn, info, sinks
	qp.initiator, qp.rtr, qp.busyPoll = initiator, r.RTR, p.BusyPoll
	qp.onlyP = runtime.GOMAXPROCS(0) == 1
	qp.txOpen = initiator
	if p.Zerocopy != ZerocopyOff && conn.EnableZerocopy() {
		qp.zc.mode, qp.zc.min = p.Zerocopy, p.ZerocopyMin
		def(&qp.zc.min, zcMinDefault)
	}
	qp.orq = make([]orqEntry, len(sinks))
	for i, s := range sinks {
		qp.orq[i].sink = s
	}
	// A peer may round the depth up to a power of two, as siw does; and one slot is
	// there even for IRD 0, for a peer whose first message is an empty Read.
	qp.irq = make([]irqEntry, roundUp(r.IRD))
	qp.tx.init(r.CRC, info.FPDUSize)
	qp.rx.init(r.CRC)
	hook := qp.setState(StateRTS)
	if r.RTR != 0 || p.Extensions {
		qp.sq = make([]sqe, roundUp(qp.cfg.MaxSend+hiddenMax)) // nothing can be queued yet
	}
	if initiator {
		qp.startRTRLocked()
	} else if p.SpeakFirst > 0 {
		qp.speaker = time.AfterFunc(p.SpeakFirst, qp.speakFirst)
	}
	if p.Extensions {
		qp.startExtLocked()
	}
	qp.wg.Add(2)
	qp.sqMu.Unlock()
	hook()
	d := qp.dev
	d.stat.mu.Lock()
	d.stat.conns++
	d.stat.mu.Unlock()
	go qp.rxLoop()
	go qp.txLoop()
	qp.Push()
	return &info, nil
}

// isLoopback: nothing is gained by fitting FPDUs to segments that never see a
// wire, and the kernel names half of the real size when the connection is new.
func isLoopback(a net.Addr) bool {
	t, ok := a.(*net.TCPAddr)
	return ok && t.IP.IsLoopback()
}

// fpduSize is the largest FPDU to send: what one TCP segment carries, in whole 8
// bytes as siw does it, within what MPA allows (RFC 5044 §5).
func fpduSize(mss int, gso bool, limit int) int {
	const largest = wire.LenField + wire.MaxULPDU + 2 + wire.CRCLen
	n := largest
	if !gso && mss > 0 {
		n = min(n, mss&^7)
	}
	if limit > 0 {
		n = min(n, limit&^7)
	}
	// RFC 5044 §5: the ULPDU is at least 128 bytes.
	return max(n, wire.FPDULen(128))
}

func (qp *QP) makeSinks(n int) ([]*mem.Region, error) {
	sinks := make([]*mem.Region, 0, n)
	for range n {
		s := new(mem.Region)
		if err := qp.pd.insert(s); err != nil {
			for _, s := range sinks {
				qp.dev.tab.Remove(s)
			}
			return nil, err
		}
		sinks = append(sinks, s)
	}
	return sinks, nil
}

// startRTRLocked queues the ready-to-receive message in front of everything else.
func (qp *QP) startRTRLocked() {
	switch qp.rtr {
	case mpa.RTRWrite:
		qp.empty |= emptyRTR
	case mpa.RTRRead:
		qp.hiddenLocked(OpRead)
	case mpa.RTRSend:
		qp.hiddenLocked(OpSend)
	}
}

// speakFirst opens the transmitter of a responder that has heard nothing yet.
func (qp *QP) speakFirst() {
	qp.sqMu.Lock()
	if qp.state == StateRTS {
		qp.txOpen = true
	}
	qp.sqMu.Unlock()
	qp.Push()
}

// hiddenMax is how many entries of its own the engine puts on a send queue.
const hiddenMax = 2

// hiddenLocked queues an empty message without a completion.
func (qp *QP) hiddenLocked(op Opcode) {
	e := &qp.sq[qp.sqTail&uint32(len(qp.sq)-1)]
	// Some RNICs refuse STag 0 even where it is not used.
	*e = sqe{op: op, flags: flagHidden, remote: RemoteAddr{STag: 1}, segs: e.segs[:0], lkeys: e.lkeys[:0]}
	qp.sqTail++
	qp.hidden++
}

func (t *txState) init(crc bool, fpdu int) {
	t.hdr = make([]byte, 0, hdrRing)
	t.vec = make([]sockio.Vec, 0, sockio.MaxVec)
	t.crc, t.round = crc, roundBytes
	if crc {
		t.round = roundCRC
	}
	t.maxTagged = (fpdu - wire.LenField - wire.TaggedLen - wire.CRCLen) &^ 3
	if t.maxTagged >= 2*directMin {
		t.maxTagged &^= directMin - 1 // whole pages, as most buffers are
	}
	t.maxUntagged = (fpdu - wire.LenField - wire.UntaggedLen - wire.CRCLen) &^ 3
	t.msn = [4]uint32{1, 1, 1, 1}
}

func (x *rxState) init(crc bool) {
	x.buf = make([]byte, rxBuf)
	x.vec = make([]sockio.Vec, 0, rxVec)
	x.crcOn = crc
	x.msn = [4]uint32{1, 1, 1, 1}
}
