package portal

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"time"

	"go.uber.org/zap"

	"softiser/internal/congestion"
	"softiser/internal/handover"
)

// A server whose process is to be replaced stops accepting for a moment; the sockets go on
// listening, so that whoever connects waits in their queue, and go to the other process.
// Portals for RoCE have no such queue: they are opened anew.

// Hold stops accepting connections, and waits until those that have been accepted are logged
// in or gone, or ctx is done.
func (s *Server) Hold(ctx context.Context) {
	for _, p := range s.portals {
		p.hold()
	}
	for s.Pending() > 0 && ctx.Err() == nil {
		time.Sleep(time.Millisecond)
	}
}

// Release ends what Hold has begun.
func (s *Server) Release() {
	for _, p := range s.portals {
		p.release()
	}
}

// Listeners returns the sockets that listen, by Config.Listen, as descriptors that are the
// caller's.
func (s *Server) Listeners() (map[string]int, error) {
	all := map[string]int{}
	for _, p := range s.portals {
		if p.ln == nil {
			continue
		}
		fd, err := handover.Dup(p.ln)
		if err != nil {
			for _, fd := range all {
				syscall.Close(fd)
			}
			return nil, fmt.Errorf("target: portal %s: %w", p.cfg.Listen, err)
		}
		all[p.cfg.Listen] = fd
	}
	return all, nil
}

// Inherit makes Listen use a socket that another process has opened for the portal of this
// address. It belongs to the server. Preconditions: Listen has not been called.
func (s *Server) Inherit(listen string, fd int) error {
	for _, p := range s.portals {
		if p.cfg.Listen == listen && !p.cfg.RoCE() && p.inherited == nil {
			p.inherited = os.NewFile(uintptr(fd), listen)
			return nil
		}
	}
	syscall.Close(fd)
	return fmt.Errorf("target: there is no portal %s", listen)
}

// Find returns the portal over TCP that listens at listen, as configured; nil: there is none.
func Find(portals []*Portal, listen string) *Portal {
	for _, p := range portals {
		if p.cfg.Listen == listen && !p.cfg.RoCE() {
			return p
		}
	}
	return nil
}

// TakeOver makes a connection of one that another process has accepted at listen and logged
// in: it has no place among those before login. The descriptor belongs to it where one of the
// portals listens there, also after an error, and *fd becomes -1.
func TakeOver(portals []*Portal, listen string, fd *int, opened time.Time) (*Conn, error) {
	p := Find(portals, listen)
	if p == nil {
		return nil, fmt.Errorf("there is no portal %s", listen)
	}
	own := *fd
	if *fd = -1; own < 0 {
		return nil, errors.New("no descriptor has come with it")
	}
	return p.takeOver(own, opened)
}

// takeOver is TakeOver at this portal.
func (p *Portal) takeOver(fd int, opened time.Time) (*Conn, error) {
	f := os.NewFile(uintptr(fd), p.cfg.Listen)
	defer f.Close()
	nc, err := net.FileConn(f)
	if err != nil {
		return nil, fmt.Errorf("target: portal %s: a connection that was handed over: %w", p.cfg.Listen, err)
	}
	tcp, ok := nc.(*net.TCPConn)
	if !ok {
		nc.Close()
		return nil, fmt.Errorf("target: portal %s: a connection that was handed over is %T", p.cfg.Listen, nc)
	}
	local, here := tcp.LocalAddr().(*net.TCPAddr)
	remote, there := tcp.RemoteAddr().(*net.TCPAddr)
	if !here || !there {
		nc.Close()
		return nil, fmt.Errorf("target: portal %s: a connection that was handed over has ended", p.cfg.Listen)
	}
	keepAlive(tcp)
	return &Conn{
		Net: tcp, Portal: p, Local: local.AddrPort(), Remote: remote.AddrPort(), Opened: opened,
		Log: p.log.With(zap.Stringer("from", remote)),
	}, nil
}

// hold makes accept wait.
func (p *Portal) hold() {
	if p.ln != nil {
		p.pause.Hold(p.ln)
	}
}

func (p *Portal) release() {
	if p.ln != nil {
		p.pause.Release(p.ln)
	}
}

// inherit listens on the socket of another process.
func (p *Portal) inherit() error {
	ln, err := net.FileListener(p.inherited)
	p.inherited.Close()
	if err != nil {
		return fmt.Errorf("target: portal %s: the socket that was handed over: %w", p.cfg.Listen, err)
	}
	tcp, ok := ln.(*net.TCPListener)
	if !ok {
		ln.Close()
		return fmt.Errorf("target: portal %s: what was handed over is not a socket of TCP", p.cfg.Listen)
	}
	if err := p.adopt(tcp); err != nil {
		tcp.Close()
		return fmt.Errorf("target: portal %s: %w", p.cfg.Listen, err)
	}
	p.listens(tcp)
	return nil
}

// adopt gives a socket the options of one of our own: a service manager knows nothing of
// them, and another process may have had other ones.
func (p *Portal) adopt(ln *net.TCPListener) error {
	raw, err := ln.SyscallConn()
	if err != nil {
		return err
	}
	if err := congestion.Listening(p.cfg.CongestionControl)("tcp", p.cfg.Listen, raw); err != nil {
		return err
	}
	var optErr error
	if err := raw.Control(func(fd uintptr) { optErr = p.setOptions(int(fd)) }); err != nil {
		return err
	}
	return optErr
}

// keepAlive sets what package net, which has not made the listening socket, would set
// otherwise.
func keepAlive(c *net.TCPConn) {
	_ = c.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: keepIdle * time.Second, Interval: keepInterval * time.Second, Count: keepCount})
}
