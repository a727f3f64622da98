package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"softiser/internal/nvme"
	"softiser/internal/nvmetcp"
)

// nvmeSession is the kind of session that is an admin queue over NVMe/TCP: every target has
// the discovery service.
const nvmeSession = "NVMe"

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

// discover makes c the admin queue of a discovery controller that is enabled.
func discover(c net.Conn, host string, id byte) error {
	if _, err := c.Write(icReq()); err != nil {
		return err
	}
	var ic [nvmetcp.ICLen]byte
	if _, err := io.ReadFull(c, ic[:]); err != nil {
		return err
	}
	var connect, enable nvme.SQE
	q := connect.NewConnect()
	q.SetSQSize(31)
	q.SetKeepAlive(time.Minute)
	d := nvme.ConnectData{HostID: nvme.HostID{0: 1, 15: id}, CntlID: nvme.CntlIDDynamic, Subsystem: nvme.DiscoveryNQN, Host: host}
	if _, err := exchange(c, capsule(&connect, 1, d.AppendTo(nil), 0), 0); err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	enable.NewPropertySet(nvme.PropCC, uint64(nvme.NewConfig(nvme.CommandSetAll, true)))
	if _, err := exchange(c, capsule(&enable, 2, nil, 0), 0); err != nil {
		return fmt.Errorf("enable: %w", err)
	}
	return nil
}

// exchange sends a command and returns the data of its answer.
func exchange(c net.Conn, command []byte, room int) ([]byte, error) {
	if _, err := c.Write(command); err != nil {
		return nil, err
	}
	data := make([]byte, room)
	for {
		h := make([]byte, nvmetcp.CHLen)
		if _, err := io.ReadFull(c, h); err != nil {
			return nil, err
		}
		lay, f := (*nvmetcp.CH)(h).Check(&nvmetcp.Limits{MaxData: uint32(room)})
		if f != nil {
			return nil, f
		}
		b := append(h, make([]byte, int((*nvmetcp.CH)(h).PLen())-len(h))...)
		if _, err := io.ReadFull(c, b[nvmetcp.CHLen:]); err != nil {
			return nil, err
		}
		switch (*nvmetcp.CH)(b).Type() {
		case nvmetcp.TypeC2HData:
			at := int((*nvmetcp.Data)(b).Offset())
			if at > room || copy(data[at:], b[lay.PDO:][:lay.Data]) != int(lay.Data) {
				return nil, errors.New("data beyond the buffer")
			}
		case nvmetcp.TypeCapsuleResp:
			if st := (*nvmetcp.CapsuleResp)(b).CQE().Status(); !st.OK() {
				return nil, st
			}
			return data, nil
		default:
			return nil, fmt.Errorf("%s: %x", (*nvmetcp.CH)(b).Type(), b)
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
