package rdma_test

import (
	"bytes"
	"errors"
	"net"
	"net/netip"
	"sync/atomic"
	"syscall"
	"testing"

	"softiser/internal/await"
	"softiser/rdma"
	"softiser/rdma/internal/roce/packet"
	"softiser/rdma/rdmatest"
)

// forger sends packets in somebody's name: RoCE takes them from any UDP port of an address.
type forger struct {
	t    *testing.T
	c    *net.UDPConn
	flow *packet.Flow
}

// forge makes one; tos is what the packets have in their IP header.
func forge(t *testing.T, from, to netip.Addr, tos int) *forger {
	lc := net.ListenConfig{Control: func(_, _ string, rc syscall.RawConn) (err error) {
		cerr := rc.Control(func(fd uintptr) {
			err = errors.Join(syscall.SetsockoptInt(int(fd), syscall.IPPROTO_IP, syscall.IP_MTU_DISCOVER, syscall.IP_PMTUDISC_DO),
				syscall.SetsockoptInt(int(fd), syscall.IPPROTO_IP, syscall.IP_TOS, tos))
		})
		return errors.Join(err, cerr)
	}}
	pc, err := lc.ListenPacket(t.Context(), "udp4", netip.AddrPortFrom(from, 0).String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = pc.Close() })
	c := pc.(*net.UDPConn)
	return &forger{t, c, packet.NewFlow(c.LocalAddr().(*net.UDPAddr).AddrPort(), netip.AddrPortFrom(to, roceUDPPort))}
}

const roceUDPPort = 4791

// send sends a packet without payload; change is about its bytes, the ICRC behind them.
func (f *forger) send(to netip.Addr, p packet.Packet, change func(b []byte)) {
	p.PKey = packet.DefaultPKey
	b := packet.Append(nil, &p, 0)
	b = f.flow.Begin(b, p.Op.Len(0), 0).AppendTrailer(b, 0)
	if change != nil {
		change(b)
	}
	if _, err := f.c.WriteToUDPAddrPort(b, netip.AddrPortFrom(to, roceUDPPort)); err != nil {
		f.t.Error(err)
	}
}

// roceEnd is the address of an end, and what its port has counted.
func roceEnd(t *testing.T, e *rdmatest.End) (addr netip.Addr, counted func() rdma.RoCEPort) {
	addr = netip.AddrPort(e.QP.Info().LocalAddr.(rdma.RoCEAddr)).Addr()
	return addr, func() rdma.RoCEPort {
		for _, p := range rdma.RoCEPorts() {
			if p.Addr == addr {
				return p
			}
		}
		t.Fatalf("the port of %v is not there", addr)
		return rdma.RoCEPort{}
	}
}

// TestCongestion: notices of congestion slow a stream of Writes down, whoever they are from, and
// break nothing; those that are not for the connection, or damaged, are not taken. A peer whose
// packets were marked is told so, but not of each.
func TestCongestion(t *testing.T) {
	a, b := rdmatest.NewPair(t, overRoCE())
	aAddr, aPort := roceEnd(t, a)
	bAddr, bPort := roceEnd(t, b)
	const size = 1 << 20
	dst := make([]byte, size)
	mr, err := b.PD.RegMR(dst, rdma.AccessLocalWrite|rdma.AccessRemoteWrite)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = mr.Dereg() })
	src := make([]byte, size)
	for i := range src {
		src[i] = byte(i * 7 >> 3)
	}

	cnp := packet.Packet{BTH: packet.BTH{Op: packet.CNP, BECN: true, QPN: a.QP.Num()}}
	good := forge(t, bAddr, aAddr, 0)
	before := aPort().Counters
	stranger := forge(t, rdmatest.RoCEAddr(), aAddr, 0)
	for range 10 {
		stranger.send(aAddr, cnp, nil)
		good.send(aAddr, cnp, func(b []byte) { b[len(b)-1] ^= 1 })
		good.send(aAddr, cnp, func(b []byte) { b[20] ^= 1 }) // of the reserved bytes
	}
	cnp.QPN ^= 0x5a5a5a
	good.send(aAddr, cnp, nil)
	cnp.QPN ^= 0x5a5a5a
	await.True(t, "what is not for the connection is dropped", func() bool {
		c := aPort().Counters
		return c.WrongPeer-before.WrongPeer == 10 && c.BadICRC-before.BadICRC == 20 && c.UnknownQP-before.UnknownQP == 1
	})
	if c := aPort().Counters; c.CNPHandled+c.CNPIgnored != 0 {
		t.Errorf("%+v", c)
	}

	good.send(aAddr, cnp, nil) // nothing is in flight
	await.True(t, "one that comes too late", func() bool { return aPort().Counters.CNPIgnored == 1 })

	var stop atomic.Bool
	done := make(chan struct{})
	go func() {
		defer close(done)
		for !stop.Load() {
			good.send(aAddr, cnp, nil)
		}
	}()
	for id := uint64(1); aPort().Counters.CNPHandled < 5 || id < 10; id++ {
		a.Post(t, rdma.SendWR{ID: id, Op: rdma.OpWrite, SGL: []rdma.SGE{a.SGE(src)}, Remote: rdma.RemoteAddr{TO: mr.Addr(), STag: mr.RKey()}})
		a.Want(t, id, rdma.WCWrite, rdma.StatusSuccess)
	}
	stop.Store(true)
	<-done
	p := aPort()
	if len(p.Paths) != 1 || p.Paths[0].Congested != p.Counters.CNPHandled || p.Paths[0].Limit < 16<<10 || p.Counters.RetryExceededErr != 0 {
		t.Errorf("%+v", p)
	}
	if !bytes.Equal(src, dst) {
		t.Error("other bytes have arrived")
	}

	// Marked packets of b, of a kind that changes nothing. Nothing on loopback marks, so there were none.
	if q, p := bPort().Counters, aPort().Counters; q.CNPSent+p.CNPSent+q.ECNMarkedPkts+p.ECNMarkedPkts != 0 {
		t.Errorf("%+v, %+v", p, q)
	}
	marked := forge(t, bAddr, aAddr, 3)
	const count = 1000
	for range count {
		marked.send(aAddr, cnp, nil)
	}
	marked.send(aAddr, packet.Packet{BTH: packet.BTH{Op: packet.UD | packet.SendOnly, QPN: a.QP.Num()}}, nil)
	await.True(t, "the peer is told", func() bool {
		c, d := aPort().Counters, bPort().Counters
		return c.ECNMarkedPkts >= count/2 && c.CNPSent > 0 && d.CNPIgnored+d.CNPHandled == c.CNPSent
	})
	if c := aPort().Counters; c.CNPSent > c.ECNMarkedPkts {
		t.Errorf("%+v", c)
	}
}
