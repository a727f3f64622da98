package iwarp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"softiser/internal/congestion"
	"softiser/internal/sockio"
	"softiser/rdma/internal/mem"
	"softiser/rdma/internal/mpa"
	"softiser/rdma/internal/verbs"
	"softiser/rdma/internal/wire"
)

// Params are a side's wishes for one connection: those of the MPA start-up, and
// those that concern this side alone. Package rdma documents them.
type Params struct {
	mpa.Wish
	MaxFPDU        int
	BusyPoll       time.Duration
	Zerocopy       ZerocopyMode
	ZerocopyMin    int
	SndBuf, RcvBuf int
	Congestion     string
	Timeout        time.Duration
	SpeakFirst     time.Duration
	Abortive       bool
	Extensions     bool
}

// Info is what the two sides have agreed on.
type Info struct {
	mpa.Result
	Initiator     bool // this side was the MPA initiator
	MSS           int  // TCP payload per segment; 0: unknown
	FPDUSize      int  // largest FPDU sent
	Local, Remote net.Addr
}

// Rejected carries the private data of a Reply that rejected the connection.
type Rejected struct{ Private []byte }

// Error is verbs.ErrRejected's.
func (e *Rejected) Error() string { return verbs.ErrRejected.Error() }

// Timers of the start-up; the same as those of Linux siw.
const (
	requestTimeout = 5 * time.Second
	replyTimeout   = 10 * time.Second
)

// Connect connects qp over nc as MPA initiator. On error nc is the caller's to close;
// the error is a *Rejected when the peer's ULP refused.
func (qp *QP) Connect(ctx context.Context, nc net.Conn, p *Params) error {
	w := &p.Wish
	if err := congestion.Apply(p.Congestion, nc); err != nil {
		return fmt.Errorf("rdma: %w", err)
	}
	if err := sockio.Apply(nc, sockio.Options{SendBuffer: p.SndBuf, RecvBuffer: p.RcvBuf}); err != nil {
		return err
	}
	req, err := w.Request()
	if err != nil {
		return fmt.Errorf("%w: %w", verbs.ErrInvalid, err)
	}
	var rep mpa.Frame
	err = startup(ctx, nc, p.Timeout, replyTimeout, func() error {
		if _, err := nc.Write(req.Append(nil)); err != nil {
			return err
		}
		err := mpa.ReadFrame(nc, &rep, true)
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			err = fmt.Errorf("%w: the other end closed it; does it speak iWARP there?", err)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("rdma: MPA start-up with %v: %w", nc.RemoteAddr(), err)
	}
	if rep.Flags&mpa.FlagReject != 0 {
		return &Rejected{rep.Private}
	}
	res, err := w.Agree(req, &rep)
	if err != nil {
		var r *mpa.Refusal
		if errors.As(err, &r) {
			sendRefusal(nc, r, req, &rep)
			return fmt.Errorf("%w: %w", verbs.ErrRefused, err)
		}
		return fmt.Errorf("rdma: %w", err)
	}
	return qp.attach(nc, p, &res, true, req, &rep)
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
		// ctx has ended: the deadline above is set or about to be, so the connection is of no use.
		err = ctx.Err()
	}
	var ne net.Error
	if errors.As(err, &ne) && ne.Timeout() {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return fmt.Errorf("%w: %v", verbs.ErrTimeout, d)
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

// attach hands nc to qp for good and starts it, after the frames req and rep.
func (qp *QP) attach(nc net.Conn, p *Params, r *mpa.Result, initiator bool, req, rep *mpa.Frame) error {
	conn, err := qp.socket(nc, p)
	if err != nil {
		return err
	}
	if conn.Tapped() {
		conn.Told(req.Append(nil), rep.Append(nil), initiator)
	}
	if r.RTR == mpa.RTRRead && initiator {
		r.ORD = max(r.ORD, 1)
	}
	info := Info{Result: *r, Initiator: initiator, MSS: conn.MSS(), Local: nc.LocalAddr(), Remote: nc.RemoteAddr()}
	info.FPDUSize = fpduSize(info.MSS, r.GSO || isLoopback(info.Remote), p.MaxFPDU)
	return qp.run(conn, p, &info, func() { qp.start.beginLocked(p) })
}

// socket takes nc over for data.
func (qp *QP) socket(nc net.Conn, p *Params) (*sockio.Conn, error) {
	conn, err := sockio.New(nc, sockio.Options{BusyPoll: p.BusyPoll, Crowd: &qp.dev.crowd, Tally: &qp.dev.tally})
	if err != nil {
		return nil, fmt.Errorf("rdma: %w", err)
	}
	return conn, nil
}

// run starts qp on a connection; begin, called with QP.Mu held, is what precedes the first
// message of this process. On error conn is dropped.
func (qp *QP) run(conn *sockio.Conn, p *Params, info *Info, begin func()) (err error) {
	defer func() {
		if err != nil {
			conn.Drop()
		}
	}()
	var sink *mem.Region
	if info.ORD > 0 {
		if sink, err = qp.reads.makeSink(); err != nil {
			return err
		}
	}
	qp.Mu.Lock()
	if st := qp.StateLocked(); st != verbs.StateIdle || qp.Closed.Load() {
		qp.Mu.Unlock()
		if sink != nil {
			qp.Dev.Table.Remove(sink)
		}
		return errNotIdle(qp.Num, st)
	}
	qp.conn, qp.info, qp.abortive = conn, *info, p.Abortive
	qp.Connected = true
	qp.start.initiator, qp.start.rtr = info.Initiator, info.RTR
	qp.wait.Init(conn, &qp.rx)
	if p.Zerocopy >= ZerocopyAuto && conn.EnableZerocopy() {
		qp.zc.used, qp.zc.auto, qp.zc.min = true, p.Zerocopy == ZerocopyAuto, cmp.Or(p.ZerocopyMin, zcMinDefault)
	}
	qp.reads.openLocked(sink, info.ORD)
	qp.asked.openLocked(info.IRD)
	qp.tx.init(info.CRC, info.FPDUSize)
	qp.rx.init(info.CRC)
	hook := qp.SetState(verbs.StateRTS)
	begin()
	qp.wg.Add(2)
	qp.Mu.Unlock()
	hook()
	go qp.rx.loop()
	go qp.tx.loop()
	qp.tx.push()
	return nil
}

func errNotIdle(num uint32, st verbs.State) error {
	return fmt.Errorf("%w: queue pair %d is in state %v, a connection needs Idle", verbs.ErrState, num, st)
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

// StartMSN makes the next messages of every queue carry the number sn, and expects
// it of the peer, whose engine must be told the same: tests let the numbers wrap.
// Nothing may be on its way.
func (qp *QP) StartMSN(sn uint32) {
	qp.Mu.Lock()
	defer qp.Mu.Unlock()
	for i := range qp.tx.msn {
		qp.tx.msn[i], qp.rx.msn[i] = sn, sn
	}
}
