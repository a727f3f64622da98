package rdma_test

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"syscall"
	"testing"
	"time"

	"softiser/internal/loopback"
	"softiser/rdma"
	"softiser/rdma/rdmatest"
)

// Ping-pong of Sends, beside the same over a plain net.Conn.
func BenchmarkPingPong(b *testing.B) {
	for _, size := range []int{8, 4096} {
		for _, crc := range []rdma.CRCMode{rdma.CRCOff, rdma.CRCRequired} {
			b.Run(fmt.Sprintf("send/%d/crc-%v", size, crc), func(b *testing.B) { pingPong(b, size, crc, 0) })
		}
		b.Run(fmt.Sprintf("send/%d/busypoll", size), func(b *testing.B) { pingPong(b, size, rdma.CRCOff, 50*time.Microsecond) })
		b.Run(fmt.Sprintf("net.Conn/%d", size), func(b *testing.B) { netPingPong(b, size) })
	}
}

func pingPong(b *testing.B, size int, crc rdma.CRCMode, spin time.Duration) {
	pingPongOver(b, &rdmatest.Options{}, size, crc, spin)
}

// pingPongOver is a ping-pong of Sends over what o says.
func pingPongOver(b *testing.B, o *rdmatest.Options, size int, crc rdma.CRCMode, spin time.Duration) {
	done := make(chan struct{}, 1)
	left := 0
	step := func(e **rdmatest.End, mem []byte, echo bool) func(*rdma.CQ) {
		wcs := make([]rdma.WC, 16)
		return func(cq *rdma.CQ) {
			for n := cq.Poll(wcs); n > 0; n = cq.Poll(wcs) {
				for _, wc := range wcs[:n] {
					if wc.Status != rdma.StatusSuccess || wc.Opcode != rdma.WCRecv {
						continue
					}
					if !echo {
						if left--; left == 0 {
							done <- struct{}{}
							continue
						}
					}
					_ = (*e).QP.PostRecv(rdma.RecvWR{SGL: []rdma.SGE{(*e).SGE(mem[:size])}})
					_ = (*e).QP.PostSend(rdma.SendWR{Op: rdma.OpSend, SGL: []rdma.SGE{(*e).SGE(mem[size:])}})
				}
			}
		}
	}
	var ends [2]*rdmatest.End
	var mem [2][]byte
	for i := range mem {
		mem[i] = make([]byte, 2*size)
	}
	p := rdma.ConnParams{CRC: crc, BusyPoll: cmp.Or(spin, rdma.BusyPollOff)}
	o.Client, o.Server = p, p
	o.Handlers = [2]func(*rdma.CQ){step(&ends[0], mem[0], false), step(&ends[1], mem[1], true)}
	o.Prepare = func(c, s *rdmatest.End) {
		ends = [2]*rdmatest.End{c, s}
		for i, e := range ends {
			e.Recv(b, 0, mem[i][:size])
		}
	}
	rdmatest.NewPair(b, o)
	run := func(n int) {
		left = n
		_ = ends[0].QP.PostSend(rdma.SendWR{Op: rdma.OpSend, SGL: []rdma.SGE{ends[0].SGE(mem[0][size:])}})
		<-done
		ends[0].Recv(b, 0, mem[0][:size])
	}
	run(100)
	b.ReportAllocs()
	b.ResetTimer()
	cpu := cpuTime()
	run(b.N)
	reportCPU(b, cpu)
}

func netPingPong(b *testing.B, size int) {
	c, s := loopback.Pair(b)
	defer c.Close()
	defer s.Close()
	go func() {
		buf := make([]byte, size)
		for {
			if _, err := io.ReadFull(s, buf); err != nil {
				return
			}
			if _, err := s.Write(buf); err != nil {
				return
			}
		}
	}()
	buf := make([]byte, size)
	b.ReportAllocs()
	b.ResetTimer()
	cpu := cpuTime()
	defer func() { reportCPU(b, cpu) }()
	for range b.N {
		if _, err := c.Write(buf); err != nil {
			b.Fatal(err)
		}
		if _, err := io.ReadFull(c, buf); err != nil {
			b.Fatal(err)
		}
	}
}

// Streams of one operation with a queue of work requests outstanding.
func BenchmarkStream(b *testing.B) {
	for _, op := range []rdma.Opcode{rdma.OpWrite, rdma.OpRead, rdma.OpSend} {
		for _, c := range []struct{ size, depth int }{{4096, 32}, {64 << 10, 32}, {1 << 20, 8}} {
			for _, crc := range []rdma.CRCMode{rdma.CRCOff, rdma.CRCRequired} {
				b.Run(fmt.Sprintf("%v/%d/qd%d/crc-%v", op, c.size, c.depth, crc), func(b *testing.B) { stream(b, op, c.size, c.depth, crc) })
			}
		}
	}
}

func stream(b *testing.B, op rdma.Opcode, size, depth int, crc rdma.CRCMode) {
	streamOver(b, &rdmatest.Options{}, op, size, depth, crc)
}

// streamOver is a stream over what o says.
func streamOver(b *testing.B, o *rdmatest.Options, op rdma.Opcode, size, depth int, crc rdma.CRCMode) {
	var ends [2]*rdmatest.End
	src := make([]byte, size)
	remote := make([]byte, size*depth)
	finished := make(chan struct{}, 1)
	posted, ended, total := 0, 0, 0
	var rem rdma.RemoteAddr
	sgl := make([]rdma.SGE, 1)
	post := func(i int) {
		wr := rdma.SendWR{Op: op, Flags: rdma.FlagSignaled, Remote: rem}
		sgl[0] = ends[0].SGE(src)
		wr.SGL = sgl
		wr.Remote.TO += uint64(i % depth * size)
		_ = ends[0].QP.Enqueue(&wr)
	}
	wcs := [2][]rdma.WC{make([]rdma.WC, 64), make([]rdma.WC, 64)}
	client := func(cq *rdma.CQ) {
		for n := cq.Poll(wcs[0]); n > 0; n = cq.Poll(wcs[0]) {
			for _, wc := range wcs[0][:n] {
				if wc.Status != rdma.StatusSuccess {
					return
				}
				if op == rdma.OpSend && wc.Opcode != rdma.WCRecv {
					continue
				}
				if op == rdma.OpSend {
					_ = ends[0].QP.PostRecv(rdma.RecvWR{})
				}
				if ended++; ended == total {
					finished <- struct{}{}
				}
				if posted < total {
					post(posted)
					posted++
				}
			}
		}
		ends[0].QP.Push()
	}
	// For Sends the server gives credit back by an empty Send per message.
	server := func(cq *rdma.CQ) {
		for n := cq.Poll(wcs[1]); n > 0; n = cq.Poll(wcs[1]) {
			for _, wc := range wcs[1][:n] {
				if wc.Status == rdma.StatusSuccess && wc.Opcode == rdma.WCRecv {
					i := int(wc.ID)
					_ = ends[1].QP.PostRecv(rdma.RecvWR{ID: wc.ID, SGL: []rdma.SGE{ends[1].SGE(remote[i*size : (i+1)*size])}})
					_ = ends[1].QP.Enqueue(&rdma.SendWR{Op: rdma.OpSend})
				}
			}
		}
		ends[1].QP.Push()
	}
	o.Client = rdma.ConnParams{CRC: crc, ORD: depth, IRD: depth, Congestion: os.Getenv("CC")}
	o.Server, o.Handlers = o.Client, [2]func(*rdma.CQ){client, server}
	o.Prepare = func(c, s *rdmatest.End) {
		ends = [2]*rdmatest.End{c, s}
		for i := range depth {
			s.Recv(b, uint64(i), remote[i*size:(i+1)*size])
		}
		if op == rdma.OpSend {
			for range depth {
				c.Recv(b, 0, nil)
			}
		}
	}
	rdmatest.NewPair(b, o)
	mr, err := ends[1].PD.RegMR(remote, rdma.AccessLocalWrite|rdma.AccessRemoteRead|rdma.AccessRemoteWrite)
	if err != nil {
		b.Fatal(err)
	}
	defer mr.Dereg()
	rem = rdma.RemoteAddr{TO: mr.Addr(), STag: mr.RKey()}
	run := func(n int) {
		total, ended, posted = n, 0, min(n, depth)
		for i := range posted {
			post(i)
		}
		ends[0].QP.Push()
		<-finished
	}
	b.SetBytes(int64(size))
	b.ReportAllocs()
	b.ResetTimer()
	cpu := cpuTime()
	run(b.N)
	b.StopTimer()
	reportCPU(b, cpu)
	st, rs := ends[0].QP.Stats(), ends[1].QP.Stats()
	b.ReportMetric(float64(st.SendCalls+st.RecvCalls)/float64(b.N), "calls/op")
	b.ReportMetric(float64(rs.SendCalls+rs.RecvCalls)/float64(b.N), "peercalls/op")
}

// What one TCP stream carries with plain writes and reads, to compare with.
func BenchmarkTCPStream(b *testing.B) {
	for _, size := range []int{64 << 10, 1 << 20} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			c, s := loopback.Pair(b)
			defer c.Close()
			defer s.Close()
			done := make(chan struct{})
			go func() {
				defer close(done)
				buf := make([]byte, size)
				for range b.N {
					if _, err := io.ReadFull(s, buf); err != nil {
						return
					}
				}
			}()
			buf := make([]byte, size)
			b.SetBytes(int64(size))
			b.ResetTimer()
			cpu := cpuTime()
			for range b.N {
				if _, err := c.Write(buf); err != nil {
					b.Fatal(err)
				}
			}
			<-done
			reportCPU(b, cpu)
		})
	}
}

// cpuTime is the processor time of the process, both ends together. On a busy
// machine it says more than the clock.
func cpuTime() time.Duration {
	var ru syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &ru)
	return time.Duration(ru.Utime.Nano() + ru.Stime.Nano())
}

func reportCPU(b *testing.B, since time.Duration) {
	b.ReportMetric(float64(cpuTime()-since)/float64(b.N), "cpu-ns/op")
}
