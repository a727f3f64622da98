package rdma_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"softiser/rdma"
	"softiser/rdma/internal/mpa"
)

// inProcess is a listener whose connections are pipes, from addresses as a test likes.
type inProcess struct {
	conns chan net.Conn
	ended chan struct{}
}

func (l *inProcess) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.ended:
		return nil, net.ErrClosed
	}
}

func (l *inProcess) Close() error { close(l.ended); return nil }
func (*inProcess) Addr() net.Addr { return &net.TCPAddr{} }

type fromAddr struct {
	net.Conn
	from net.TCPAddr
}

func (c *fromAddr) RemoteAddr() net.Addr { return &c.from }

// arrivals are a listener with room for four connections, on a fake clock.
type arrivals struct {
	t  *testing.T
	on *inProcess
	ln *rdma.Listener
}

func newArrivals(t *testing.T) *arrivals {
	d, err := rdma.Open(nil)
	if err != nil {
		t.Fatal(err)
	}
	l := &inProcess{conns: make(chan net.Conn, 100), ended: make(chan struct{})}
	return &arrivals{t, l, d.ListenOn(l, &rdma.ListenConfig{Backlog: 4})}
}

// from connects.
func (a *arrivals) from(ip string) net.Conn {
	here, there := net.Pipe()
	a.on.conns <- &fromAddr{there, net.TCPAddr{IP: net.ParseIP(ip)}}
	return here
}

// ask has c send its request, named by private data.
func (a *arrivals) ask(c net.Conn, name string) {
	go func() {
		_, _ = c.Write((&mpa.Frame{Rev: 1, Private: []byte(name)}).Append(nil))
		_, _ = io.Copy(io.Discard, c)
	}()
}

// accept is the name of the next request and how long it took to come; "": none within d.
func (a *arrivals) accept(d time.Duration) (name string, took time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	start := time.Now()
	r, err := a.ln.Accept(ctx)
	if err != nil {
		if !errors.Is(err, context.DeadlineExceeded) {
			a.t.Error(err)
		}
		return "", time.Since(start)
	}
	name = string(r.PrivateData())
	go func() { _ = r.Reject(nil) }()
	return name, time.Since(start)
}

// closed reports whether the listener has closed its end.
func (a *arrivals) closed(c net.Conn) bool {
	synctest.Wait()
	_ = c.SetReadDeadline(time.Now())
	_, err := c.Read(make([]byte, 1))
	return errors.Is(err, io.EOF)
}

// Connections that say nothing give way, those of whoever has most of them first, and keep nobody
// out for longer than a moment.
func TestSilentStartups(t *testing.T) {
	const moment = 100 * time.Millisecond
	for name, f := range map[string]func(t *testing.T, a *arrivals){
		"one host that says nothing": func(t *testing.T, a *arrivals) {
			var silent []net.Conn
			for range 4 {
				silent = append(silent, a.from("192.0.2.1"))
			}
			synctest.Wait()
			a.ask(a.from("192.0.2.2"), "other")
			if who, after := a.accept(time.Minute); who != "other" || after != moment {
				t.Errorf("%q after %v", who, after)
			}
			for i, c := range silent {
				if a.closed(c) != (i == 0) {
					t.Errorf("connection %d closed: %v", i, i != 0)
				}
			}
		},
		"a hundred of its connections": func(t *testing.T, a *arrivals) {
			for range 99 {
				a.from("192.0.2.1")
			}
			a.ask(a.from("192.0.2.2"), "other")
			if who, after := a.accept(time.Minute); who != "other" || after > 100/4*moment {
				t.Errorf("%q after %v", who, after)
			}
		},
		"a slow one is not pushed out by a host that has many": func(t *testing.T, a *arrivals) {
			slow := a.from("2001:db8::1")
			for i := range 40 {
				a.from(fmt.Sprintf("2001:db8:1::%x", i)) // one host
			}
			time.Sleep(time.Second) // of the fake clock: all that can give way has
			a.ask(slow, "slow")
			if who, _ := a.accept(time.Minute); who != "slow" {
				t.Errorf("%q", who)
			}
		},
		"where all have as many, the oldest": func(t *testing.T, a *arrivals) {
			var silent []net.Conn
			for i := range 6 {
				silent = append(silent, a.from(fmt.Sprintf("192.0.2.%d", i)))
			}
			time.Sleep(time.Second) // of the fake clock: all that can give way has
			for i, c := range silent {
				if a.closed(c) != (i < 2) {
					t.Errorf("connection %d closed: %v", i, i >= 2)
				}
			}
		},
		"nobody gives way where there is room": func(t *testing.T, a *arrivals) {
			var silent []net.Conn
			for range 3 {
				silent = append(silent, a.from("192.0.2.1"))
			}
			time.Sleep(time.Second) // of the fake clock, less than the 5 s of a start-up
			for i, c := range silent {
				if a.closed(c) {
					t.Errorf("connection %d is closed", i)
				}
			}
		},
		"requests that nobody has accepted hold up who comes, and stay": func(t *testing.T, a *arrivals) {
			for i := range 6 {
				a.ask(a.from("192.0.2.1"), fmt.Sprint(i))
			}
			time.Sleep(time.Minute) // of the fake clock
			for range 6 {
				if who, after := a.accept(time.Minute); who == "" || after != 0 {
					t.Errorf("%q after %v", who, after)
				}
				synctest.Wait()
			}
		},
		"a part of a request is silence": func(t *testing.T, a *arrivals) {
			for range 4 {
				c := a.from("192.0.2.1")
				go func() { _, _ = c.Write([]byte("MPA ID Req Frame\x40")) }()
			}
			synctest.Wait()
			a.ask(a.from("192.0.2.2"), "other")
			if who, after := a.accept(time.Minute); who != "other" || after != moment {
				t.Errorf("%q after %v", who, after)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := newArrivals(t)
				f(t, a)
				_ = a.ln.Close()
				for { // what was never accepted
					select {
					case c := <-a.on.conns:
						_ = c.Close()
						continue
					default:
					}
					break
				}
			})
		})
	}
}
