package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"softiser/internal/nvme"
	"softiser/internal/nvmerdma"
	"softiser/internal/nvmetcp"
)

// Kinds of sessions over NVMe/TCP.
const (
	nvmeSession = "NVMe"     // an admin queue of the discovery service, which every target has
	nvmeIO      = "NVMe I/O" // an I/O queue of the volume, and its association
)

// capsule puts a command together, with data in the capsule or room for an answer.
func capsule(s *nvme.SQE, cid uint16, data []byte, room uint32) []byte {
	s.SetCID(cid)
	if len(data) > 0 {
		s.SGL().SetBlock(nvme.SGLInCapsule, 0, uint32(len(data)))
	} else {
		s.SGL().SetBlock(nvme.SGLTransport, 0, room)
	}
	var k nvmetcp.CapsuleCmd
	*k.SQE() = *s
	k.SetHeader(0, uint32(len(data)), 0)
	return append(append([]byte(nil), k[:]...), data...)
}

func icReq() []byte { return (&nvmetcp.ICReq{}).AppendTo(nil) }

// connect makes c a queue, and returns the controller's identifier.
func connect(c net.Conn, qid uint16, d nvme.ConnectData) (uint16, error) {
	if _, err := c.Write(icReq()); err != nil {
		return 0, err
	}
	var ic [nvmetcp.ICLen]byte
	if _, err := io.ReadFull(c, ic[:]); err != nil {
		return 0, err
	}
	var s nvme.SQE
	q := s.NewConnect()
	q.SetQID(qid)
	q.SetSQSize(31)
	q.SetKeepAlive(time.Minute)
	_, dw0, err := answered(c, capsule(&s, 1, d.AppendTo(nil), 0), 0)
	if err != nil {
		return 0, fmt.Errorf("connect: %w", err)
	}
	return nvme.ConnectResult(dw0).CntlID(), nil
}

// associate makes c the admin queue of a controller that is enabled.
func associate(c net.Conn, d *nvme.ConnectData) (err error) {
	d.CntlID = nvme.CntlIDDynamic
	if d.CntlID, err = connect(c, 0, *d); err != nil {
		return err
	}
	var enable nvme.SQE
	enable.NewPropertySet(nvme.PropCC, uint64(nvme.NewConfig(nvme.CommandSetAll, true)))
	if _, err := exchange(c, capsule(&enable, 2, nil, 0), 0); err != nil {
		return fmt.Errorf("enable: %w", err)
	}
	return nil
}

// discover makes c the admin queue of a discovery controller.
func discover(c net.Conn, host string, id byte) error {
	return associate(c, &nvme.ConnectData{HostID: nvme.HostID{0: 1, 15: id}, Subsystem: nvme.DiscoveryNQN, Host: host})
}

// ioQueue is an I/O queue with the admin queue of its association, which lives as long.
type ioQueue struct {
	net.Conn
	admin net.Conn
}

func (q *ioQueue) Close() error { return errors.Join(q.Conn.Close(), q.admin.Close()) }

// attach opens an I/O queue of the volume.
func (p *peer) attach() (net.Conn, error) {
	admin, err := p.dial()
	if err != nil {
		return nil, err
	}
	d := nvme.ConnectData{HostID: nvme.HostID{0: 2, 15: p.isid[5]}, Subsystem: nqn, Host: "nqn.2026-11.soak:hostile"}
	if err := associate(admin, &d); err != nil {
		admin.Close()
		return nil, err
	}
	c, err := p.dial()
	if err == nil {
		if _, err = connect(c, 1, d); err != nil {
			c.Close()
		}
	}
	if err != nil {
		admin.Close()
		return nil, err
	}
	return &ioQueue{c, admin}, nil
}

// exchange sends a command and returns the data of its answer.
func exchange(c net.Conn, command []byte, room int) ([]byte, error) {
	data, _, err := answered(c, command, room)
	return data, err
}

// answered is exchange with the first word of the answer.
func answered(c net.Conn, command []byte, room int) (data []byte, dw0 uint32, err error) {
	if _, err := c.Write(command); err != nil {
		return nil, 0, err
	}
	data = make([]byte, room)
	for {
		h := make([]byte, nvmetcp.CHLen)
		if _, err := io.ReadFull(c, h); err != nil {
			return nil, 0, err
		}
		lay, f := (*nvmetcp.CH)(h).Check(&nvmetcp.Limits{MaxData: uint32(room)})
		if f != nil {
			return nil, 0, f
		}
		b := append(h, make([]byte, int((*nvmetcp.CH)(h).PLen())-len(h))...)
		if _, err := io.ReadFull(c, b[nvmetcp.CHLen:]); err != nil {
			return nil, 0, err
		}
		switch (*nvmetcp.CH)(b).Type() {
		case nvmetcp.TypeC2HData:
			at := int((*nvmetcp.Data)(b).Offset())
			if at > room || copy(data[at:], b[lay.PDO:][:lay.Data]) != int(lay.Data) {
				return nil, 0, errors.New("data beyond the buffer")
			}
		case nvmetcp.TypeCapsuleResp:
			e := (*nvmetcp.CapsuleResp)(b).CQE()
			if st := e.Status(); !st.OK() {
				return nil, 0, st
			}
			return data, e.DW0(), nil
		default:
			return nil, 0, fmt.Errorf("%s: %x", (*nvmetcp.CH)(b).Type(), b)
		}
	}
}

// honestHost asks the discovery service what there is, and goes.
func honestHost(ctx context.Context, addr string, id byte) error {
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(patience))
	if err := discover(c, "nqn.2026-11.soak:honest", id); err != nil {
		return err
	}
	var identify nvme.SQE
	identify.NewIdentify(nvme.CNSController, 0)
	b, err := exchange(c, capsule(&identify, 3, nil, nvme.IdentifyLen), nvme.IdentifyLen)
	if err == nil && b[111] != byte(nvme.TypeDiscovery) {
		err = fmt.Errorf("the discovery service says that it is a controller of type %d", b[111])
	}
	return err
}

// command is what an attacker sends on an admin queue again and again.
func command(fill func(s *nvme.SQE), room uint32) func(*peer, uint32) []byte {
	return func(_ *peer, i uint32) []byte {
		var s nvme.SQE
		fill(&s)
		return capsule(&s, uint16(100+i), nil, room)
	}
}

func keepAlive(s *nvme.SQE)    { s.Init(nvme.AdminKeepAlive, 0) }
func eventRequest(s *nvme.SQE) { s.Init(nvme.AdminAsyncEvent, 0) }
func identify(s *nvme.SQE)     { s.NewIdentify(nvme.CNSController, 0) }

// icNoise is an ICReq and bytes that begin like a capsule.
func (p *peer) icNoise(i uint32) []byte {
	b := p.noise(i)
	b[0] = byte(nvmetcp.TypeCapsuleCmd)
	return append(icReq(), b...)
}

// flippedCapsule is a capsule with a bit that is another one.
func (p *peer) flippedCapsule(i uint32) []byte {
	b := command(identify, nvme.IdentifyLen)(p, i)
	b[p.rnd.IntN(len(b))] ^= 1 << p.rnd.IntN(8)
	return b
}

// Attackers write and read behind what honest hosts use.
const (
	attacked = 48 << 20 / 512 // their first block
	blocks   = 128            // of each command
)

// dataless is a write whose data is asked for and does not come.
func (p *peer) dataless(i uint32) []byte {
	var s nvme.SQE
	s.Init(nvme.OpWrite, 1)
	s.ReadWrite().SetRange(attacked+uint64(i)*blocks, blocks)
	return capsule(&s, uint16(100+i), nil, blocks*512)
}

// unread is a read.
func (p *peer) unread(i uint32) []byte {
	var s nvme.SQE
	s.Init(nvme.OpRead, 1)
	s.ReadWrite().SetRange(attacked+uint64(i)*blocks, blocks)
	return capsule(&s, uint16(100+i), nil, blocks*512)
}

// mpaRequest asks for an admin queue over RDMA (RFC 5044 §7.1, RFC 6581 §6).
func mpaRequest() []byte {
	private := (&nvmerdma.Request{HostRecv: 32, HostSend: 31}).AppendTo([]byte{0, 16, 0, 16}) // IRD, ORD
	b := append([]byte("MPA ID Req Frame"), 0x50, 2)                                          // CRC, enhanced; revision 2
	return append(binary.BigEndian.AppendUint16(b, uint16(len(private))), private...)
}

// mpaNoise is an MPA request, and bytes where FPDUs are to be.
func (p *peer) mpaNoise(i uint32) []byte { return append(mpaRequest(), p.noise(i)...) }
