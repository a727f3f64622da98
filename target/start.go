package target

import (
	"errors"
	"net"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"softiser/internal/iscsi"
	"softiser/internal/iscsitcp"
)

// start gives a connection whose transport is known to its datamover.
func (p *portal) start(nc *net.TCPConn, kind transport, opened time.Time, place *pendingConn, evict *atomic.Pointer[conn], log *zap.Logger) error {
	c := &conn{
		srv:    p.srv,
		portal: p,
		kind:   kind,
		local:  nc.LocalAddr().(*net.TCPAddr).AddrPort(),
		remote: nc.RemoteAddr().(*net.TCPAddr).AddrPort(),
		opened: opened,
		log:    log,
		place:  place,
		ended:  make(chan struct{}),
	}
	var err error
	if c.dm, err = p.datamover(nc, kind); err != nil {
		return err
	}
	c.startLogin()
	if !p.srv.addConn(c) {
		c.timer.Stop()
		c.dm.Terminate(errShutdown)
		return errShutdown
	}
	evict.Store(c)
	c.dm.Start(c)
	return nil
}

// datamover makes the transport of a connection. The connection belongs to it
// when there is no error.
func (p *portal) datamover(nc *net.TCPConn, kind transport) (iscsi.Datamover, error) {
	if kind == transportISER {
		return p.iser(nc)
	}
	return iscsitcp.New(nc, iscsi.RoleTarget, iscsitcp.Config{})
}

func (p *portal) iser(nc *net.TCPConn) (iscsi.Datamover, error) {
	return nil, errors.New("RDMA is not there yet")
}
