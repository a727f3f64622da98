package portal

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"go.uber.org/zap"

	"softiser/internal/congestion"
	"softiser/internal/handover"
	"softiser/internal/sockio"
	"softiser/rdma"
	"softiser/target/internal/loglimit"
)

// Portal is one listening address.
type Portal struct {
	srv *Server
	cfg Config
	log *zap.Logger

	ln   *net.TCPListener
	roce *rdma.Listener                 // instead of ln
	addr atomic.Pointer[netip.AddrPort] // while it listens

	certificates atomic.Pointer[Certificates]

	inherited *os.File       // the socket of another process, see Server.Inherit
	pause     handover.Pause // of accept

	accepted, garbage, silent, evicted, turned atomic.Uint64
	badLine, acceptLine                        loglimit.Limit
}

func newPortal(srv *Server, cfg Config) *Portal {
	p := &Portal{
		srv: srv, cfg: cfg, log: srv.log.With(zap.String("portal", cfg.Listen)),
		badLine: loglimit.Limit{Every: time.Second}, acceptLine: loglimit.Limit{Every: time.Second},
	}
	p.certificates.Store(cfg.Certificates)
	return p
}

// Config returns what the portal was made of, defaults filled in. It is not changed.
func (p *Portal) Config() *Config { return &p.cfg }

// Bound returns the address that the portal listens on, if it does.
func (p *Portal) Bound() (netip.AddrPort, bool) {
	a := p.addr.Load()
	if a == nil {
		return netip.AddrPort{}, false
	}
	return *a, true
}

// soBusyPoll is SO_BUSY_POLL, microseconds (socket(7)); the syscall package does
// not name it.
const soBusyPoll = 46

// TCP keepalive finds peers whose host is gone where nothing else may probe them: iSER
// sessions before their first command, and every session where pings are switched off. It
// takes at most keepIdle + keepCount * keepInterval; all in seconds, but for the count.
const (
	keepIdle     = 60
	keepInterval = 15
	keepCount    = 4
)

// listen opens the socket. Options set here are inherited by what it accepts.
func (p *Portal) listen() error {
	if p.cfg.RoCE() {
		return p.listenRoCE()
	}
	if p.inherited != nil {
		return p.inherit()
	}
	var optErr error
	lc := net.ListenConfig{KeepAlive: -1, Control: func(network, addr string, rc syscall.RawConn) error {
		if optErr = congestion.Listening(p.cfg.CongestionControl)(network, addr, rc); optErr != nil {
			return nil
		}
		return rc.Control(func(fd uintptr) { optErr = p.setOptions(int(fd)) })
	}}
	lc.SetMultipathTCP(false) // whose subflows come and go by other addresses, and whose sockets know fewer options
	ln, err := lc.Listen(context.Background(), "tcp", p.cfg.Listen)
	if err == nil && optErr != nil {
		ln.Close()
		err = optErr
	}
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return fmt.Errorf("target: portal %s: %w; stop what listens there or choose another address", p.cfg.Listen, err)
	case errors.Is(err, syscall.EACCES):
		return fmt.Errorf("target: portal %s: %w; ports below 1024 need root or CAP_NET_BIND_SERVICE", p.cfg.Listen, err)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return fmt.Errorf("target: portal %s: %w; no interface of this machine has the address (ip address); freebind: true listens before it has come", p.cfg.Listen, err)
	case err != nil:
		return fmt.Errorf("target: portal %s: %w", p.cfg.Listen, err)
	}
	p.listens(ln.(*net.TCPListener))
	return nil
}

// listens notes the socket.
func (p *Portal) listens(ln *net.TCPListener) {
	p.ln = ln
	a := ln.Addr().(*net.TCPAddr).AddrPort()
	p.addr.Store(&a)
}

// setOptions sets what connections inherit from their listening socket.
func (p *Portal) setOptions(fd int) error {
	for _, o := range []struct {
		name string
		opt  int
		v    int
	}{{"SO_SNDBUF", syscall.SO_SNDBUF, p.cfg.SendBuffer}, {"SO_RCVBUF", syscall.SO_RCVBUF, p.cfg.RecvBuffer}} {
		if o.v > 0 {
			if err := syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, o.opt, o.v); err != nil {
				return fmt.Errorf("%s %d: %w", o.name, o.v, err)
			}
		}
	}
	if p.cfg.Freebind { // for sockets of IPv6, too
		if err := syscall.SetsockoptInt(fd, syscall.IPPROTO_IP, syscall.IP_FREEBIND, 1); err != nil {
			return fmt.Errorf("IP_FREEBIND: %w", err)
		}
	}
	for _, o := range []struct{ level, opt, v int }{
		{syscall.SOL_SOCKET, syscall.SO_KEEPALIVE, 1}, {syscall.IPPROTO_TCP, syscall.TCP_KEEPIDLE, keepIdle},
		{syscall.IPPROTO_TCP, syscall.TCP_KEEPINTVL, keepInterval}, {syscall.IPPROTO_TCP, syscall.TCP_KEEPCNT, keepCount},
	} {
		if err := syscall.SetsockoptInt(fd, o.level, o.opt, o.v); err != nil {
			return fmt.Errorf("TCP keepalive: %w", err)
		}
	}
	if us := p.cfg.BusyPoll.Microseconds(); us > 0 {
		// Needs CAP_NET_ADMIN to go up; without it the user-space spin remains.
		_ = syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, soBusyPoll, int(us))
	}
	return nil
}

// close stops listening.
func (p *Portal) close() {
	switch {
	case p.addr.Swap(nil) == nil:
	case p.roce != nil:
		p.roce.Close()
	default:
		p.ln.Close()
		p.release()
	}
}

// accept takes connections until the listener is closed.
func (p *Portal) accept() {
	if p.roce != nil {
		p.acceptRoCE()
		return
	}
	var spare spareDescriptor
	defer spare.free()
	delay := time.Duration(0)
	for {
		for spare.take(); !spare.held() && !p.asked(); spare.take() {
			// The evicted connection may not have closed its descriptor yet. Without a spare
			// one no connection can be turned away, so this loop does not block in accept.
		}
		c, err := p.ln.AcceptTCP()
		if noDescriptor(err) {
			p.acceptLine.Warn(p.log, "no file descriptor is left for a connection", zap.Error(err))
			c, err = p.acceptWith(&spare)
		}
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil && p.pause.Wait():
			continue
		case err != nil:
			// Out of memory, or worse. Established sessions go on; new ones are accepted again later.
			delay = min(max(2*delay, 5*time.Millisecond), time.Second)
			p.acceptLine.Warn(p.log, "accept failed; trying again", zap.Error(err), zap.Duration("in", delay))
			time.Sleep(delay)
			continue
		}
		delay = 0
		if c != nil {
			if p.inherited != nil {
				keepAlive(c)
			}
			p.receive(c)
		}
	}
}

func noDescriptor(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE)
}

// acceptWith accepts a connection, if one comes before long, by freeing the spare descriptor.
// A connection that has not sent a Login Request is evicted for it; if there is none, the new
// connection is turned away and acceptWith returns nil. Linux reports EMFILE before it looks
// for a connection, so the spare descriptor is kept until a connection is there: freed
// earlier, it would go to somebody else in the process.
func (p *Portal) acceptWith(spare *spareDescriptor) (*net.TCPConn, error) {
	if !p.asked() {
		return nil, nil
	}
	c, err := p.ln.AcceptTCP()
	if !noDescriptor(err) {
		return c, err // descriptors are free again
	}
	if !spare.held() {
		// The last evicted connection closed its descriptor only when its reader had ended,
		// and something else has taken it since. Evict another one for the next accept.
		if victim := p.srv.pending.giveWay(); victim != nil {
			victim.evict()
		}
		return nil, err
	}
	spare.free()
	if c, err = p.ln.AcceptTCP(); err != nil {
		return nil, err
	}
	if victim := p.srv.pending.giveWay(); victim != nil {
		victim.evict()
		return c, nil
	}
	p.accepted.Add(1)
	p.turned.Add(1)
	turnAway(c)
	return nil, nil
}

// asked waits for a moment and reports whether accept has something to say: there is a
// connection, or the listener is closed.
func (p *Portal) asked() bool {
	rc, err := p.ln.SyscallConn()
	if err != nil {
		return true
	}
	ready, err := sockio.Readable(rc, 100*time.Millisecond)
	return ready || err != nil
}

// receive takes a connection over TCP.
func (p *Portal) receive(nc *net.TCPConn) {
	p.place(&Conn{Net: nc, Portal: p, Opened: time.Now(), Remote: nc.RemoteAddr().(*net.TCPAddr).AddrPort()})
}

// place gives a connection its place among those that wait for login.
func (p *Portal) place(c *Conn) {
	p.accepted.Add(1)
	var victim *Place
	if c.Place, victim = p.srv.pending.add(c.Remote.Addr(), c.evict); c.Place == nil {
		// Nothing has been spent on it yet but the look at its address.
		p.turned.Add(1)
		p.badLine.Warn(p.log, "connection turned away: too many from its address wait for login",
			zap.Stringer("from", c.Remote), zap.Uint64("turned_away", p.turned.Load()))
		c.turnAway()
		return
	}
	p.srv.wg.Add(1)
	go func() {
		defer p.srv.wg.Done()
		if victim != nil {
			victim.evict()
			p.badLine.Warn(p.log, "too many connections wait for login; the oldest of an address that has many is closed",
				zap.Int("waiting", p.srv.pending.len()))
		}
		p.begin(c)
	}()
}

// begin finds out what a new connection speaks and gives it to the front end for that.
// It runs on a goroutine of its own, which ends when the front end has taken over.
func (p *Portal) begin(c *Conn) {
	c.Log = p.log.With(zap.Stringer("from", c.Remote))
	var err error
	if c.Request != nil {
		err = p.look(c)
	} else {
		c.Local = c.Net.LocalAddr().(*net.TCPAddr).AddrPort()
		if err = congestion.Accepted(p.cfg.CongestionControl, c.Net); err == nil {
			err = p.sniff(c)
		}
	}
	if err == nil {
		err = p.srv.accept(c)
	}
	if err == nil {
		return
	}
	c.Place.Done()
	if c.Request != nil {
		_ = c.Request.Reject(nil) // an error if the front end has answered already
	} else {
		if errors.Is(err, errPrivate) {
			p.reject(c)
		}
		c.Net.Close()
	}
	p.refused(c.Log, err)
}

// reject answers an MPA Request that has arrived in full, so that the peer learns that it was
// rejected (RFC 5044 §7.1), instead of seeing the connection close.
func (p *Portal) reject(c *Conn) {
	r, err := rdma.Server(context.Background(), c.Net, nil)
	if err == nil {
		_ = r.Reject(nil)
	}
}

// sniff waits for the first bytes within the configured time.
func (p *Portal) sniff(c *Conn) (err error) {
	if t := p.srv.cfg.FirstBytes; t > 0 {
		c.Deadline = c.Opened.Add(t)
		if err := c.Net.SetReadDeadline(c.Deadline); err != nil {
			return err
		}
	}
	t := p.Certificates()
	if c.Hello, err = sniff(c.Net, t != nil); err != nil {
		return err
	}
	switch {
	case p.cfg.off(c.Hello):
		return fmt.Errorf("%v is switched off on this portal", c.Hello)
	case t != nil && t.Required && !c.encrypted():
		return fmt.Errorf("%v is not encrypted, and this portal requires TLS", c.Hello)
	}
	return c.Net.SetReadDeadline(time.Time{})
}

// refused counts and tells of a connection that did not get as far as a login.
func (p *Portal) refused(log *zap.Logger, err error) {
	var ne net.Error
	if errors.Is(err, io.EOF) {
		// What port scanners and health checks do.
		p.silent.Add(1)
		log.Debug("connection closed by the peer before it sent anything recognisable")
		return
	}
	switch {
	case errors.As(err, &ne) && ne.Timeout():
		p.silent.Add(1)
		err = errors.New("nothing recognisable was sent in time")
	case errors.Is(err, errUnknown), errors.Is(err, errPrivate):
		p.garbage.Add(1)
	default:
		p.silent.Add(1)
	}
	p.badLine.Warn(log, "connection closed before login", zap.NamedError("reason", err),
		zap.Uint64("garbage", p.garbage.Load()), zap.Uint64("silent", p.silent.Load()))
}
