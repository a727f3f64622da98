package verbs

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"syscall"
	"time"

	"softiser/benchmarks/internal/memory"
	"softiser/rdma"
)

// client keeps Depth messages outstanding, from the completion handler.
type client struct {
	o    Options
	end  *end
	peer window

	first  sync.Mutex // keeps the handler of a stream away while fill posts; what follows is the handler's
	wc     [64]rdma.WC
	sge    [1]rdma.SGE
	wr     rdma.SendWR
	op     rdma.Opcode
	next   int64 // messages posted
	ended  int64 // messages completed
	flight int
	stopAt time.Time
	began  time.Time
	over   time.Duration
	err    error
	done   chan struct{}

	sentAt time.Time // ping-pong
	trips  []int64
}

// start is when messages begin, and what the process has used by then.
type start struct {
	at  time.Time
	cpu time.Duration
}

func now() start { return start{time.Now(), cpuTime()} }

// run performs one test over one queue pair. Its messages begin when begin, which is called
// once it is connected, returns.
func run(ctx context.Context, addr string, o Options, begin func() (start, error)) (*Result, error) {
	c := &client{o: o, done: make(chan struct{})}
	switch o.Op {
	case "write", "ping-write":
		c.op = rdma.OpWrite
	case "read":
		c.op = rdma.OpRead
	case "send", "ping-send":
		c.op = rdma.OpSend
	default:
		return nil, fmt.Errorf("unknown test %q", o.Op)
	}
	ping := o.Op == "ping-send" || o.Op == "ping-write"
	handler := c.stream
	if ping {
		handler = c.pingpong
		c.trips = make([]int64, 0, 4<<20)
	}
	mem, err := memory.Map(max(o.Region, o.Size))
	if err != nil {
		return nil, err
	}
	defer syscall.Munmap(mem)
	if c.end, err = newEnd(mem, o.Depth, o.Provider, handler); err != nil {
		return nil, err
	}
	defer c.end.close()
	for i := range 8 {
		c.recv(uint64(i))
	}
	info, err := rdma.Dial(ctx, o.Provider.Network(), addr, c.end.qp, o.params(o.question()))
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(bytes.TrimRight(info.PrivateData, "\x00"), &c.peer); err != nil {
		return nil, err
	}
	from, err := begin()
	if err != nil {
		return nil, err
	}
	c.began = from.at
	c.stopAt = c.began.Add(o.Time)
	if ping {
		c.ping()
		c.end.qp.Push()
	} else {
		c.fill()
	}
	select {
	case <-c.done:
	case <-c.end.qp.Done():
		return nil, fmt.Errorf("the connection ended: %w", c.end.qp.Err())
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if c.err != nil {
		return nil, c.err
	}
	r := c.result(info)
	r.CPU = (cpuTime() - from.cpu).Seconds()
	c.end.qp.Disconnect()
	return r, nil
}

// Run performs one test against a server at addr, over n > 0 queue pairs at once, each with a
// connection, messages and memory of its own. They begin when all are connected.
func Run(ctx context.Context, addr string, o Options, n int) (*Result, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type outcome struct {
		r   *Result
		err error
	}
	connected, begun, ended := make(chan struct{}, n), make(chan struct{}), make(chan outcome, n)
	var from start
	begin := func() (start, error) {
		connected <- struct{}{}
		select {
		case <-begun:
			return from, nil
		case <-ctx.Done():
			return start{}, ctx.Err()
		}
	}
	for range n {
		go func() {
			r, err := run(ctx, addr, o, begin)
			ended <- outcome{r, err}
		}()
	}
	var sum *Result
	var first error
	for dialing, running := n, n; running > 0; {
		select {
		case <-connected:
			if dialing--; dialing == 0 {
				from = now()
				close(begun)
			}
		case e := <-ended:
			running--
			switch {
			case e.err != nil:
				cancel() // the others are not to wait for it
				first = cmp.Or(first, e.err)
			case sum == nil:
				sum = e.r
			default:
				sum.Messages += e.r.Messages
				sum.Bytes += e.r.Bytes
				sum.Seconds = max(sum.Seconds, e.r.Seconds)
				sum.CPU = max(sum.CPU, e.r.CPU) // each is that of the process
			}
		}
	}
	if first != nil {
		return nil, first
	}
	return sum, nil
}

// cpuTime is what this process has used so far.
func cpuTime() time.Duration {
	var ru syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &ru) != nil {
		return 0
	}
	return time.Duration(ru.Utime.Nano() + ru.Stime.Nano())
}

func (c *client) result(info *rdma.ConnInfo) *Result {
	r := &Result{Messages: c.ended, Bytes: c.ended * int64(c.o.Size), Seconds: c.over.Seconds(), FPDU: info.MPA.FPDUSize}
	if n := len(c.trips); n > 0 {
		slices.Sort(c.trips)
		r.P50, r.P99 = float64(c.trips[n/2]), float64(c.trips[n*99/100])
	}
	return r
}

func (c *client) recv(id uint64) {
	c.sge[0] = c.end.sge(c.end.mem[:c.o.Size])
	c.end.qp.PostRecv(rdma.RecvWR{ID: id, SGL: c.sge[:]})
}

// fill posts the first messages. Nothing is pushed before all are queued, but the queue pair may
// take them along with what it sends of itself, so that completions arrive meanwhile.
func (c *client) fill() {
	c.first.Lock()
	c.flight = c.o.Depth
	for range c.o.Depth {
		c.post()
	}
	c.first.Unlock()
	c.end.qp.Push()
}

// post queues the next message.
func (c *client) post() {
	i := c.next
	c.next++
	c.sge[0] = c.end.sge(c.end.buffer(i, c.o.Size))
	c.wr = rdma.SendWR{ID: uint64(i), Op: c.op, Flags: rdma.FlagSignaled, SGL: c.sge[:]}
	if c.op != rdma.OpSend {
		region := max(c.o.Region, c.o.Size)
		at := uint64(i % int64(region/c.o.Size) * int64(c.o.Size))
		c.wr.Remote = rdma.RemoteAddr{TO: c.peer.TO + at, STag: c.peer.STag}
	}
	if err := c.end.qp.Enqueue(&c.wr); err != nil {
		c.fail(err)
	}
}

func (c *client) fail(err error) {
	if c.err == nil {
		c.err = err
		close(c.done)
	}
}

// stream replaces every completed message by a new one until time is up.
func (c *client) stream(cq *rdma.CQ) {
	if c.replace(cq) {
		c.end.qp.Push()
	}
}

// replace is stream without the push that it may ask for.
func (c *client) replace(cq *rdma.CQ) (posted bool) {
	c.first.Lock()
	defer c.first.Unlock()
	for n := cq.Poll(c.wc[:]); n > 0; n = cq.Poll(c.wc[:]) {
		over := !time.Now().Before(c.stopAt)
		for i := range c.wc[:n] {
			if s := c.wc[i].Status; s != rdma.StatusSuccess {
				if c.over == 0 {
					c.fail(fmt.Errorf("%v ended with %v", c.wc[i].Opcode, s))
				}
				continue
			}
			c.ended++
			if over || c.err != nil {
				if c.flight--; c.flight == 0 && c.err == nil {
					c.over = time.Since(c.began)
					close(c.done)
				}
				continue
			}
			c.post()
			posted = true
		}
	}
	return posted
}

// ping sends one message and, by RDMA Write, an empty Send behind it that tells
// the peer.
func (c *client) ping() {
	c.sentAt = time.Now()
	c.sge[0] = c.end.sge(c.end.mem[:c.o.Size])
	c.wr = rdma.SendWR{ID: 1, Op: c.op, SGL: c.sge[:]}
	if c.op == rdma.OpWrite {
		c.wr.Remote = rdma.RemoteAddr{TO: c.peer.TO, STag: c.peer.STag}
		c.must(c.end.qp.Enqueue(&c.wr))
		c.wr = rdma.SendWR{ID: 2, Op: rdma.OpSend}
	}
	if c.next++; c.next%8 == 0 {
		c.wr.Flags = rdma.FlagSignaled
	}
	c.must(c.end.qp.Enqueue(&c.wr))
}

func (c *client) must(err error) {
	if err != nil {
		c.fail(err)
	}
}

// pingpong takes completions off cq and answers each message that came with the next
// one, until the time is over.
func (c *client) pingpong(cq *rdma.CQ) {
	again := false
	for n := cq.Poll(c.wc[:]); n > 0; n = cq.Poll(c.wc[:]) {
		for i := range c.wc[:n] {
			w := &c.wc[i]
			if w.Status != rdma.StatusSuccess {
				if c.over == 0 {
					c.fail(errors.New("ping-pong ended: " + w.Status.String()))
				}
				continue
			}
			if w.Opcode != rdma.WCRecv {
				continue
			}
			now := time.Now()
			if len(c.trips) < cap(c.trips) {
				c.trips = append(c.trips, int64(now.Sub(c.sentAt)))
			}
			c.ended++
			c.recv(w.ID)
			if now.After(c.stopAt) {
				if c.over == 0 && c.err == nil {
					c.over = time.Since(c.began)
					close(c.done)
				}
				continue
			}
			c.ping()
			again = true
		}
	}
	if again {
		c.end.qp.Push()
	}
}
