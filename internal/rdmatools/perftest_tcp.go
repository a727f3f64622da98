package rdmatools

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"softiser/internal/usage"
	"softiser/rdma"
)

// The exchange of perftest without -R: the steps of perftest.go over one TCP connection,
// each a single write, as the other end reads it by a single read. There is no control
// connection, and so no destination before the data connection; the destinations are text,
// and tell of queue pairs that both ends connect once they have seen the first:
//
//	LID:reads:QPN:PSN:rkey:vaddr:GID, 16 bytes with colons between:SRQN:NUL
//
// in hexadecimal of fixed width. An end with no GID (not RoCE) sends less.
const (
	ptTextFormat = "%04x:%04x:%06x:%06x:%08x:%016x:%s:%08x:\x00"
	ptTextLen    = 108
	ptTextShort  = 59 // without a GID
	ptTextFields = 6 + 16 + 1 + 1
)

// ptTextDest is a destination as text. LID and SRQN mean nothing over RoCE.
type ptTextDest struct {
	ptDest // QPN in it
	PSN    uint32
	Addr   netip.Addr
}

func (d *ptTextDest) append(b []byte) []byte {
	gid := d.Addr.As16()
	return fmt.Appendf(b, ptTextFormat, 0, d.Reads, d.QPN, d.PSN, d.RKey, d.VAddr,
		strings.ReplaceAll(fmt.Sprintf("% x", gid[:]), " ", ":"), 0)
}

// parse takes what append writes, from an end that may send anything: the length, each
// field's digits and width, and the GID's form are checked.
func (d *ptTextDest) parse(b []byte) error {
	bad := fmt.Errorf("perftest: the other end says %q instead of where its queue pair is", b)
	f := strings.Split(string(b), ":")
	if len(b) != ptTextLen || len(f) != ptTextFields || f[ptTextFields-1] != "\x00" {
		return bad
	}
	var n [ptTextFields - 1]uint64
	for i := range n {
		bits := 8 // of a byte of the GID
		switch i {
		case 0, 1:
			bits = 16
		case 2, 3:
			bits = 24
		case 4, ptTextFields - 2:
			bits = 32
		case 5:
			bits = 64
		}
		var err error
		if n[i], err = strconv.ParseUint(f[i], 16, bits); err != nil || len(f[i]) != bits/4 {
			return bad
		}
	}
	var gid [16]byte
	for i := range gid {
		gid[i] = byte(n[6+i])
	}
	*d = ptTextDest{
		ptDest: ptDest{Reads: uint32(n[1]), QPN: uint32(n[2]), RKey: uint32(n[4]), VAddr: n[5]},
		PSN:    uint32(n[3]), Addr: netip.AddrFrom16(gid).Unmap(),
	}
	if d.Addr.IsUnspecified() {
		return usage.Errorf("perftest: the other end has told no GID: start it with -x and the index of its RoCE v2 GID")
	}
	return nil
}

// ptTCP is the exchange over TCP.
type ptTCP struct {
	ptTalk
	nc    net.Conn
	in    *bufio.Reader
	quiet time.Duration // how long a step may last; 0: as long as the test
	local rdma.Endpoint
	watch chan struct{} // closed when nobody else reads; nil: nobody does
}

func newPTTCP(nc net.Conn, client bool) *ptTCP {
	c := &ptTCP{nc: nc, in: bufio.NewReader(nc), quiet: pingpongWait}
	c.ptTalk = ptTalk{ptChannel: c, client: client}
	return c
}

func (c *ptTCP) send(b []byte) error {
	_, err := c.nc.Write(b)
	return err
}

func (c *ptTCP) recv(_ context.Context, want int) ([]byte, error) {
	c.wait()
	deadline := time.Time{}
	if c.quiet > 0 {
		deadline = time.Now().Add(c.quiet)
	}
	_ = c.nc.SetReadDeadline(deadline)
	b := make([]byte, want)
	n := want
	if want == ptTextLen { // shorter if there is no GID, which its end shows
		n = ptTextShort
	}
	if _, err := io.ReadFull(c.in, b[:n]); err != nil {
		return nil, fmt.Errorf("perftest: the other end has not said what it should: %w", err)
	}
	if n < want && b[n-1] == 0 {
		return nil, usage.Errorf("perftest: the other end has told no GID: start it with -x and the index of its RoCE v2 GID")
	}
	if _, err := io.ReadFull(c.in, b[n:]); err != nil {
		return nil, fmt.Errorf("perftest: the other end has not said what it should: %w", err)
	}
	return b, nil
}

// tell exchanges destinations n times.
func (c *ptTCP) tell(ctx context.Context, n int, mine *ptDest) (theirs ptTextDest, err error) {
	my := ptTextDest{ptDest: *mine, PSN: c.local.PSN, Addr: c.local.Addr}
	for range n {
		b, err := c.swap(ctx, my.append(nil))
		if err != nil {
			return theirs, err
		}
		if err := theirs.parse(b); err != nil {
			return theirs, err
		}
	}
	return theirs, nil
}

func (c *ptTCP) dest(ctx context.Context, n int, mine *ptDest) (ptDest, error) {
	theirs, err := c.tell(ctx, n, mine)
	return theirs.ptDest, err
}

// follow ends the queue pair when the other end has left, which RoCE would not tell: while
// the test runs nobody else reads. A message is for the next recv.
func (c *ptTCP) follow(qp *rdma.QP) {
	c.quiet = 0
	_ = c.nc.SetReadDeadline(time.Time{})
	c.watch = make(chan struct{})
	go func() {
		defer close(c.watch)
		if _, err := c.in.Peek(1); err != nil {
			qp.Abort(fmt.Errorf("perftest: the other end has left: %w", err))
		}
	}()
}

// wait waits until follow's goroutine has seen a message or the end.
func (c *ptTCP) wait() {
	if c.watch != nil {
		<-c.watch
	}
}

func (c *ptTCP) close() {
	_ = c.nc.Close()
	c.wait()
}

// exchangeTCP is one end of a test with a perftest without -R; the server's if server is
// empty.
func (p *perf) exchangeTCP(ctx context.Context, server string) error {
	params, err := p.perftestParams()
	if err != nil {
		return err
	}
	dev, err := p.open()
	if err != nil {
		return err
	}
	defer dev.Close()
	if server != "" {
		nc, err := dialTCP(ctx, p.source, server, p.port)
		if err != nil {
			return err
		}
		return p.testTCP(ctx, dev, nc, params, true)
	}
	ln, err := listenTCP(ctx, p.source, p.port)
	if err != nil {
		return err
	}
	defer ln.Close()
	stop := context.AfterFunc(ctx, func() { _ = ln.Close() })
	defer stop()
	for {
		nc, err := ln.Accept()
		if err != nil {
			if p.persist && ctx.Err() != nil {
				return nil
			}
			return interrupted(ctx, err)
		}
		from := nc.RemoteAddr()
		err = p.testTCP(ctx, dev, nc, params, false)
		if !p.persist {
			return err
		}
		if err != nil {
			fmt.Fprintf(p.out, "%s: client %v: %v\n", p.kind.name, from, err)
		}
	}
}

// testTCP is one test over a connection to the other end, which it closes.
func (p *perf) testTCP(ctx context.Context, dev *rdma.Device, nc net.Conn, params rdma.ConnParams, client bool) (err error) {
	defer func() { err = interrupted(ctx, err) }()
	one := *p // what follows from the other end is for this test
	p = &one
	c := newPTTCP(nc, client)
	defer c.close()
	stop := context.AfterFunc(ctx, func() { _ = nc.Close() })
	defer stop()
	local := params.RoCE.LocalAddr
	if !local.IsValid() {
		local = nc.LocalAddr().(*net.TCPAddr).AddrPort().Addr().Unmap()
	}
	if c.mtu, err = ptMTUCode(local, p.mtu); err != nil {
		return err
	}
	cycle, err := c.greet(ctx)
	if err != nil {
		return err
	}
	if params.RoCE.PathMTU, err = c.pathMTU(); err != nil {
		return err
	}
	if p.qpType == rdma.TypeUD {
		if err := p.fits(params.RoCE.PathMTU); err != nil {
			return err
		}
		p.ud = rdma.DatagramParams{LocalAddr: local, QKey: pingpongQKey, PathMTU: params.RoCE.PathMTU}
	}
	t, err := newPTTest(dev, p, cycle, client)
	if err != nil {
		return err
	}
	defer t.close()
	defer c.close() // which still has the queue pair, first
	if err := t.attach(ctx, c, local, &params); err != nil {
		return err
	}
	c.follow(t.qp)
	var res *perfResult
	if client {
		res, err = t.lead(ctx, c)
	} else {
		res, err = t.follow(ctx, c)
	}
	if err != nil {
		return err
	}
	if client {
		// The server may not yet have been answered its last Write or Send.
		time.Sleep(ptLinger)
	} else {
		// The same for the client, which leaves when it has been.
		_ = nc.SetReadDeadline(time.Now().Add(pingpongWait))
		c.wait()
		_, _ = io.Copy(io.Discard, c.in)
	}
	if res.doc.MsgRate == 0 {
		return nil
	}
	return res.print(p.out, p.json)
}

// attach exchanges destinations and connects the queue pair.
func (t *ptTest) attach(ctx context.Context, c *ptTCP, local netip.Addr, params *rdma.ConnParams) error {
	c.local = rdma.Endpoint{Addr: local, QPN: t.qp.Num(), PSN: rand.Uint32() & 0xffffff}
	t.mine.QPN = c.local.QPN
	theirs, err := c.tell(ctx, 1, &t.mine)
	if err != nil {
		return err
	}
	t.theirs = theirs.ptDest
	if err := t.meet(c.local, &theirs, params); err != nil {
		return err
	}
	// One step less than with -R, where the data connection has one of its own.
	n, _ := t.kind.ptSteps()
	_, err = c.tell(ctx, n-2, &t.mine)
	return err
}

// meet connects the queue pair with the other end's, or takes note of where datagrams go.
func (t *ptTest) meet(local rdma.Endpoint, theirs *ptTextDest, params *rdma.ConnParams) error {
	if t.qpType == rdma.TypeUD {
		ah, err := t.pd.CreateAH(theirs.Addr)
		t.dest = rdma.Destination{AH: ah, QPN: theirs.QPN, QKey: pingpongQKey}
		return err
	}
	const timeout = 4096 << 14 // ns; as the originals
	params.RoCE.AckTimeout = timeout
	params.IRD, params.ORD = int(t.mine.Reads), int(min(max(theirs.Reads, 1), uint32(t.perf.reads)))
	return t.qp.Attach(local, rdma.Endpoint{Addr: theirs.Addr, QPN: theirs.QPN, PSN: theirs.PSN}, params)
}

// ptMTUs are the path MTUs that perftest's digits stand for: 1 is the first.
var ptMTUs = []int{256, 512, 1024, 2048, 4096}

// ptMTUCode is perftest's digit for the path MTU at a local address; want limits it,
// unless it is 0.
func ptMTUCode(local netip.Addr, want int) (string, error) {
	largest := rdma.PathMTU(local)
	for i, n := range ptMTUs {
		if n == want || want == 0 && n == largest {
			if n > largest {
				return "", usage.Errorf("path MTU %d: the interface of %v carries at most %d", want, local, largest)
			}
			return strconv.Itoa(i + 1), nil
		}
	}
	return "", usage.Errorf("path MTU %d: want 256, 512, 1024, 2048 or 4096", want)
}

// checkMTU refuses what is no path MTU of RoCE; 0 is the largest that there is.
func checkMTU(n int) error {
	if n == 0 || slices.Contains(ptMTUs, n) {
		return nil
	}
	return usage.Errorf("path MTU %d: want 256, 512, 1024, 2048 or 4096", n)
}

// pathMTU is the smaller of both ends' path MTUs, bytes.
func (c *ptTCP) pathMTU() (int, error) {
	n, err := strconv.Atoi(c.theirs)
	if err != nil || n < 1 || n > len(ptMTUs) {
		return 0, fmt.Errorf("perftest: the other end says %q for its path MTU; want 1 to %d", c.theirs, len(ptMTUs))
	}
	mine, err := strconv.Atoi(c.mtu)
	return ptMTUs[min(n, mine)-1], err
}
