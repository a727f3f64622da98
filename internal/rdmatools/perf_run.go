package rdmatools

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"softiser/rdma"
)

// perfRun is the client of one measurement. After the first messages, all of it happens in the
// completion handler, on whatever goroutine brings the completions.
type perfRun struct {
	*endpoint
	*perf
	mem    []byte
	remote rdma.RemoteAddr
	dest   rdma.Destination // of datagrams
	done   chan error       // capacity 1

	wcs [64]rdma.WC
	out []rdma.SGE
	in  []rdma.SGE

	mu            sync.Mutex // guards what follows until done, against first messages that are answered while others are posted
	posted, ended int
	finishing     bool // all posted; waiting for the answer that says all has arrived
	end           time.Time
	start, sent   time.Time
	took          time.Duration
	lat           []time.Duration
	over          bool          // the outcome is in done
	progress      atomic.Uint64 // completions so far
}

// perfFinal is the ID of the Send behind the last RDMA Write.
const perfFinal = 1

func (r *perfRun) prepare() error {
	r.out, r.in = r.sgl(r.mem), r.sgl(make([]byte, rdma.GRHLen+r.size)) // the header is in front of datagrams
	for range r.depth + 4 {
		if err := r.qp.PostRecv(rdma.RecvWR{SGL: r.in}); err != nil {
			return err
		}
	}
	if r.kind.latency {
		r.lat = r.latencies()
	}
	return nil
}

// latencies is where the times of messages go: there is room for the first of many, or of an unknown number.
func (p *perf) latencies() []time.Duration {
	n := 1 << 16
	if p.duration.d == 0 {
		n = min(n, p.iters)
	}
	return make([]time.Duration, 0, n)
}

// run starts and waits for the end.
func (r *perfRun) run(ctx context.Context) (*perfResult, error) {
	if err := r.postFirst(); err != nil {
		return nil, err
	}
	r.qp.Push()
	ctx, quiet := r.whileHeard(ctx, r.endpoint)
	defer quiet()
	lost, stop := r.watch()
	defer stop()
	select {
	case <-lost:
		return nil, fmt.Errorf("%s: nothing has come for %v: messages were lost, as a queue pair of type %v does not send them again; try less at a time (-t, -s)", r.kind.name, perfSilence, r.qpType)
	case err := <-r.done:
		if err != nil {
			return nil, err
		}
	case <-r.qp.Done():
		select {
		case err := <-r.done:
			if err != nil {
				return nil, err
			}
		default:
			return nil, fmt.Errorf("%s: the connection ended: %w", r.kind.name, r.qp.Err())
		}
	case <-ctx.Done():
		return nil, over(ctx)
	}
	return &perfResult{iters: r.ended, took: r.took, lat: r.lat}, nil
}

// postFirst starts the clock, and posts as many messages as are under way at a time. Nothing is pushed,
// but the queue pair may take them along with what it sends of itself.
func (r *perfRun) postFirst() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.end, r.start = r.deadline(), time.Now()
	for i := range r.depth {
		if i > 0 && !r.more() { // one at least, however soon the time is over
			break
		}
		if err := r.postOne(); err != nil {
			return err
		}
	}
	return nil
}

// perfSilence is how long a run may stand still whose messages may be lost.
const perfSilence = 2 * time.Second

// watch returns what is closed when a run over an unreliable connection stands still.
func (r *perfRun) watch() (lost chan struct{}, stop func()) {
	lost = make(chan struct{})
	if r.qpType == rdma.TypeRC {
		return lost, func() {}
	}
	var timer *time.Timer
	var mu sync.Mutex // guards timer
	seen := r.progress.Load()
	mu.Lock()
	defer mu.Unlock()
	timer = time.AfterFunc(perfSilence, func() {
		mu.Lock()
		defer mu.Unlock()
		if now := r.progress.Load(); now != seen {
			seen = now
			timer.Reset(perfSilence)
			return
		}
		close(lost)
	})
	return lost, func() {
		mu.Lock()
		defer mu.Unlock()
		timer.Stop()
	}
}

// more reports whether another message is to be posted.
func (r *perfRun) more() bool {
	if r.end.IsZero() {
		return r.posted < r.iters
	}
	// The clock is read once in 64 messages, unless each one is timed anyway.
	if r.kind.latency {
		return r.sent.Before(r.end)
	}
	return r.posted&63 != 0 || time.Now().Before(r.end)
}

func (r *perfRun) postOne() error {
	r.posted++
	if r.kind.latency {
		r.sent = time.Now()
	}
	wr := rdma.SendWR{Op: r.kind.op, Flags: rdma.FlagSignaled, SGL: r.out, Remote: r.remote, Dest: r.dest, Add: 1}
	if r.kind.latency && !r.kind.answered() {
		wr.Flags = 0
	}
	return r.qp.Enqueue(&wr)
}

// handle is the completion handler.
func (r *perfRun) handle(cq *rdma.CQ) {
	r.poll(cq)
	r.qp.Push() // may bring completions, and so this handler once more
}

// poll takes what has completed.
func (r *perfRun) poll(cq *rdma.CQ) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for n := cq.Poll(r.wcs[:]); n > 0; n = cq.Poll(r.wcs[:]) {
		for i := range r.wcs[:n] {
			if err := r.complete(&r.wcs[i]); err != nil && !r.over {
				r.over = true
				r.done <- err
			}
		}
	}
}

// complete counts a completion and posts what follows from it.
func (r *perfRun) complete(wc *rdma.WC) error {
	if r.over {
		return nil
	}
	r.progress.Add(1)
	if wc.Status != rdma.StatusSuccess {
		if wc.Status == rdma.StatusFlushed {
			return nil // QP.Err says why
		}
		return fmt.Errorf("%s: %v: %v", r.kind.name, wc.Opcode, wc.Status)
	}
	recv := wc.Opcode == rdma.WCRecv || wc.Opcode == rdma.WCRecvImm
	if recv {
		if err := r.qp.PostRecv(rdma.RecvWR{SGL: r.in}); err != nil {
			return err
		}
	}
	if r.finishing {
		if recv {
			r.took = time.Since(r.start)
			r.over = true
			r.done <- nil
		}
		return nil
	}
	// A ping-pong goes on with the answer, a Send stream with the credit for it,
	// everything else with the completion.
	if pong := r.kind.latency && !r.kind.answered() || r.kind.op == rdma.OpSend; pong != recv || wc.ID == perfFinal {
		return nil
	}
	r.ended++
	if r.kind.latency {
		d := time.Since(r.sent)
		if !r.kind.answered() {
			d /= 2
		}
		r.lat = append(r.lat, d)
	}
	if r.more() {
		return r.postOne()
	}
	if r.ended < r.posted {
		return nil
	}
	if r.kind.latency || r.kind.op != rdma.OpWrite {
		r.took = time.Since(r.start)
		r.over = true
		r.done <- nil
		return nil
	}
	// Writes complete when they are sent; they have arrived when the answer to a
	// Send behind them is here.
	r.finishing = true
	return r.qp.Enqueue(&rdma.SendWR{ID: perfFinal, Op: rdma.OpSend})
}

// perfServer answers: every message that consumes a receive buffer gets one back,
// of the same kind for a latency test, empty otherwise.
type perfServer struct {
	*endpoint
	*perf
	mem, bufs []byte
	remote    rdma.RemoteAddr  // the client's memory
	dest      rdma.Destination // of the answers to datagrams
	heads     [][]byte         // network headers of the receives, which their IDs count, as long as dest is not known
	wcs       [64]rdma.WC
	in, out   []rdma.SGE
	progress  atomic.Uint64 // messages so far, and lookups
}

func (s *perfServer) post() error {
	if s.in == nil {
		s.in, s.out = s.sgl(s.bufs), s.sgl(make([]byte, s.size))
	}
	if s.qpType != rdma.TypeUD || s.dest.AH != nil {
		return s.qp.PostRecv(rdma.RecvWR{SGL: s.in})
	}
	head := make([]byte, rdma.GRHLen)
	s.heads = append(s.heads, head)
	return s.qp.PostRecv(rdma.RecvWR{ID: uint64(len(s.heads) - 1), SGL: append(s.sgl(head), s.sgl(s.bufs[rdma.GRHLen:])...)})
}

// handle answers the messages that a server's completion queue reports.
func (s *perfServer) handle(cq *rdma.CQ) {
	for n := cq.Poll(s.wcs[:]); n > 0; n = cq.Poll(s.wcs[:]) {
		for i := range s.wcs[:n] {
			wc := &s.wcs[i]
			if wc.Status != rdma.StatusSuccess || wc.Opcode != rdma.WCRecv && wc.Opcode != rdma.WCRecvImm {
				continue
			}
			s.progress.Add(1)
			err := s.answerTo(wc)
			if err == nil {
				err = s.post()
			}
			if err != nil {
				s.qp.Abort(err)
				return
			}
			wr := rdma.SendWR{Op: rdma.OpSend, Dest: s.dest}
			if s.kind.latency {
				wr = rdma.SendWR{Op: s.kind.op, SGL: s.out, Remote: s.remote, Dest: s.dest}
			}
			if err := s.qp.Enqueue(&wr); err != nil {
				s.qp.Abort(err)
				return
			}
		}
	}
	s.qp.Push()
}

// wait waits for the end of the connection, or the silence of a client that was killed.
func (s *perfServer) wait(ctx context.Context) error {
	ctx, stop := s.whileHeard(ctx, s.endpoint)
	defer stop()
	return s.ended(ctx)
}

// answerTo finds out from the first datagram where the answers go.
func (s *perfServer) answerTo(wc *rdma.WC) error {
	if s.qpType != rdma.TypeUD || s.dest.AH != nil {
		return nil
	}
	from, _, err := rdma.ParseGRH(s.heads[wc.ID])
	if err != nil {
		return err
	}
	ah, err := s.pd.CreateAH(from)
	s.dest = rdma.Destination{AH: ah, QPN: wc.SrcQPN, QKey: rdma.DefaultQKey}
	return err
}
