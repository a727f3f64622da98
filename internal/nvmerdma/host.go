package nvmerdma

import (
	"cmp"
	"context"
	"fmt"
	"net"

	"softiser/internal/congestion"
	"softiser/internal/nvme"
	"softiser/internal/rdmamsg"
	"softiser/internal/segs"
	"softiser/rdma"
)

// HostConfig is how a host connects.
type HostConfig struct {
	Address string // host:port; over RoCE the port is one of rdma_cm
	Device  *Device
	RoCE    bool // over RoCE, of which Device is; Dial is not used then
	// RDMA holds CRC, FPDU size, timeouts and socket options. PrivateData is set by this
	// package; IRD defaults to 128. It is the controller that reads.
	RDMA rdma.ConnParams
	// Dial connects; nil: net.Dialer.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

// params are those of a host's connection. What the socket still has of one that is given up must not
// reach the controller behind what the host sends over the next one: the old controller may not know yet
// that its host has gone, and would carry out writes that are repeated, and followed by others, meanwhile.
func (cfg *HostConfig) params() rdma.ConnParams {
	p := cfg.RDMA
	p.MPA.Abortive = true
	return p
}

// Host is the host's side of one queue's connection; it implements nvme.HostTransport.
type Host struct {
	conn
	up        nvme.HostUpper
	inCapsule int // of I/O commands

	// Guarded by mu.
	table nvme.HostTable
	ios   []hostIO // by slot
}

// hostIO is what the transport keeps of a command.
type hostIO struct {
	w    *rdma.Window // over its data; nil: the controller needs none
	stag uint32       // of w
	size uint32       // bytes of data
}

// HostDialer makes connections; it implements nvme.HostDialer.
type HostDialer struct{ Config HostConfig }

// Dial implements nvme.HostDialer. The error is a *RejectError when the controller
// refuses the queue.
func (d *HostDialer) Dial(ctx context.Context, q nvme.HostQueue) (nvme.HostTransport, error) {
	if d.Config.RoCE {
		return NewHost(ctx, nil, d.Config, q)
	}
	dial := d.Config.Dial
	if dial == nil {
		dial = (&net.Dialer{Control: congestion.Dialing(d.Config.RDMA.Congestion)}).DialContext
	}
	nc, err := dial(ctx, "tcp", d.Config.Address)
	if err != nil {
		return nil, fmt.Errorf("nvmerdma: %w", err)
	}
	return NewHost(ctx, nc, d.Config, q)
}

// NewHost makes the host's side of an open TCP connection, which belongs to it from now
// on: it asks for a queue, and waits for the answer. Over RoCE nc is nil.
func NewHost(ctx context.Context, nc net.Conn, cfg HostConfig, q nvme.HostQueue) (*Host, error) {
	slots := max(q.Slots, q.Entries)
	if q.Entries < 2 || slots > nvme.MaxHostEntries {
		closeTCP(nc)
		return nil, fmt.Errorf("nvmerdma: a queue of %d entries, it has 2 to %d", slots, nvme.MaxHostEntries)
	}
	h, err := unconnected(cfg.Device, slots)
	if err != nil {
		closeTCP(nc)
		return nil, err
	}
	if q.ID != 0 { // Linux' target has no room for data on the admin queue
		h.inCapsule = min(max(q.InCapsule, 0), InCapsule)
	}
	p := cfg.params()
	p.IRD, p.ORD = cmp.Or(p.IRD, 128), -1
	req := Request{QID: q.ID, HostRecv: uint16(q.Entries), HostSend: uint16(q.Entries - 1)}
	if q.ID != 0 {
		req.CntlID = q.CntlID
	}
	p.PrivateData = req.AppendTo(nil)
	var info *rdma.ConnInfo
	if cfg.RoCE {
		info, err = rdmamsg.DialRoCE(ctx, cfg.Address, h.qp, &p)
	} else {
		info, err = rdma.Client(ctx, nc, h.qp, &p)
	}
	if err != nil {
		h.discard()
		return nil, fmt.Errorf("nvmerdma: connecting to %s: %w", cfg.Address, rejected(err))
	}
	h.connected()
	if _, err := parseAccept(info.PrivateData); err != nil {
		h.Terminate(err)
		<-h.Ended()
		return nil, err
	}
	return h, nil
}

// unconnected makes a host's connection with slots for commands; its queue pair is not connected
// yet.
func unconnected(d *Device, slots int) (*Host, error) {
	h := &Host{table: nvme.NewHostTable(slots), ios: make([]hostIO, slots)}
	if err := h.init(d, h, (*hostOwner)(h)); err != nil {
		return nil, err
	}
	return h, nil
}

func closeTCP(nc net.Conn) {
	if nc != nil {
		_ = nc.Close()
	}
}

// Start implements nvme.HostTransport.
func (h *Host) Start(u nvme.HostUpper) {
	h.mu.Lock()
	h.up = u
	late, why := h.untold, h.cause
	h.mu.Unlock()
	if late {
		go u.Ended(why) // not here: the caller is not ready for up-calls yet
		return
	}
	h.begin()
}

// MaxTransfer implements nvme.HostTransport.
func (h *Host) MaxTransfer() int { return nvme.MaxKeyedLength &^ 4095 }

// Stats implements nvme.HostTransport.
func (h *Host) Stats() nvme.HostStats {
	s := h.conn.Stats()
	return nvme.HostStats{PDUsIn: s.CapsulesIn, PDUsOut: s.CapsulesOut, PayloadCopied: s.Copied, ReceiveCalls: s.ReceiveCalls, SendCalls: s.SendCalls}
}

// Submit implements nvme.HostTransport.
func (h *Host) Submit(c *nvme.HostCommand) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.st != stateReady || h.cause != nil {
		return
	}
	if err := h.table.Add(c); err != nil {
		h.failLocked(err)
		return
	}
	inside, err := h.describeLocked(c)
	if err != nil {
		h.failLocked(fmt.Errorf("nvmerdma: %w", err))
		return
	}
	m := h.pump.Message(nvme.SQELen + inside)
	m.Buf = append(m.Buf, c.SQE[:]...)
	if inside > 0 {
		for _, s := range c.Data {
			m.Buf = append(m.Buf, s...)
		}
		h.stats.copied.Add(uint64(inside))
	}
	h.stats.capsulesOut.Add(1)
	h.pump.Send(m)
}

// describeLocked sets the data pointer of a command: it says where the data is, which
// the controller may reach until the command is answered. It returns how many bytes go
// in the capsule instead.
func (h *Host) describeLocked(c *nvme.HostCommand) (inside int, err error) {
	io, n := &h.ios[c.Slot], segs.Total(c.Data)
	*io = hostIO{size: uint32(n)}
	d := c.SQE.SGL()
	switch {
	case n > nvme.MaxKeyedLength:
		return 0, fmt.Errorf("a command with %d bytes of data; a descriptor has room for %d", n, nvme.MaxKeyedLength)
	case n == 0 || !c.FromHost() && !c.ToHost():
		d.SetKeyed(nvme.SGLKeyed, 0, 0, 0)
		return 0, nil
	case c.FromHost() && n <= h.inCapsule:
		d.SetBlock(nvme.SGLInCapsule, 0, uint32(n))
		return n, nil
	}
	a := rdma.AccessRemoteRead
	if c.ToHost() {
		a = rdma.AccessRemoteWrite | rdma.AccessLocalWrite | rdma.AccessScratch
	} else {
		h.stats.payloadOut.Add(uint64(n))
	}
	var base uint64
	if io.w, io.stag, base, err = h.windows.Open(c.Data, 0, a); err != nil {
		io.w = nil
		return 0, err
	}
	d.SetKeyed(nvme.SGLKeyedInvalidate, base, uint32(n), io.stag)
	return 0, nil
}

// received implements role: a message is a response.
func (h *Host) received(wc *rdma.WC) {
	b := h.link.Received(wc)
	var c *nvme.HostCommand
	if wc.Status == rdma.StatusSuccess {
		h.mu.Lock()
		var err error
		if c, err = h.answeredLocked(b.Msg(wc.ByteLen), wc); err != nil {
			h.breachLocked(err)
		}
		h.mu.Unlock()
	}
	b.Free()
	if c != nil {
		h.up.Completed(c)
	}
}

// answeredLocked ends the command that a response answers. nil without an error: it is
// not wanted any more.
func (h *Host) answeredLocked(msg []byte, wc *rdma.WC) (*nvme.HostCommand, error) {
	if h.st == stateDead || h.cause != nil || h.up == nil {
		return nil, nil
	}
	e, err := parseResponse(msg)
	if err != nil {
		return nil, err
	}
	c := h.table.Find(e.CID())
	if c == nil {
		return nil, fmt.Errorf("nvmerdma: a response to command %#04x, which is not outstanding", e.CID())
	}
	io := &h.ios[c.Slot]
	if wc.Flags&rdma.WCWithInv != 0 && (io.w == nil || wc.InvSTag != io.stag) {
		return nil, fmt.Errorf("nvmerdma: the response to command %#04x invalidates STag %#08x, which is not the command's", e.CID(), wc.InvSTag)
	}
	h.table.Remove(c)
	c.CQE, c.Err, c.Received = *e, nil, 0
	if io.w != nil && !h.windows.Close(io.w) {
		c.Err = nvme.ErrMemoryFault
	}
	io.w = nil
	if c.ToHost() && e.Status().OK() {
		c.Received = io.size // what has come is not counted by RDMA
		h.stats.payloadIn.Add(uint64(io.size))
	}
	h.stats.capsulesIn.Add(1)
	return c, nil
}

// parseResponse takes a response capsule apart. What it returns lies in b.
func parseResponse(b []byte) (*nvme.CQE, error) {
	if len(b) != nvme.CQELen {
		return nil, fmt.Errorf("nvmerdma: a response of %d bytes, it has %d", len(b), nvme.CQELen)
	}
	return (*nvme.CQE)(b), nil
}

func (h *Host) batchEnd() {
	if h.up != nil {
		h.up.BatchEnd()
	}
}

// Push implements nvme.HostTransport.
func (h *Host) Push() { h.push(nil, nil) }

// push implements role.
func (h *Host) push(cq *rdma.CQ, wcs []rdma.WC) (more bool) {
	h.mu.Lock()
	if cq != nil {
		more = h.pump.Reap(cq, wcs)
	}
	h.pumpLocked()
	h.mu.Unlock()
	h.qp.Push()
	return more
}

// end implements role: no memory of a command is reached any more when it is told.
func (h *Host) end(err error) {
	h.discard()
	h.mu.Lock()
	u := h.up
	h.untold = u == nil
	h.mu.Unlock()
	if u != nil {
		u.Ended(err)
	}
}

// hostOwner is Host for its pump, which sends and no more.
type hostOwner Host

// Moved implements rdmamsg.Owner.
func (o *hostOwner) Moved(any, error) {}

// Sent implements rdmamsg.Owner.
func (o *hostOwner) Sent(int) {}

// Fail implements rdmamsg.Owner.
func (o *hostOwner) Fail(err error) { (*Host)(o).failLocked(fmt.Errorf("nvmerdma: %w", err)) }
