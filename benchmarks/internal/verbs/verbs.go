// Package verbs drives the rdma package directly: streams of RDMA Write, Read
// and Send with a number of messages outstanding, and ping-pong. Client and
// server are separate processes, so that each one's CPU time is known; the
// server answers what the client's private data asks for.
package verbs

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"sync"
	"syscall"
	"time"

	"softiser/benchmarks/internal/memory"
	"softiser/rdma"
)

// Options of one test, the same on both sides.
type Options struct {
	Op         string        `json:"op"` // write, read, send; ping-send, ping-write
	Size       int           `json:"size"`
	Depth      int           `json:"depth"`
	Region     int           `json:"region"` // bytes walked over; Size: one buffer
	CRC        bool          `json:"crc"`
	GSO        bool          `json:"gso"`
	BusyPoll   time.Duration `json:"busy_poll"` // 0: both ends sleep at once
	AutoPoll   bool          `json:"auto_poll"` // both ends spin while that pays, as connections do by default
	Congestion string        `json:"congestion"`
	Time       time.Duration `json:"time"`
	Provider   rdma.Provider `json:"-"`
}

// question is what the server has to know, in the 56 bytes that a request over RoCE carries.
func (o *Options) question() []byte {
	return fmt.Appendf(nil, "%s %d %d %d %t %t %d %t %s", o.Op, o.Size, o.Depth, o.Region, o.CRC, o.GSO, o.BusyPoll.Microseconds(), o.AutoPoll, cmp.Or(o.Congestion, "auto"))
}

// asked reads a question. Over RoCE zeros follow it.
func asked(b []byte) (o Options, err error) {
	var us int64
	_, err = fmt.Sscan(string(bytes.TrimRight(b, "\x00")), &o.Op, &o.Size, &o.Depth, &o.Region, &o.CRC, &o.GSO, &us, &o.AutoPoll, &o.Congestion)
	o.BusyPoll = time.Duration(us) * time.Microsecond
	return o, err
}

// Result is what the client prints.
type Result struct {
	Messages int64   `json:"messages"`
	Bytes    int64   `json:"bytes"`
	Seconds  float64 `json:"seconds"`
	CPU      float64 `json:"cpu_s"`
	P50      float64 `json:"p50_ns"` // ping-pong: of the whole round trip, not of half of it
	P99      float64 `json:"p99_ns"`
	FPDU     int     `json:"fpdu"`
}

// window tells the client where the server's memory is.
type window struct {
	TO   uint64 `json:"to"`
	STag uint32 `json:"stag"`
}

func (o *Options) params(private []byte) *rdma.ConnParams {
	p := &rdma.ConnParams{PrivateData: private, MPA: rdma.MPAParams{GSO: o.GSO}, BusyPoll: cmp.Or(o.BusyPoll, rdma.BusyPollOff), Congestion: o.Congestion, IRD: 64, ORD: 64, CRC: rdma.CRCOff}
	if o.AutoPoll {
		p.BusyPoll = rdma.BusyPollAuto
	}
	if o.CRC {
		p.CRC = rdma.CRCRequired
	}
	return p
}

// end is what both sides have: one queue pair, one completion queue whose
// handler does all the work.
type end struct {
	dev *rdma.Device
	pd  *rdma.PD
	cq  *rdma.CQ
	qp  *rdma.QP
	mr  *rdma.MR
	mem []byte
}

// newEnd makes a queue pair over p, with mem as its only region.
func newEnd(mem []byte, depth int, p rdma.Provider, handler func(*rdma.CQ)) (e *end, err error) {
	e = &end{mem: mem}
	if e.dev, err = rdma.Open(&rdma.DeviceConfig{Provider: p}); err != nil {
		return nil, err
	}
	if e.pd, err = e.dev.AllocPD(); err != nil {
		return nil, err
	}
	if e.mr, err = e.pd.RegMR(e.mem, rdma.AccessLocalWrite|rdma.AccessRemoteRead|rdma.AccessRemoteWrite); err != nil {
		return nil, err
	}
	if e.cq, err = e.dev.CreateCQ(rdma.CQConfig{Depth: 8 * (depth + 64), Handler: handler}); err != nil {
		return nil, err
	}
	e.qp, err = e.pd.CreateQP(rdma.QPConfig{SendCQ: e.cq, RecvCQ: e.cq, MaxSend: 2*depth + 16, MaxRecv: 2*depth + 16})
	return e, err
}

// buffer is the i-th piece of n bytes, walking over the region.
func (e *end) buffer(i int64, n int) []byte {
	at := int(i % int64(len(e.mem)/n) * int64(n))
	return e.mem[at : at+n]
}

func (e *end) sge(b []byte) rdma.SGE { return rdma.SGE{Mem: b, LKey: e.mr.LKey()} }

// Serve accepts connections on addr, over p, and serves them at the same time; ready
// gets a line when it listens. region is the most that a client may walk over: so much is mapped
// before, for one client after another.
func Serve(ctx context.Context, addr string, p rdma.Provider, region int, ready io.Writer) error {
	mem, err := memory.Map(region) // who can connect finds it
	if err != nil {
		return err
	}
	defer syscall.Munmap(mem)
	dev, err := rdma.Open(&rdma.DeviceConfig{Provider: p})
	if err != nil {
		return err
	}
	defer func() { _ = dev.Close() }()
	l, err := dev.Listen(p.Network(), addr, nil)
	if err != nil {
		return err
	}
	defer l.Close()
	mapped := make(chan []byte, 1) // holds mem while no connection has it
	mapped <- mem
	ctx, cancel := context.WithCancel(ctx)
	var serving sync.WaitGroup
	defer serving.Wait()
	defer cancel()
	fmt.Fprintln(ready, "listening on", addr)
	for {
		req, err := l.Accept(ctx)
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		serving.Go(func() {
			if err := serveOne(ctx, req, p, region, mapped); err != nil {
				fmt.Fprintln(ready, err)
			}
		})
	}
}

// serveOne answers one client until it hangs up, with the memory that is mapped already, or with
// more where another client has that.
func serveOne(ctx context.Context, req *rdma.ConnRequest, p rdma.Provider, region int, mapped chan []byte) error {
	o, err := asked(req.PrivateData())
	n := max(o.Region, o.Size)
	if err == nil && (n < 1 || n > region || o.Depth < 1) {
		err = fmt.Errorf("a test of %d bytes, depth %d", n, o.Depth)
	}
	if err != nil {
		req.Reject(nil)
		return err
	}
	var mem []byte
	select {
	case mem = <-mapped:
		defer func() { mapped <- mem }()
	default:
		if mem, err = memory.Map(n); err != nil {
			req.Reject(nil)
			return err
		}
		defer syscall.Munmap(mem)
	}
	s := &server{o: o}
	if s.end, err = newEnd(mem[:n], o.Depth, p, s.handle); err != nil {
		req.Reject(nil)
		return err
	}
	defer s.end.close()
	for i := range 2 * o.Depth {
		if err := s.recv(uint64(i)); err != nil {
			return err
		}
	}
	answer, err := json.Marshal(window{s.end.mr.Addr(), s.end.mr.RKey()})
	if err != nil {
		return err
	}
	if err := req.Accept(ctx, s.end.qp, o.params(answer)); err != nil {
		return err
	}
	select {
	case <-s.end.qp.Done():
	case <-ctx.Done():
	}
	return nil
}

// server reposts receive buffers, and echoes in ping-pong.
type server struct {
	o   Options
	end *end
	wc  [64]rdma.WC
	sge [1]rdma.SGE
	wr  rdma.SendWR
	seq int64
}

func (s *server) recv(id uint64) error {
	s.sge[0] = s.end.sge(s.end.buffer(int64(id), s.o.Size))
	return s.end.qp.PostRecv(rdma.RecvWR{ID: id, SGL: s.sge[:]})
}

func (s *server) handle(cq *rdma.CQ) {
	push := false
	for n := cq.Poll(s.wc[:]); n > 0; n = cq.Poll(s.wc[:]) {
		for i := range s.wc[:n] {
			w := &s.wc[i]
			if w.Status != rdma.StatusSuccess || w.Opcode != rdma.WCRecv {
				continue
			}
			s.recv(w.ID)
			if s.o.Op == "ping-send" || s.o.Op == "ping-write" {
				s.echo()
				push = true
			}
		}
	}
	if push {
		s.end.qp.Push()
	}
}

// echo answers a ping with a message of the same size.
func (s *server) echo() {
	n := s.o.Size
	if s.o.Op == "ping-write" {
		n = 0 // the payload went by RDMA Write; the client is answered likewise by an empty Send
	}
	s.sge[0] = s.end.sge(s.end.mem[:n])
	s.wr = rdma.SendWR{Op: rdma.OpSend, SGL: s.sge[:]}
	s.seq++
	if s.seq%8 == 0 {
		s.wr.Flags = rdma.FlagSignaled // so that the queue drains
	}
	s.end.qp.Enqueue(&s.wr)
}

func (e *end) close() {
	if e.qp != nil {
		e.qp.Close()
	}
	if e.cq != nil {
		e.cq.Close()
	}
	if e.mr != nil {
		e.mr.Dereg()
	}
	if e.pd != nil {
		e.pd.Dealloc()
	}
	if e.dev != nil {
		e.dev.Close()
	}
}
