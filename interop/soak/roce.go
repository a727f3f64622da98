package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"net"
	"net/netip"
	"syscall"
	"time"

	"softiser/internal/nvmerdma"
)

// rocePort is UDP's port of RoCE.
const rocePort = 4791

// roceAttacker is one way to misbehave over RoCE.
type roceAttacker struct {
	name  string
	conns int                            // connections that are made; 0: none
	sent  int                            // times that something is sent on each
	what  func(c *roceConn) (pkt []byte) // a datagram without its ICRC
	stray bool                           // instead of all that: datagrams from anywhere
}

// roceAttackers are let loose at the same time. Those with connections make them as a peer
// does that keeps the rules; after that their packets pass every check of addresses.
var roceAttackers = []roceAttacker{
	{name: "datagrams of any content", stray: true},
	{name: "connections that say nothing", conns: 20},
	{name: "packets of any kind, number, length and key in a connection", conns: 10, sent: 300, what: (*roceConn).anyPacket},
	{name: "messages of noise in a connection", conns: 10, sent: 60, what: (*roceConn).noise},
	{name: "requests that are never followed up by the rest of their packets", conns: 10, sent: 100, what: (*roceConn).unfinished},
	{name: "answers to what was never asked", conns: 10, sent: 200, what: (*roceConn).answer},
	{name: "management datagrams of any kind about a connection", conns: 10, sent: 100, what: (*roceConn).anyMAD},
}

// attack lets it loose once on the portal at an address, from addresses of its own. An error
// is one of the attacker's machine: what the target refuses is its right.
func (a *roceAttacker) attack(ctx context.Context, portal string, seed uint64) error {
	to, err := netip.ParseAddrPort(portal)
	if err != nil {
		return err
	}
	rnd := rand.New(rand.NewPCG(seed, rocePort))
	if a.stray {
		return strayDatagrams(to.Addr(), rnd)
	}
	from, err := newRoCEPeer(roceAddr(), to, rnd)
	if err != nil {
		return err
	}
	defer from.Close()
	for range a.conns {
		c, err := from.connect()
		if errors.Is(err, errRefused) {
			continue
		}
		if err != nil {
			return err
		}
		for range a.sent {
			from.send(a.what(c))
		}
	}
	select {
	case <-ctx.Done():
	case <-time.After(linger):
	}
	return nil
}

// strayDatagrams sends datagrams of any content to RoCE's port of an address, from sockets of
// their own; the first byte is that of a kind of packet which there is.
func strayDatagrams(to netip.Addr, rnd *rand.Rand) error {
	for range 20 {
		c, err := net.Dial("udp", netip.AddrPortFrom(to, rocePort).String())
		if err != nil {
			return err
		}
		for range 50 {
			b := make([]byte, 16+rnd.IntN(1500))
			fill(b, rnd)
			b[0], b[1], b[2], b[3] = byte(rnd.IntN(0x18)), 0x40, 0xff, 0xff
			if rnd.IntN(2) == 0 { // to the queue pair of management
				b[0], b[5], b[6], b[7] = opUDSend, 0, 0, gsi
			}
			_, _ = c.Write(b) // a datagram that does not arrive is no matter
		}
		c.Close()
	}
	return nil
}

func fill(b []byte, rnd *rand.Rand) {
	for i := range b {
		b[i] = byte(rnd.Uint32())
	}
}

// What the attackers have to know of RoCE (IBA vol. 1): opcodes, lengths, and places in a
// datagram of management, which begins with the base header and that of datagrams.
const (
	opSendOnly = 0x04
	opUDSend   = 0x64

	gsi      = 1 // the queue pair of management
	bthLen   = 12
	dethLen  = 8
	madLen   = 256
	madAt    = bthLen + dethLen
	attrAt   = madAt + 16
	dataAt   = madAt + 24
	icrcLen  = 4
	attrREQ  = 0x10
	attrREP  = 0x13
	attrRTU  = 0x14
	attrLast = 0x1a
)

// rocePeer is an address that speaks RoCE by hand.
type rocePeer struct {
	*net.UDPConn
	at  netip.AddrPort // its own
	to  netip.AddrPort // the target's, with rdma_cm's port
	rnd *rand.Rand
}

func newRoCEPeer(at netip.Addr, to netip.AddrPort, rnd *rand.Rand) (*rocePeer, error) {
	// The kernel then gives all packets the identification 0, which their ICRC covers.
	lc := net.ListenConfig{Control: func(_, _ string, rc syscall.RawConn) (err error) {
		cerr := rc.Control(func(fd uintptr) {
			err = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_IP, syscall.IP_MTU_DISCOVER, syscall.IP_PMTUDISC_DO)
		})
		return errors.Join(err, cerr)
	}}
	p := &rocePeer{at: netip.AddrPortFrom(at, rocePort), to: to, rnd: rnd}
	c, err := lc.ListenPacket(context.Background(), "udp4", p.at.String())
	if err != nil {
		return nil, err
	}
	p.UDPConn = c.(*net.UDPConn)
	return p, nil
}

// send seals a datagram and sends it; one that the kernel will not send is no matter.
func (p *rocePeer) send(b []byte) {
	to := netip.AddrPortFrom(p.to.Addr(), rocePort)
	_, _ = p.WriteToUDPAddrPort(seal(b, p.at, to), to)
}

// seal appends the ICRC: of a local route header, which RoCE has not, the headers of IP
// and UDP, and the packet, with what changes on the way as ones.
func seal(b []byte, from, to netip.AddrPort) []byte {
	n := uint16(8 + len(b) + icrcLen)
	h := binary.BigEndian.AppendUint16([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x45, 0xff}, 20+n)
	h = append(h, 0, 0, 0x40, 0, 0xff, 17, 0xff, 0xff)
	src, dst := from.Addr().As4(), to.Addr().As4()
	h = append(append(h, src[:]...), dst[:]...)
	h = binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(h, from.Port()), to.Port())
	h = append(binary.BigEndian.AppendUint16(h, n), 0xff, 0xff)
	h = append(h, b...)
	h[len(h)-len(b)+4] = 0xff // congestion marks
	return binary.LittleEndian.AppendUint32(b, crc32.ChecksumIEEE(h))
}

// bth is a base header, with an answer asked for at random.
func (p *rocePeer) bth(op, pad byte, qpn, psn uint32) []byte {
	b := binary.BigEndian.AppendUint32([]byte{op, pad << 4, 0xff, 0xff}, qpn&(1<<24-1))
	return binary.BigEndian.AppendUint32(b, psn&(1<<24-1)|p.rnd.Uint32()&(1<<31))
}

// mad is a datagram of connection management.
func (p *rocePeer) mad(attr byte, data []byte) []byte {
	b := append(p.bth(opUDSend, 0, gsi, p.rnd.Uint32()), 0x80, 1, 0, 0, 0, 0, 0, gsi)
	b = append(b, 1, 7, 2, 3, 0, 0, 0, 0)
	b = binary.BigEndian.AppendUint64(b, p.rnd.Uint64())
	b = append(b, 0, attr, 0, 0, 0, 0, 0, 0)
	return append(append(b, data...), make([]byte, madAt+madLen-len(b)-len(data))...)
}

// roceConn is a connection of an attacker's to the target.
type roceConn struct {
	*rocePeer
	comm, theirs uint32 // communication IDs
	qpn          uint32 // of the target
	psn          uint32 // that the target expects next, if all was in order so far
}

// errRefused is the end of an attempt that the target has said no to, or has not answered.
var errRefused = errors.New("no connection over RoCE")

// connect makes a connection as an iSER initiator or an NVMe host does.
func (p *rocePeer) connect() (*roceConn, error) {
	c := &roceConn{rocePeer: p, comm: p.rnd.Uint32() | 1, psn: p.rnd.Uint32() & (1<<24 - 1)}
	p.send(c.request())
	if err := p.SetReadDeadline(time.Now().Add(2 * time.Second)); err != nil {
		return nil, err
	}
	buf := make([]byte, 8192)
	for {
		n, err := p.Read(buf)
		var late net.Error
		if errors.As(err, &late) && late.Timeout() {
			return nil, errRefused
		}
		if err != nil {
			return nil, err
		}
		b := buf[:n]
		if n != madAt+madLen+icrcLen || b[0] != opUDSend || binary.BigEndian.Uint32(b[dataAt+4:]) != c.comm {
			continue // of an earlier connection
		}
		if attr := b[attrAt+1]; attr != attrREP {
			return nil, fmt.Errorf("%w: answered with %#x", errRefused, attr)
		}
		c.theirs, c.qpn = binary.BigEndian.Uint32(b[dataAt:]), binary.BigEndian.Uint32(b[dataAt+12:])>>8
		p.send(p.mad(attrRTU, c.ids()))
		return c, nil
	}
}

// ids are the communication IDs that most messages begin with.
func (c *roceConn) ids() []byte {
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, c.comm), c.theirs)
}

// request is a REQ for a reliable connection, with the addresses of rdma_cm.
func (c *roceConn) request() []byte {
	d := make([]byte, madLen-24)
	binary.BigEndian.PutUint32(d, c.comm)
	binary.BigEndian.PutUint64(d[8:], 0x0000000001060000|uint64(c.to.Port()))
	binary.BigEndian.PutUint64(d[16:], c.rnd.Uint64())
	binary.BigEndian.PutUint32(d[32:], (2+c.rnd.Uint32N(1<<24-2))<<8|16) // queue pair, Reads served
	d[39], d[43] = 16, 20<<3
	binary.BigEndian.PutUint32(d[44:], c.psn<<8|20<<3|7)
	d[48], d[49], d[50], d[51] = 0xff, 0xff, 3<<4|7, 15<<4 // path MTU 1024
	src, dst := c.at.Addr().As16(), c.to.Addr().As16()
	path := d[52:]
	path[0], path[1], path[2], path[3] = 0xff, 0xff, 0xff, 0xff
	copy(path[4:], src[:])
	copy(path[20:], dst[:])
	path[41], path[42], path[43] = 64, 8, 19<<3
	private := d[140:]
	private[1] = 0x40
	copy(private[16:], src[12:])
	copy(private[32:], dst[12:])
	if c.rnd.IntN(2) == 0 {
		private[36] = 0x80 // iSER
	} else {
		copy(private[36:], (&nvmerdma.Request{HostRecv: 32, HostSend: 31}).AppendTo(nil))
	}
	return c.mad(attrREQ, d)
}

// number is one near to what the target expects.
func (c *roceConn) number() uint32 { return c.psn + uint32(c.rnd.IntN(9)) - 4 }

// anyPacket is any packet for the connection's queue pair: of any kind that there is or is
// not, longer or shorter than that kind may be.
func (c *roceConn) anyPacket() []byte {
	b := make([]byte, c.rnd.IntN(1200))
	fill(b, c.rnd)
	if c.rnd.IntN(2) == 0 {
		b = b[:len(b)&^3]
	}
	if len(b) >= 16 && c.rnd.IntN(2) == 0 { // a length that may be one
		binary.BigEndian.PutUint32(b[12:], c.rnd.Uint32N(2048))
	}
	op := byte(c.rnd.IntN(0x18))
	if c.rnd.IntN(8) == 0 {
		op = byte(c.rnd.Uint32())
	}
	return append(c.bth(op, byte(c.rnd.IntN(4)), c.qpn, c.number()), b...)
}

// noise is a message that the transport takes, and nobody above it.
func (c *roceConn) noise() []byte {
	b := make([]byte, 4*c.rnd.IntN(256))
	fill(b, c.rnd)
	if len(b) > 0 && c.rnd.IntN(2) == 0 {
		b[0] = 0x10 // of an iSER header for a control PDU
	}
	c.psn++
	return append(c.bth(opSendOnly, 0, c.qpn, c.psn-1), b...)
}

// unfinished is a packet that begins or goes on with what does not end.
func (c *roceConn) unfinished() []byte {
	const sendFirst, sendMiddle, writeFirst, readRequest = 0, 1, 6, 0xc
	op := []byte{sendFirst, sendMiddle, writeFirst, readRequest}[c.rnd.IntN(4)]
	var h []byte
	if op >= writeFirst {
		h = make([]byte, 16)
		fill(h, c.rnd)
		h[12] &= 0x7f
	}
	if op != readRequest {
		h = append(h, make([]byte, 1024)...)
	}
	c.psn++
	return append(c.bth(op, 0, c.qpn, c.psn-1), h...)
}

// answer is an acknowledgement of any kind, or data of a Read.
func (c *roceConn) answer() []byte {
	b := c.bth(0xd+byte(c.rnd.IntN(6)), 0, c.qpn, c.rnd.Uint32())
	rest := make([]byte, 4*c.rnd.IntN(8))
	fill(rest, c.rnd)
	return append(b, rest...)
}

// anyMAD is a message of connection management that names this connection.
func (c *roceConn) anyMAD() []byte {
	d := make([]byte, madLen-24)
	fill(d, c.rnd)
	copy(d, c.ids())
	switch c.rnd.IntN(3) {
	case 0: // the same request again, or one that is nearly the same
		b := c.request()
		b[dataAt+c.rnd.IntN(madLen-24)] ^= 1 << c.rnd.IntN(8)
		return b
	case 1: // as the target would have it from itself
		binary.BigEndian.PutUint32(d, c.theirs)
		binary.BigEndian.PutUint32(d[4:], c.comm)
	}
	return c.mad(attrREQ+byte(c.rnd.IntN(attrLast-attrREQ+1)), d)
}
