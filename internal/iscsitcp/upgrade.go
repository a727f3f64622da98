package iscsitcp

import (
	"errors"
	"net"

	"softiser/internal/iscsi"
)

// upgradingLocked reports whether the stream becomes an iSER connection at the
// end of login (RFC 7145 §5.1): nothing more may be read from it here.
func (c *Conn) upgradingLocked() bool {
	return c.cfg.Upgradable && c.enabled && c.params.RDMAExtensions
}

// Detach gives the TCP connection up once everything queued has been sent, so
// that it can go on as RDMA. It is called after Enable has entered the full
// feature phase with RDMAExtensions=Yes, and not from an up-call: it waits until
// the receive goroutine has left the stream, behind the last login PDU and
// nowhere else. No further up-call comes from c.
func (c *Conn) Detach() (net.Conn, error) {
	c.mu.Lock()
	if !c.upgradingLocked() {
		c.mu.Unlock()
		return nil, errors.New("iscsitcp: the stream does not turn into RDMA")
	}
	for (!c.tx.Empty() || c.tx.Busy() || !c.paused) && c.st != iscsi.ConnDead {
		c.cond.Wait()
	}
	if c.st == iscsi.ConnDead {
		err := c.endError()
		c.mu.Unlock()
		return nil, err
	}
	c.detached = true
	c.setState(iscsi.ConnDead)
	c.cond.Broadcast()
	c.tx.Stop()
	c.mu.Unlock()
	<-c.ended
	if err := c.rx.end; err != errDetached {
		return nil, err
	}
	return c.sk.Net(), nil
}
