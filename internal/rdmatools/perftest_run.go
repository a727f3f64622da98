package rdmatools

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"runtime"
	"time"

	"softiser/rdma"
)

// ptTest is one end of the data connection of a perftest measurement.
type ptTest struct {
	*endpoint
	*perf
	client bool
	dest   rdma.Destination // of datagrams
	head   int              // bytes of in before a message: a datagram's network header
	out    []byte           // what is sent
	in     []byte           // what the other end writes to, reads from, or Sends into
	credit []byte           // send-bw: the server writes here how many Sends it has taken
	mr     *rdma.MR         // of in, or of credit
	mine   ptDest
	theirs ptDest
	wcs    [64]rdma.WC
}

// newPTTest makes the queue pair and memory of a test with an original perftest at the
// other end.
func newPTTest(dev *rdma.Device, p *perf, cycle int, client bool) (_ *ptTest, err error) {
	depth := max(p.depth, p.rxDepth)
	t := &ptTest{perf: p, client: client, out: make([]byte, p.size), credit: make([]byte, ptCredit)}
	if p.qpType == rdma.TypeUD {
		t.head = rdma.GRHLen
	}
	t.in = make([]byte, t.head+max(p.size, cycle))
	if t.endpoint, err = newEndpoint(dev, rdma.QPConfig{Type: p.qpType, Datagram: p.ud, MaxSend: 2*p.depth + 8, MaxRecv: depth + 8}, nil); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			t.close()
		}
	}()
	shared := t.in
	if p.kind.op == rdma.OpSend {
		shared = t.credit
		for range p.rxDepth {
			if err := t.post(); err != nil {
				return nil, err
			}
		}
	}
	if t.mr, err = t.pd.RegMR(shared, rdma.AccessLocalWrite|rdma.AccessRemoteRead|rdma.AccessRemoteWrite|rdma.AccessRemoteAtomic); err != nil {
		return nil, err
	}
	t.mine = ptDest{Reads: 1, QPN: 1, RKey: t.mr.RKey(), VAddr: t.mr.Addr()}
	if p.kind.answered() {
		t.mine.Reads = uint32(p.reads)
	}
	return t, nil
}

func (t *ptTest) close() {
	_ = t.qp.Close()
	if t.mr != nil {
		_ = t.mr.Dereg()
	}
	t.endpoint.close()
}

func (t *ptTest) post() error {
	return t.qp.PostRecv(rdma.RecvWR{SGL: t.sgl(t.in[:t.head+t.size])})
}

// exchange tells each other where the memory is; the receives are posted.
func (t *ptTest) exchange(ctx context.Context, ctl *ptControl) (err error) {
	n, _ := t.kind.ptSteps()
	t.theirs, err = ctl.dest(ctx, n, &t.mine)
	return err
}

// ptSteering is what the ends of a test say to each other after it.
type ptSteering interface {
	dest(ctx context.Context, n int, mine *ptDest) (theirs ptDest, err error)
	report(ctx context.Context, d *perfDoc) (*perfDoc, error)
}

// lead is the client's test and what follows it.
func (t *ptTest) lead(ctx context.Context, ctl ptSteering) (*perfResult, error) {
	res, err := t.run(ctx)
	if err != nil {
		return nil, err
	}
	info := t.qp.Info()
	res.fill(t.perf, &info)
	if !t.kind.latency && t.kind.op != rdma.OpSend {
		if _, err := ctl.dest(ctx, 1, &t.mine); err != nil {
			return nil, err
		}
		if _, err := ctl.report(ctx, &res.doc); err != nil {
			return nil, err
		}
	}
	return res, t.closing(ctx, ctl)
}

// follow is the server's part of the test. Of some tests it learns no result.
func (t *ptTest) follow(ctx context.Context, ctl ptSteering) (res *perfResult, err error) {
	res = &perfResult{}
	if t.kind.op == rdma.OpSend || t.kind.writeLatency() {
		if res, err = t.run(ctx); err != nil {
			return nil, err
		}
		info := t.qp.Info()
		res.fill(t.perf, &info)
	} else if !t.kind.latency {
		if _, err := ctl.dest(ctx, 1, &t.mine); err != nil {
			return nil, err
		}
		doc, err := ctl.report(ctx, &perfDoc{})
		if err != nil {
			return nil, err
		}
		doc.Test, doc.CRC = t.kind.name, t.qp.CRC()
		res.doc = *doc
	}
	return res, t.closing(ctx, ctl)
}

// closing is the last step, of the tests that have one.
func (t *ptTest) closing(ctx context.Context, ctl ptSteering) error {
	if _, closing := t.kind.ptSteps(); !closing {
		return nil
	}
	_, err := ctl.dest(ctx, 1, &t.mine)
	return err
}

func (t *ptTest) remote() rdma.RemoteAddr {
	return rdma.RemoteAddr{TO: t.theirs.VAddr, STag: t.theirs.RKey}
}

// run is the test itself, from either end.
func (t *ptTest) run(ctx context.Context) (*perfResult, error) {
	start := time.Now()
	var lat []time.Duration
	var err error
	switch {
	case t.kind.writeLatency():
		lat, err = t.pingPong(ctx, t.sendWrite, t.awaitWrite)
	case t.kind.latency && t.kind.op == rdma.OpSend:
		lat, err = t.pingPong(ctx, t.sendSend, t.awaitSend)
	case t.kind.latency:
		lat, err = t.reads(ctx)
	case !t.client:
		err = t.sink(ctx)
	default:
		err = t.stream(ctx)
	}
	return &perfResult{iters: t.iters, took: time.Since(start), lat: lat}, err
}

// pingPong sends and waits in turns. With Sends the client begins; with Writes
// perftest's server does, over iWARP as well, where a responder has to wait for
// the initiator's first FPDU (RFC 5044 §7.1.2), see rdma.MPAParams.SpeakFirst.
// Latencies are half of the time from a message to the answer.
func (t *ptTest) pingPong(ctx context.Context, send, await func(ctx context.Context, n int) error) ([]time.Duration, error) {
	begins := t.client != t.kind.writeLatency()
	lat := t.latencies()
	var sent time.Time
	for n := 1; n <= t.iters; n++ {
		if begins {
			sent = time.Now()
			if err := send(ctx, n); err != nil {
				return nil, err
			}
		}
		if err := await(ctx, n); err != nil {
			return nil, fmt.Errorf("%s: message %d: %w", t.kind.name, n, err)
		}
		if !sent.IsZero() {
			lat = append(lat, time.Since(sent)/2)
		}
		if !begins {
			sent = time.Now()
			if err := send(ctx, n); err != nil {
				return nil, err
			}
		}
	}
	return lat, nil
}

func (t *ptTest) sendSend(context.Context, int) error {
	return t.qp.PostSend(rdma.SendWR{Op: rdma.OpSend, SGL: t.sgl(t.out), Dest: t.dest})
}

func (t *ptTest) awaitSend(ctx context.Context, _ int) error {
	if _, err := t.next(ctx); err != nil {
		return err
	}
	return t.post()
}

// The last byte of a Write counts the messages, and the other end watches it. The
// memory may be changed for the next one when the completion is here.
func (t *ptTest) sendWrite(ctx context.Context, n int) error {
	t.out[t.size-1] = byte(n)
	if err := t.qp.PostSend(rdma.SendWR{Op: rdma.OpWrite, Flags: rdma.FlagSignaled, SGL: t.sgl(t.out), Remote: t.remote()}); err != nil {
		return err
	}
	_, err := t.next(ctx)
	return err
}

func (t *ptTest) awaitWrite(ctx context.Context, n int) error {
	last := &t.in[t.size-1]
	for i := 0; peek(last) != byte(n); i++ {
		if i < 1000 {
			runtime.Gosched()
			continue
		}
		select {
		case <-t.qp.Done():
			if peek(last) == byte(n) {
				return nil
			}
			return t.qp.Err()
		case <-ctx.Done():
			return over(ctx)
		case <-time.After(20 * time.Microsecond):
		}
	}
	return nil
}

// peek reads a byte that the other end may be writing at this moment: that is
// what such a test does, and nothing is concluded from it but that it arrived.
// Not inlined, so that each call looks again.
//
//go:noinline
//go:norace
func peek(p *byte) byte { return *p }

// reads is one RDMA Read, or atomic operation, after the other.
func (t *ptTest) reads(ctx context.Context) ([]time.Duration, error) {
	lat := t.latencies()
	for range t.iters {
		sent := time.Now()
		if err := t.qp.PostSend(rdma.SendWR{Op: t.kind.op, Flags: rdma.FlagSignaled, SGL: t.sgl(t.out), Remote: t.remote(), Add: 1}); err != nil {
			return nil, err
		}
		if _, err := t.next(ctx); err != nil {
			return nil, err
		}
		lat = append(lat, time.Since(sent))
	}
	return lat, nil
}

// stream keeps depth messages in flight, Sends no more than the other end has
// receives for.
func (t *ptTest) stream(ctx context.Context) error {
	wr := rdma.SendWR{Op: t.kind.op, Flags: rdma.FlagSignaled, SGL: t.sgl(t.out), Remote: t.remote(), Add: 1, Dest: t.dest}
	for posted, ended := 0, 0; ended < t.iters; {
		for posted < t.iters && posted-ended < t.depth && t.credits(posted) {
			if err := t.qp.Enqueue(&wr); err != nil {
				return err
			}
			posted++
		}
		t.qp.Push()
		n := t.cq.Poll(t.wcs[:])
		switch {
		case n > 0:
		case posted > ended:
			if err := t.cq.Wait(ctx); err != nil {
				return cmp.Or(over(ctx), err)
			}
		default:
			select {
			case <-t.qp.Done():
				return t.qp.Err()
			case <-ctx.Done():
				return over(ctx)
			case <-time.After(50 * time.Microsecond):
			}
		}
		for i := range t.wcs[:n] {
			if t.wcs[i].Status != rdma.StatusSuccess {
				return fmt.Errorf("%s: %w", t.kind.name, t.failed(&t.wcs[i]))
			}
			ended++
		}
	}
	return nil
}

// credits reports whether the other end has a receive for one more Send. Over RoCE nobody
// counts: a Send that comes too early is asked for again, or lost.
func (t *ptTest) credits(posted int) bool {
	return t.roce() || t.kind.op != rdma.OpSend || uint32(posted)+1-t.taken() < uint32(t.rxDepth)
}

// taken is the credit: how many Sends the other end has taken.
func (t *ptTest) taken() uint32 {
	var b [ptCredit]byte
	for {
		for i := range b {
			b[i] = peek(&t.credit[i])
		}
		// The bytes of a credit may be seen one by one; the same twice is whole.
		again := b
		for i := range again {
			again[i] = peek(&t.credit[i])
		}
		if again == b {
			return binary.LittleEndian.Uint32(b[:])
		}
	}
}

// sink takes the Sends of a bandwidth test and, over iWARP, writes the credit after each
// third of the receives.
func (t *ptTest) sink(ctx context.Context) error {
	every := max(t.rxDepth/3, 1)
	credit := make([]byte, ptCredit)
	for got := 0; got < t.iters; {
		wc, err := t.next(ctx)
		if err != nil {
			return fmt.Errorf("%s: after %d messages: %w", t.kind.name, got, err)
		}
		if n := int(wc.ByteLen) - t.head; n != t.size {
			return fmt.Errorf("%s: a message of %d bytes; both ends must be given the same -s (here %d)", t.kind.name, n, t.size)
		}
		got++
		if err := t.post(); err != nil {
			return err
		}
		if got%t.rxDepth%every != 0 || t.roce() {
			continue
		}
		binary.LittleEndian.PutUint32(credit, uint32(got))
		if err := t.qp.PostSend(rdma.SendWR{Op: rdma.OpWrite, Flags: rdma.FlagInline, SGL: t.sgl(credit), Remote: t.remote()}); err != nil {
			return err
		}
	}
	return nil
}
