package main

import (
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"time"

	"softiser/internal/iscsi"
)

// peer is an initiator, or a host, that keeps no rule it does not want to keep. It speaks
// iSCSI or NVMe over TCP without digests, byte by byte where that is the attack.
type peer struct {
	quit <-chan struct{} // closed: nobody needs it any more
	addr string
	rnd  *rand.Rand
	name string
	isid iscsi.ISID
	itt  uint32
}

func newPeer(quit <-chan struct{}, addr string, seed uint64) *peer {
	p := &peer{quit: quit, addr: addr, rnd: rand.New(rand.NewPCG(seed, 2)), name: fmt.Sprintf("iqn.2026-11.soak:hostile%d", seed%8)}
	p.isid = iscsi.ISID{0x80}
	binary.BigEndian.PutUint32(p.isid[2:], p.rnd.Uint32())
	return p
}

// dial connects from another address of the loopback than honest initiators have: what
// is shared out by address is the attackers' to use up only as far as their own share.
func (p *peer) dial() (net.Conn, error) {
	from := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}
	c, err := from.Dial("tcp", p.addr)
	if err == nil {
		_ = c.SetDeadline(time.Now().Add(patience))
	}
	return c, err
}

// frame puts a PDU together.
func frame(b *iscsi.BHS, data []byte) []byte {
	b.SetDataLen(len(data))
	return append(append(append([]byte(nil), b[:]...), data...), make([]byte, iscsi.PadLen(len(data)))...)
}

func (p *peer) tag() uint32 { p.itt++; return p.itt }

func (p *peer) loginRequest(kind string) []byte {
	var b iscsi.BHS
	l := b.NewLoginRequest()
	l.SetStages(true, false, iscsi.StageOperational, iscsi.StageFullFeature)
	l.SetISID(p.isid)
	l.SetITT(p.tag())
	l.SetCmdSN(1)
	keys := "InitiatorName=" + p.name + "\x00SessionType=" + kind + "\x00ErrorRecoveryLevel=0\x00InitialR2T=Yes\x00ImmediateData=Yes\x00MaxRecvDataSegmentLength=65536\x00"
	if kind == "Normal" {
		keys += "TargetName=" + iqn + "\x00"
	}
	return frame(&b, []byte(keys))
}

// login opens a session of a kind on a new connection.
func (p *peer) login(kind string) (net.Conn, error) {
	c, err := p.dial()
	if err != nil {
		return nil, err
	}
	if _, err = c.Write(p.loginRequest(kind)); err == nil {
		var b iscsi.BHS
		if b, _, err = receive(c); err == nil && b.LoginResponse().Status() != iscsi.LoginSuccess {
			err = fmt.Errorf("login refused: %04x", uint16(b.LoginResponse().Status()))
		}
	}
	if err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

func receive(c net.Conn) (b iscsi.BHS, data []byte, err error) {
	if _, err = io.ReadFull(c, b[:]); err != nil {
		return b, nil, err
	}
	data = make([]byte, b.DataLen()+iscsi.PadLen(b.DataLen()))
	_, err = io.ReadFull(c, data)
	return b, data, err
}

// stay keeps what is held for a while.
func (p *peer) stay() {
	select {
	case <-p.quit:
	case <-time.After(linger):
	}
}

// assault is the shape that all attacks have: connections, perhaps with sessions, on each
// of which something is sent. Then each is closed before the next one comes, or all are
// kept for a while.
type assault struct {
	conns   int
	session string // its type; "": nobody logs in
	name    string // of the initiator; "": the peer's own
	sent    int    // times that something is sent on each connection
	what    func(p *peer, i uint32) []byte
	answers answers
	stays   bool
}

// answers is what becomes of what the target sends.
type answers uint8

const (
	ignored answers = iota // nobody reads them; then the target may stop reading as well
	dropped                // read, and thrown away
	awaited                // one is waited for, after everything has been sent
)

// attack ends by itself; what it returns is why the target did not let it go on.
func (p *peer) attack(a *assault) (refused error) {
	if a.name != "" {
		p.name = a.name
	}
	for range a.conns {
		c, err := p.open(a.session)
		if err != nil {
			return err
		}
		if a.stays {
			defer c.Close()
		}
		if err := p.sendAll(c, a); err != nil {
			refused = err // the next connection may get further
		}
		if !a.stays {
			c.Close()
		}
	}
	if a.stays {
		p.stay()
	}
	return refused
}

// open makes a connection, with a session of its own if it is to have one.
func (p *peer) open(session string) (net.Conn, error) {
	if session == "" {
		return p.dial()
	}
	p.isid[5]++
	switch session {
	case nvmeSession:
	case nvmeIO:
		return p.attach()
	default:
		return p.login(session)
	}
	c, err := p.dial()
	if err != nil {
		return nil, err
	}
	if err := discover(c, "nqn.2026-11.soak:hostile", p.isid[5]); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

func (p *peer) sendAll(c net.Conn, a *assault) error {
	switch a.answers {
	case ignored:
		_ = c.SetWriteDeadline(time.Now().Add(linger))
	case dropped:
		go io.Copy(io.Discard, c)
	}
	for i := range uint32(a.sent) {
		if _, err := c.Write(a.what(p, i)); err != nil {
			return err
		}
	}
	if a.answers == awaited {
		_, _, err := receive(c)
		return err
	}
	return nil
}

// noise is no PDU of any kind, though it may begin like a login.
func (p *peer) noise(uint32) []byte {
	b := make([]byte, 1+p.rnd.IntN(4096))
	for i := range b {
		b[i] = byte(p.rnd.Uint32())
	}
	if p.rnd.IntN(2) == 0 {
		b[0] = 0x43
	}
	return b
}

// sendTargets asks for all targets five hundred times at once.
func (p *peer) sendTargets(uint32) []byte {
	var b iscsi.BHS
	q := b.NewTextRequest()
	q.SetFinal(true)
	q.SetITT(p.tag())
	q.SetTTT(iscsi.ReservedTag)
	q.SetCmdSN(1)
	return frame(&b, []byte(strings.Repeat("SendTargets=All\x00", 500)))
}

// ping is a NOP-Out that asks for an answer.
func (p *peer) ping(cmdSN uint32, immediate bool, data []byte) []byte {
	var b iscsi.BHS
	n := b.NewNopOut()
	n.SetImmediate(immediate)
	n.SetITT(p.tag())
	n.SetTTT(iscsi.ReservedTag)
	n.SetCmdSN(cmdSN)
	return frame(&b, data)
}

// abort is an ABORT TASK of one that is not there.
func (p *peer) abort(uint32) []byte {
	var b iscsi.BHS
	q := b.NewTaskRequest(iscsi.AbortTask)
	q.SetImmediate(true)
	q.SetITT(p.tag())
	q.SetRefTask(p.rnd.Uint32())
	q.SetCmdSN(1)
	return frame(&b, nil)
}

// write is a WRITE(10) without immediate data, beyond what honest initiators use.
func (p *peer) write(cmdSN uint32, off int64, n uint32) []byte {
	cdb := make([]byte, 10)
	cdb[0] = 0x2a
	binary.BigEndian.PutUint32(cdb[2:], uint32(off/512))
	binary.BigEndian.PutUint16(cdb[7:], uint16(n/512))
	var b iscsi.BHS
	s := b.NewSCSICommand()
	s.SetFinal(true)
	s.SetWrite(true)
	s.SetAttr(1)
	s.SetEDTL(n)
	s.SetCDB(cdb)
	s.SetITT(p.tag())
	s.SetCmdSN(cmdSN)
	return frame(&b, nil)
}

// flipped is what may pass for a PDU of a session, with one bit of its header wrong: never
// in the block address or the length of a write, which would be the target's duty to obey.
func (p *peer) flipped(i uint32) []byte {
	b := p.ping(1+i, p.rnd.IntN(2) == 0, make([]byte, 100))
	b[1+p.rnd.IntN(iscsi.BHSLen-1)] ^= 1 << p.rnd.IntN(8)
	return b
}
