// Package tcpref is the reference below everything: plain TCP in Go, without
// RDMA, as fast as it goes. Ping-pong that waits in the poller or spins, and
// write() of a mapping at a fixed rate.
package tcpref

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"syscall"
	"time"

	"softiser/benchmarks/internal/memory"
	"softiser/internal/congestion"
)

// Options of one test.
type Options struct {
	Op   string // ping, spin, paced
	Size int
	Rate int64 // paced: bytes per second
	// Congestion is the TCP congestion control; the server has its own.
	Congestion string
	Time       time.Duration
}

// Result is what the client prints.
type Result struct {
	Messages int64   `json:"messages"`
	Bytes    int64   `json:"bytes"`
	Seconds  float64 `json:"seconds"`
	P50      float64 `json:"p50_ns"`
	P99      float64 `json:"p99_ns"`
}

const (
	opPing = iota
	opSpin
	opPaced
)

// Serve answers one connection after another. cc is the TCP congestion control,
// as softiser/internal/congestion has it: by default what our own connections
// have. Paced writes walk over region bytes, which are mapped before.
func Serve(ctx context.Context, addr, cc string, region int, ready io.Writer) error {
	mem, err := memory.Map(region) // who can connect finds it
	if err != nil {
		return err
	}
	defer syscall.Munmap(mem)
	l, err := (&net.ListenConfig{Control: congestion.Listening(cc)}).Listen(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { l.Close() })
	defer stop()
	fmt.Fprintln(ready, "listening on", addr)
	for {
		c, err := l.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		if err := serveOne(c.(*net.TCPConn), mem); err != nil && !errors.Is(err, io.EOF) {
			fmt.Fprintln(ready, err)
		}
		c.Close()
	}
}

// serveOne reads what the client wants to have measured, and is the other end of it
// until the client closes.
func serveOne(c *net.TCPConn, mem []byte) error {
	var h [24]byte // op, size, rate
	if _, err := io.ReadFull(c, h[:]); err != nil {
		return err
	}
	size, rate := int(binary.BigEndian.Uint64(h[8:])), int64(binary.BigEndian.Uint64(h[16:]))
	if size < 1 || size > 16<<20 {
		return fmt.Errorf("size %d", size)
	}
	buf := make([]byte, size)
	switch binary.BigEndian.Uint64(h[:]) {
	case opPing:
		for {
			if _, err := io.ReadFull(c, buf); err != nil {
				return err
			}
			if _, err := c.Write(buf); err != nil {
				return err
			}
		}
	case opSpin:
		return spinning(c, func(fd int) error {
			for {
				if err := spinRead(fd, buf); err != nil {
					return err
				}
				if err := spinWrite(fd, buf); err != nil {
					return err
				}
			}
		})
	}
	return paced(c, mem, size, rate)
}

// paced writes the mapping piece by piece at a fixed rate, until the client
// hangs up.
func paced(c *net.TCPConn, mem []byte, size int, rate int64) error {
	began := time.Now()
	at := 0
	for sent := int64(0); ; sent += int64(size) {
		if wait := time.Duration(float64(sent)/float64(rate)*1e9) - time.Since(began); wait > 0 {
			time.Sleep(wait)
		}
		if at+size > len(mem) {
			at = 0
		}
		if _, err := c.Write(mem[at : at+size]); err != nil {
			return io.EOF
		}
		at += size
	}
}

// spinning gives f the connection's descriptor, non-blocking.
func spinning(c *net.TCPConn, f func(fd int) error) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var ferr error
	if err := raw.Control(func(fd uintptr) { ferr = f(int(fd)) }); err != nil {
		return err
	}
	return ferr
}

func spinRead(fd int, p []byte) error {
	for len(p) > 0 {
		n, err := syscall.Read(fd, p)
		if err == syscall.EAGAIN || err == syscall.EINTR {
			continue
		}
		if err != nil {
			return err
		}
		if n == 0 {
			return io.EOF
		}
		p = p[n:]
	}
	return nil
}

func spinWrite(fd int, p []byte) error {
	for len(p) > 0 {
		n, err := syscall.Write(fd, p)
		if err == syscall.EAGAIN || err == syscall.EINTR {
			continue
		}
		if err != nil {
			return err
		}
		p = p[n:]
	}
	return nil
}

// Run performs one test.
func Run(ctx context.Context, addr string, o Options) (*Result, error) {
	d := net.Dialer{Control: congestion.Dialing(o.Congestion)}
	nc, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	defer nc.Close()
	c := nc.(*net.TCPConn)
	op, ok := map[string]uint64{"ping": opPing, "spin": opSpin, "paced": opPaced}[o.Op]
	if !ok {
		return nil, fmt.Errorf("unknown test %q", o.Op)
	}
	h := binary.BigEndian.AppendUint64(nil, op)
	h = binary.BigEndian.AppendUint64(h, uint64(o.Size))
	h = binary.BigEndian.AppendUint64(h, uint64(o.Rate))
	if _, err := c.Write(h); err != nil {
		return nil, err
	}
	if op == opPaced {
		return drain(c, o)
	}
	buf := make([]byte, o.Size)
	trips := make([]int64, 0, 4<<20)
	began := time.Now()
	trip := func() error {
		if _, err := c.Write(buf); err != nil {
			return err
		}
		_, err := io.ReadFull(c, buf)
		return err
	}
	loop := func() error {
		for now := began; now.Sub(began) < o.Time; {
			if err := trip(); err != nil {
				return err
			}
			end := time.Now()
			if len(trips) < cap(trips) {
				trips = append(trips, int64(end.Sub(now)))
			}
			now = end
		}
		return nil
	}
	if op == opSpin {
		err = spinning(c, func(fd int) error {
			trip = func() error { return errors.Join(spinWrite(fd, buf), spinRead(fd, buf)) }
			return loop()
		})
	} else {
		err = loop()
	}
	if err != nil {
		return nil, err
	}
	n := int64(len(trips))
	slices.Sort(trips)
	return &Result{Messages: n, Bytes: n * int64(o.Size), Seconds: time.Since(began).Seconds(),
		P50: float64(trips[n/2]), P99: float64(trips[n*99/100])}, nil
}

// drain reads what the server sends at its pace.
func drain(c *net.TCPConn, o Options) (*Result, error) {
	buf := make([]byte, 1<<20)
	began := time.Now()
	var n int64
	for n < int64(o.Size) || time.Since(began) < o.Time { // a message at least
		k, err := c.Read(buf)
		if err != nil {
			return nil, err
		}
		n += int64(k)
	}
	return &Result{Messages: n / int64(o.Size), Bytes: n, Seconds: time.Since(began).Seconds()}, nil
}
