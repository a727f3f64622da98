package nvmetcp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"softiser/internal/list"
	"softiser/internal/nvme"
	"softiser/internal/sockio"
)

// HostConfig is how a host connects. The zero value is good but for Address.
type HostConfig struct {
	Address string // host:port
	Socket  sockio.Options
	Digests Digests // asked for; a controller that does not agree is refused
	// HPDA asks that data of C2HData begins at multiples of (HPDA + 1) * 4 bytes.
	HPDA uint8
	// Secure, when set, makes the established TCP connection secure before the first
	// PDU; it returns the connection to go on with, and has closed nc when it fails.
	Secure func(ctx context.Context, nc net.Conn) (net.Conn, error)
	// Dial connects; nil: net.Dialer.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Linger is how long a connection that ends waits for the controller to close its
	// side. Default two seconds.
	Linger time.Duration
}

// adminInCapsule is how much data a command of the admin queue, and a Fabrics command
// of any queue, may have in its capsule whatever Identify says (NVMe/TCP, in-capsule
// data on the admin queue).
const adminInCapsule = 8 << 10

// maxTransfer is the most data that one command has, bytes: offsets have 32 bits, and
// what is not read at once must not wrap.
const maxTransfer = 1 << 30

// Host is the host's side of one queue's connection; it implements nvme.HostTransport.
type Host struct {
	conn
	cfg       HostConfig
	up        nvme.HostUpper
	inCapsule uint32 // of I/O commands
	maxH2C    uint32 // bytes of data in one H2CData

	// Guarded by mu.
	table nvme.HostTable
	ios   []hostIO
	reads readQueue
	done  *hostIO // answered, and now what they had queued has gone

	// Owned by the receive goroutine.
	io *hostIO // whose data the PDU under way has
}

// hostIO is what the transport keeps of a command.
type hostIO struct {
	h        *Host
	cmd      *nvme.HostCommand
	total    uint32 // bytes of data
	got      uint32 // of a command that returns data: received
	asked    uint32 // of a command that carries data: sent, or asked for
	queued   int    // PDUs in the transmit queue that use its data
	r2ts     int    // of them: ends of R2Ts
	last     bool   // a C2HData with LAST has come
	bad      bool   // a data digest was wrong
	fault    bool   // its memory cannot be written
	answered bool   // waits for queued to become 0

	node list.Node[hostIO] // in reads
	next *hostIO           // in done
}

// HostDialer makes connections; it implements nvme.HostDialer.
type HostDialer struct{ Config HostConfig }

// Dial implements nvme.HostDialer.
func (d *HostDialer) Dial(ctx context.Context, q nvme.HostQueue) (nvme.HostTransport, error) {
	dial := d.Config.Dial
	if dial == nil {
		dial = new(net.Dialer).DialContext
	}
	nc, err := dial(ctx, "tcp", d.Config.Address)
	if err != nil {
		return nil, fmt.Errorf("nvmetcp: %w", err)
	}
	if d.Config.Secure != nil {
		if nc, err = d.Config.Secure(ctx, nc); err != nil {
			return nil, err
		}
	}
	return NewHost(ctx, nc, d.Config, q)
}

// NewHost makes the host's side of an established connection, which belongs to it from
// now on: it says what it wants of it, and waits for the answer.
func NewHost(ctx context.Context, nc net.Conn, cfg HostConfig, q nvme.HostQueue) (*Host, error) {
	fail := func(err error) (*Host, error) {
		_ = nc.Close()
		return nil, err
	}
	slots := max(q.Slots, q.Entries)
	if q.Entries < 1 || slots > nvme.MaxHostEntries {
		return fail(fmt.Errorf("nvmetcp: a queue of %d entries, it has 1 to %d", slots, nvme.MaxHostEntries))
	}
	r, err := initialise(ctx, nc, &cfg)
	if err != nil {
		return fail(fmt.Errorf("nvmetcp: initialising the connection to %v: %w", nc.RemoteAddr(), err))
	}
	h, err := newHost(nc, cfg, slots)
	if err != nil {
		return fail(err)
	}
	h.inCapsule, h.maxH2C = uint32(max(q.InCapsule, 0)), r.MaxH2CData
	if q.ID == 0 {
		h.inCapsule = adminInCapsule
	}
	h.digests, h.align = r.Digests, (int(r.CPDA)+1)*4
	return h, nil
}

// newHost makes the host's side of a connection on which the two have agreed. On error nc is
// the caller's to close.
func newHost(nc net.Conn, cfg HostConfig, slots int) (*Host, error) {
	if cfg.Linger == 0 {
		cfg.Linger = defaultLinger
	}
	h := &Host{cfg: cfg}
	if err := h.init(h, nc, cfg.Socket, cfg.Linger, CHLen, hostReadAhead); err != nil {
		return nil, err
	}
	h.mu.Lock()
	h.toLocked(stateReady)
	h.mu.Unlock()
	h.table = nvme.NewHostTable(slots)
	h.ios = make([]hostIO, slots)
	for i := range h.ios {
		h.ios[i].h = h
	}
	h.rx.Foresee(foresight{h})
	return h, nil
}

// initialise exchanges ICReq and ICResp.
func initialise(ctx context.Context, nc net.Conn, cfg *HostConfig) (ICResp, error) {
	stop := context.AfterFunc(ctx, func() { _ = nc.SetDeadline(time.Unix(1, 0)) })
	b := (&ICReq{HPDA: cfg.HPDA, Digests: cfg.Digests}).AppendTo(nil)
	_, err := nc.Write(b)
	if err == nil {
		err = readICResp(nc, b)
	}
	if !stop() && err != nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			err = errors.New("the other end closed it: does it speak NVMe/TCP there?")
		}
		return ICResp{}, err
	}
	r, f := ParseICResp(b)
	if f != nil {
		return r, f
	}
	if r.Digests != cfg.Digests {
		return r, fmt.Errorf("the controller wants digests: %s, we: %s", r.Digests, cfg.Digests)
	}
	return r, nil
}

// readICResp reads what answers an ICReq, into b, which has the length of an ICResp. Whoever says
// something else is not waited for: it may be shorter.
func readICResp(nc io.Reader, b []byte) error {
	n, err := io.ReadAtLeast(nc, b, 1)
	if err != nil {
		return err
	}
	t := Type(b[0])
	if t != TypeICResp && t != TypeC2HTermReq {
		return fmt.Errorf("the other end does not speak NVMe/TCP: it begins with %q", b[:min(n, strangerBytes)])
	}
	size := len(b)
	if t == TypeC2HTermReq {
		size = TermLen // the rest repeats what we have sent
	}
	if n < size {
		if _, err = io.ReadFull(nc, b[n:size]); err != nil {
			return err
		}
	}
	if t == TypeICResp {
		return nil
	}
	q, err := ParseTermReq(b[:size])
	if err == nil {
		err = fmt.Errorf("the controller does not take it: %s", q.FES)
	}
	return err
}

// strangerBytes is how much is repeated of what no controller would say.
const strangerBytes = 32

// Start implements nvme.HostTransport.
func (h *Host) Start(u nvme.HostUpper) {
	h.up = u
	h.begin()
}

// MaxTransfer implements nvme.HostTransport.
func (h *Host) MaxTransfer() int { return maxTransfer }

// Stats implements nvme.HostTransport.
func (h *Host) Stats() nvme.HostStats {
	s := h.conn.Stats()
	return nvme.HostStats{PDUsIn: s.PDUsIn, PDUsOut: s.PDUsOut, PayloadCopied: s.Copied, ReceiveCalls: s.ReceiveCalls, SendCalls: s.SendCalls}
}

func (h *Host) termReq() Type { return TypeH2CTermReq }

// end implements role. What the socket still has of a connection that is given up must not reach the
// controller behind what the host sends over the next one: the old controller may not know yet that
// its host has gone, and would carry out writes that are repeated, and followed by others, meanwhile.
func (h *Host) end(err error) {
	if err != nil { // neither side has closed it in order
		h.sk.Reset()
	}
	_ = h.sk.Close()
	h.up.Ended(err)
}
