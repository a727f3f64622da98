package portal

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"time"

	"go.uber.org/zap"

	"softiser/rdma"
)

// roceScheme begins the address of a portal for RDMA over UDP.
const roceScheme = "roce://"

// maxRoCEReads bounds the RDMA Reads of a connection over RoCE: what Linux's rxe has, and
// fits the messages of its connection manager.
const maxRoCEReads = 128

// RoCE reports whether the portal is one for RDMA over UDP, and for nothing else.
func (c *Config) RoCE() bool { return strings.HasPrefix(c.Listen, roceScheme) }

// Provider is that of RDMA devices for connections of the portal.
func (c *Config) Provider() rdma.Provider {
	if c.RoCE() {
		return rdma.ProviderRoCE
	}
	return rdma.ProviderIWARP
}

// address is Listen as host:port.
func (c *Config) address() string { return strings.TrimPrefix(c.Listen, roceScheme) }

// fillRoCE completes the address of a portal for RoCE and checks what else is said of it.
func (c *Config) fillRoCE() error {
	a := c.address()
	host, _, err := net.SplitHostPort(a)
	if err != nil { // no port
		host = strings.TrimSuffix(strings.TrimPrefix(a, "["), "]")
		a = net.JoinHostPort(host, DefaultPort)
	}
	c.Listen = roceScheme + a
	ip, err := netip.ParseAddr(host)
	switch {
	case host == "", err == nil && ip.IsUnspecified():
		return fmt.Errorf("target: portal %q: RoCE needs the address of one interface, as its checksum covers the address; make a portal for each", c.Listen)
	case c.Freebind:
		return fmt.Errorf("target: portal %q: RoCE cannot listen on an address that is not there yet (freebind)", c.Listen)
	case c.NoISER && c.NoNVMeRDMA:
		return fmt.Errorf("target: portal %q: over RoCE there are iSER and NVMe/RDMA, and both are switched off", c.Listen)
	}
	c.NoTCP, c.NoNVMeTCP, c.StreamLogin = true, true, false
	return nil
}

// deviceLocked is the RDMA device that listens for all portals of RoCE; the queue pairs are those
// of the front ends. The caller holds s.mu.
func (s *Server) deviceLocked() (*rdma.Device, error) {
	if s.roce != nil {
		return s.roce, nil
	}
	d, err := rdma.Open(&rdma.DeviceConfig{Provider: rdma.ProviderRoCE})
	s.roce = d
	return d, err
}

// closeRoCELocked gives UDP port 4791 back. There are no listeners and connections any
// more. The caller holds s.mu.
func (s *Server) closeRoCELocked() error {
	d := s.roce
	s.roce = nil
	if d == nil {
		return nil
	}
	return d.Close()
}

// listenRoCE takes requests for connections from the connection manager. The caller holds
// srv.mu.
func (p *Portal) listenRoCE() error {
	d, err := p.srv.deviceLocked()
	if err == nil {
		p.roce, err = d.Listen(rdma.ProviderRoCE.Network(), p.cfg.address(), nil)
	}
	switch {
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return fmt.Errorf("target: portal %s: %w; RoCE needs the address of an interface of this machine", p.cfg.Listen, err)
	case err != nil:
		return fmt.Errorf("target: portal %s: %w", p.cfg.Listen, err)
	}
	a := netip.AddrPort(p.roce.Addr().(rdma.RoCEAddr))
	p.addr.Store(&a)
	return nil
}

// RoCEPorts are the ports of RoCE that portals listen on.
func (s *Server) RoCEPorts() []rdma.RoCEPort {
	mine := map[netip.Addr]bool{}
	for _, p := range s.portals {
		if a, ok := p.Bound(); ok && p.cfg.RoCE() {
			mine[a.Addr()] = true
		}
	}
	if len(mine) == 0 {
		return nil
	}
	return slices.DeleteFunc(rdma.RoCEPorts(), func(p rdma.RoCEPort) bool { return !mine[p.Addr] })
}

// acceptRoCE takes requests until the listener is closed.
func (p *Portal) acceptRoCE() {
	for {
		r, err := p.roce.Accept(context.Background())
		if err != nil {
			if !errors.Is(err, rdma.ErrClosed) {
				p.log.Error("no connection over RoCE is accepted any more", zap.Error(err))
			}
			return
		}
		p.place(&Conn{
			Request: r, Portal: p, Opened: time.Now(),
			Local: netip.AddrPort(r.LocalAddr().(rdma.RoCEAddr)), Remote: netip.AddrPort(r.RemoteAddr().(rdma.RoCEAddr)),
		})
	}
}

// look finds out by its private data what a request is for: all of it has come at once.
func (p *Portal) look(c *Conn) (err error) {
	if c.evicted.Load() {
		return errEvicted
	}
	if c.Hello, err = classifyPrivate(c.Request.PrivateData(), RoCE); err == nil && p.cfg.off(c.Hello) {
		err = fmt.Errorf("%v is switched off on this portal", c.Hello)
	}
	return err
}

var errEvicted = errors.New("it has made room for others")
