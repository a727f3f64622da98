package rdmatools

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"

	"softiser/internal/usage"
	"softiser/rdma"
)

// The exchange of perftest (ib_write_bw -R and its siblings, versions 5.70 and
// later; tried against 6.06). Two connections go to the same port:
//
//	client                                       server
//	   | control: Sends in lock step, client first  |
//	   |  "6.06"  version, 16 bytes                 |
//	   |  buffer cycle, cache line: 4 bytes each    |
//	   |  MTU as a digit and NUL, 2 bytes           |
//	   |  destination, 56 bytes                     |
//	   | data: the connection that is measured      |
//	   |  destination, 56 bytes, 4 or 5 times       |   the later ones only keep step
//	   |  ---- the test, on the data connection --- |
//	   |  destination; report of a bw test: 5 × 8   |
//	   |  destination                               |
//
// Without -R the same goes over one TCP connection, see perftest_tcp.go. Size,
// iterations and depth are not exchanged: both ends must be given the same.
// A server that is about to take the data connection listens only after it has
// answered the first destination, so the client tries more than once.
const (
	ptVersion     = "6.06"
	ptDestLen     = 56
	ptCacheLine   = 64
	ptMTU         = "3" // IBV_MTU_1024, what Linux says of siw
	ptMaxCycle    = 1 << 24
	ptCredit      = 4 // bytes of a credit: how many Sends have arrived, little-endian
	ptConnects    = 50
	ptConnectWait = 100 * time.Millisecond
	ptPage        = 4096
	ptLinger      = 200 * time.Millisecond
)

// ptDest is perftest's struct pingpong_dest, in network byte order:
//
//	 0                   4                   8                   12
//	+-------------------+-------------------+-------------------+------------------+
//	| LID               | outstanding Reads | QP number         | PSN              |
//	+-------------------+-------------------+-------------------+------------------+
//	| rkey (STag)       | 0                 | virtual address (TO)                 |
//	+-------------------+-------------------+--------------------------------------+
//	| GID                                                                          |
//	+-------------------+-------------------+--------------------------------------+
//	| SRQ number        | GID index         |
//	+-------------------+-------------------+
//
// Over iWARP only the Reads, the rkey and the address mean anything.
type ptDest struct {
	Reads, QPN, RKey uint32
	VAddr            uint64
}

func (d *ptDest) append(b []byte) []byte {
	b = append(b, make([]byte, ptDestLen)...)
	p := b[len(b)-ptDestLen:]
	binary.BigEndian.PutUint32(p[4:], d.Reads)
	binary.BigEndian.PutUint32(p[8:], d.QPN)
	binary.BigEndian.PutUint32(p[16:], d.RKey)
	binary.BigEndian.PutUint64(p[24:], d.VAddr)
	return b
}

func (d *ptDest) parse(b []byte) error {
	if len(b) != ptDestLen {
		return fmt.Errorf("perftest: a destination of %d bytes instead of %d: is the other end one of perftest 5.70 or later, with -R?", len(b), ptDestLen)
	}
	*d = ptDest{binary.BigEndian.Uint32(b[4:]), binary.BigEndian.Uint32(b[8:]), binary.BigEndian.Uint32(b[16:]), binary.BigEndian.Uint64(b[24:])}
	return nil
}

// ptChannel carries the exchange: a connection of its own by -R, or TCP.
type ptChannel interface {
	send(b []byte) error
	// recv waits for a message, which may have any length up to some limit; want is what
	// the other end should send now.
	recv(ctx context.Context, want int) ([]byte, error)
}

// ptTalk is the exchange over any channel.
type ptTalk struct {
	ptChannel
	client bool
	mtu    string // path MTU of this end as the digit of its code, and what the other end has said
	theirs string
}

// ptControl is the control connection.
type ptControl struct {
	*endpoint
	ptTalk
	in []byte
}

func newPTControl(dev *rdma.Device, client bool) (*ptControl, error) {
	e, err := newEndpoint(dev, rdma.QPConfig{MaxSend: 4, MaxRecv: 2}, nil)
	if err != nil {
		return nil, err
	}
	c := &ptControl{endpoint: e, in: make([]byte, ptDestLen)}
	c.ptTalk = ptTalk{ptChannel: c, client: client, mtu: ptMTU}
	if err := c.qp.PostRecv(rdma.RecvWR{SGL: c.sgl(c.in)}); err != nil {
		c.close()
		return nil, err
	}
	return c, nil
}

func (c *ptControl) send(b []byte) error {
	return c.qp.PostSend(rdma.SendWR{Op: rdma.OpSend, Flags: rdma.FlagInline, SGL: c.sgl(b)})
}

func (c *ptControl) recv(ctx context.Context, _ int) ([]byte, error) {
	wc, err := c.next(ctx)
	if err != nil {
		return nil, err
	}
	b := append([]byte(nil), c.in[:wc.ByteLen]...)
	return b, c.qp.PostRecv(rdma.RecvWR{SGL: c.sgl(c.in)})
}

// swap is one step of the exchange: the client speaks first.
func (c *ptTalk) swap(ctx context.Context, mine []byte) (theirs []byte, err error) {
	if c.client {
		if err := c.send(mine); err != nil {
			return nil, err
		}
		return c.recv(ctx, len(mine))
	}
	if theirs, err = c.recv(ctx, len(mine)); err != nil {
		return nil, err
	}
	return theirs, c.send(mine)
}

// greet exchanges what comes before the first destination and returns the larger
// of both ends' buffer cycles.
func (c *ptTalk) greet(ctx context.Context) (cycle int, err error) {
	version := make([]byte, 16)
	copy(version, ptVersion)
	theirs, err := c.swap(ctx, version)
	if err != nil {
		return 0, err
	}
	if v, err := ptParseVersion(theirs); err != nil || v < 5.70 {
		return 0, fmt.Errorf("perftest: the other end's version is %q; want 5.70 or later", theirs)
	}
	if theirs, err = c.swap(ctx, binary.BigEndian.AppendUint32(nil, ptPage)); err != nil {
		return 0, err
	}
	if len(theirs) != 4 || binary.BigEndian.Uint32(theirs) > ptMaxCycle {
		return 0, fmt.Errorf("perftest: a buffer cycle of %x bytes; at most %d are taken", theirs, ptMaxCycle)
	}
	cycle = max(ptPage, int(binary.BigEndian.Uint32(theirs)))
	if _, err = c.swap(ctx, binary.BigEndian.AppendUint32(nil, ptCacheLine)); err != nil {
		return 0, err
	}
	theirs, err = c.swap(ctx, []byte(c.mtu+"\x00"))
	c.theirs = text(theirs)
	return cycle, err
}

func ptParseVersion(b []byte) (float64, error) {
	n := 0
	for n < len(b) && b[n] != 0 {
		n++
	}
	return strconv.ParseFloat(string(b[:n]), 64)
}

// dest exchanges destinations n times.
func (c *ptControl) dest(ctx context.Context, n int, mine *ptDest) (theirs ptDest, err error) {
	for range n {
		b, err := c.swap(ctx, mine.append(nil))
		if err != nil {
			return theirs, err
		}
		if err := theirs.parse(b); err != nil {
			return theirs, err
		}
	}
	return theirs, nil
}

// report tells the server the client's result: size, iterations, peak and average
// in units of 2^20 bytes, and 10^6 messages per second.
func (c *ptTalk) report(ctx context.Context, d *perfDoc) (*perfDoc, error) {
	theirs := &perfDoc{}
	for i, v := range []uint64{
		uint64(d.Size), uint64(d.Iterations), math.Float64bits(d.MiBps), math.Float64bits(d.MiBps), math.Float64bits(d.MsgRate / 1e6),
	} {
		b, err := c.swap(ctx, binary.BigEndian.AppendUint64(nil, v))
		if err != nil {
			return nil, err
		}
		if len(b) != 8 {
			return nil, fmt.Errorf("perftest: a report of %d bytes", len(b))
		}
		switch n := binary.BigEndian.Uint64(b); i {
		case 0:
			theirs.Size = int(n)
		case 1:
			theirs.Iterations = int(n)
		case 3:
			theirs.MiBps = math.Float64frombits(n)
			theirs.MBps = theirs.MiBps * (1 << 20) / 1e6
		case 4:
			theirs.MsgRate = math.Float64frombits(n) * 1e6
		}
	}
	return theirs, nil
}

// acceptData waits for the data connection, as long as the client is there.
func (c *ptControl) acceptData(ctx context.Context, ln *rdma.Listener) (*rdma.ConnRequest, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		select {
		case <-c.qp.Done():
			cancel(fmt.Errorf("perftest: the client has left before its data connection: %w", c.qp.Err()))
		case <-ctx.Done():
		}
	}()
	req, err := ln.Accept(ctx)
	if err != nil {
		return nil, errors.Join(err, context.Cause(ctx))
	}
	return req, nil
}

// ptSteps is how often the destinations are exchanged between the data connection
// and the test, and whether the test ends with a step of its own.
func (k *perfKind) ptSteps() (before int, closing bool) {
	switch {
	case k.op == rdma.OpSend || k.latency:
		return 5, !k.writeLatency()
	}
	return 4, true
}

func (k *perfKind) writeLatency() bool { return k.latency && k.op == rdma.OpWriteImm }

// measurePerftest is the client of a perftest server.
func (p *perf) measurePerftest(ctx context.Context, host string) error {
	params, err := p.perftestParams()
	if err != nil {
		return err
	}
	dev, err := p.open()
	if err != nil {
		return err
	}
	defer dev.Close()
	ctl, err := newPTControl(dev, true)
	if err != nil {
		return err
	}
	defer ctl.close()
	if _, err := p.dial(ctx, host, p.port, ctl.qp, &params); err != nil {
		return err
	}
	early, quiet := p.whileHeard(ctx, ctl.endpoint)
	defer quiet()
	cycle, err := ctl.greet(early)
	if err != nil {
		return err
	}
	if _, err := ctl.dest(early, 1, &ptDest{}); err != nil {
		return err
	}
	quiet() // so is the control connection during the test
	var t *ptTest
	for try := 1; ; try++ {
		if t, err = newPTTest(dev, p, cycle, true); err != nil {
			return err
		}
		if _, err = p.dial(ctx, host, p.port, t.qp, &params); err == nil {
			break
		}
		t.close()
		if try == ptConnects || ctx.Err() != nil {
			return fmt.Errorf("perftest: the data connection: %w", err)
		}
		time.Sleep(ptConnectWait)
	}
	defer t.close()
	ctx, stop := p.whileHeard(ctx, ctl.endpoint, t.endpoint)
	defer stop()
	if err := t.exchange(ctx, ctl); err != nil {
		return err
	}
	res, err := t.lead(ctx, ctl)
	if err != nil {
		return err
	}
	// The server may not yet have seen that its last Write or Send has left, and siw
	// fails one that the end of the connection finds in that state.
	time.Sleep(ptLinger)
	t.disconnect()
	ctl.disconnect()
	return res.print(p.out, p.json)
}

// servePerftest is the server of a perftest client, whose control connection has
// arrived: it says nothing in its MPA Request.
func (p *perf) servePerftest(ctx context.Context, dev *rdma.Device, ln *rdma.Listener, req *rdma.ConnRequest) error {
	params, err := p.perftestParams()
	if err != nil {
		_ = req.Reject(nil)
		return err
	}
	ctl, err := newPTControl(dev, false)
	if err != nil {
		return err
	}
	defer ctl.close()
	if err := req.Accept(ctx, ctl.qp, &params); err != nil {
		return err
	}
	early, quiet := p.whileHeard(ctx, ctl.endpoint)
	defer quiet()
	cycle, err := ctl.greet(early)
	if err != nil {
		return err
	}
	if _, err := ctl.dest(early, 1, &ptDest{}); err != nil {
		return err
	}
	if req, err = ctl.acceptData(early, ln); err != nil {
		return err
	}
	quiet() // the control connection is, during the test
	t, err := newPTTest(dev, p, cycle, false)
	if err != nil {
		return err
	}
	defer t.close()
	ctx, stop := p.whileHeard(ctx, ctl.endpoint, t.endpoint)
	defer stop()
	if p.kind.writeLatency() {
		params.MPA.SpeakFirst = speakFirstAfter
	}
	if err := req.Accept(ctx, t.qp, &params); err != nil {
		return err
	}
	if err := t.exchange(ctx, ctl); err != nil {
		return err
	}
	res, err := t.follow(ctx, ctl)
	if err != nil {
		return err
	}
	for _, e := range []*endpoint{t.endpoint, ctl.endpoint} {
		if err := e.ended(ctx); err != nil {
			return err
		}
	}
	if res.doc.MsgRate == 0 {
		return nil
	}
	return res.print(p.out, p.json)
}

// perftestParams checks the flags, and settles the receives as perftest does: no more than there
// are messages, and an even number.
func (p *perf) perftestParams() (rdma.ConnParams, error) {
	if err := p.check(); err != nil {
		return rdma.ConnParams{}, err
	}
	switch {
	case p.kind.op != rdma.OpSend:
	case p.kind.latency:
		p.rxDepth = 2
	case p.rxDepth < 1 || p.rxDepth > 1<<14:
		return rdma.ConnParams{}, usage.Errorf("%s: -r %d: want 1 to %d", p.kind.name, p.rxDepth, 1<<14)
	default:
		p.rxDepth = min(p.rxDepth, p.iters)
		p.rxDepth += p.rxDepth % 2
	}
	c, err := p.params()
	c.IRD, c.ORD = p.reads, p.reads
	c.Extensions = p.kind.atomic()
	return c, err
}
