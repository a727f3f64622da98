package initiator_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"hash/crc32"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"testing"
	"time"

	"softiser/initiator"
	"softiser/internal/await"
	"softiser/rdma"
	"softiser/rdma/rdmatest"
	"softiser/target"
)

// rocePortNumber is UDP's port of RoCE.
const rocePortNumber = 4791

// Places in a datagram with a request for a connection: BTH, DETH and the header of the MAD
// are before them.
const (
	reqCommID = 44
	reqQPN    = 44 + 32
	icrcLen   = 4
)

// forger makes requests for connections out of a real one that it has been sent.
type forger struct {
	req      []byte
	from, to netip.Addr // that the real one names
}

// newForger listens where nobody does, and has itself asked for a connection.
func newForger(t *testing.T, port uint16, private []byte) *forger {
	t.Helper()
	f := &forger{from: rdmatest.RoCEAddr(), to: rdmatest.RoCEAddr()}
	pc, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(f.to, rocePortNumber)))
	if err != nil {
		t.Fatal(err)
	}
	defer pc.Close()
	end := rdmatest.NewEnd(t, &rdmatest.Options{Device: rdma.DeviceConfig{Provider: rdma.ProviderRoCE}}, 0)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = rdma.Dial(ctx, "roce", netip.AddrPortFrom(f.to, port).String(), end.QP, &rdma.ConnParams{PrivateData: private, RoCE: rdma.RoCEParams{LocalAddr: f.from}})
	}()
	_ = pc.SetReadDeadline(time.Now().Add(rdmatest.Timeout))
	buf := make([]byte, 2048)
	n, err := pc.Read(buf)
	cancel()
	<-done
	if err != nil {
		t.Fatal(err)
	}
	f.req = buf[:n]
	return f
}

// forge sends a request to an address, from a source of its own.
func (f *forger) forge(t *testing.T, c *net.UDPConn, to netip.Addr, id, qpn uint32) {
	t.Helper()
	src := c.LocalAddr().(*net.UDPAddr).AddrPort()
	four := func(a netip.Addr) []byte { b := a.Unmap().As4(); return b[:] }
	b := bytes.ReplaceAll(bytes.ReplaceAll(f.req, four(f.from), four(src.Addr())), four(f.to), four(to))
	binary.BigEndian.PutUint32(b[reqCommID:], id)
	b[reqQPN], b[reqQPN+1], b[reqQPN+2] = byte(qpn>>16), byte(qpn>>8), byte(qpn)
	seal(b, src, netip.AddrPortFrom(to, rocePortNumber))
	if _, err := c.WriteToUDPAddrPort(b, netip.AddrPortFrom(to, rocePortNumber)); err != nil {
		t.Error(err)
	}
}

// seal makes the ICRC of a datagram that is sent with DF and the identification 0.
func seal(b []byte, from, to netip.AddrPort) {
	h := bytes.Repeat([]byte{0xff}, 8) // of a local route header
	ip := make([]byte, 20)
	ip[0], ip[1], ip[6], ip[8], ip[9] = 0x45, 0xff, 0x40, 0xff, 17
	binary.BigEndian.PutUint16(ip[2:], uint16(28+len(b)))
	ip[10], ip[11] = 0xff, 0xff
	src, dst := from.Addr().Unmap().As4(), to.Addr().Unmap().As4()
	h = append(append(append(h, ip[:12]...), src[:]...), dst[:]...)
	h = binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(h, from.Port()), to.Port())
	h = append(binary.BigEndian.AppendUint16(h, uint16(8+len(b))), 0xff, 0xff)
	h = append(h, b[:len(b)-icrcLen]...)
	h[8+20+8+4] = 0xff // of the BTH
	binary.LittleEndian.PutUint32(b[len(b)-icrcLen:], crc32.ChecksumIEEE(h))
}

// source is a socket at an address of its own, as an unconnected one of RoCE sends.
func source(t *testing.T) *net.UDPConn {
	t.Helper()
	lc := net.ListenConfig{Control: func(_, _ string, rc syscall.RawConn) (err error) {
		const ipPMTUDiscDo = 2
		cerr := rc.Control(func(fd uintptr) {
			err = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_IP, syscall.IP_MTU_DISCOVER, ipPMTUDiscDo)
		})
		if err == nil {
			err = cerr
		}
		return err
	}}
	c, err := lc.ListenPacket(t.Context(), "udp4", net.JoinHostPort(rdmatest.RoCEAddr().String(), "0"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c.(*net.UDPConn)
}

// Requests for connections from many forged addresses, for iSER and for NVMe, that nobody
// goes on with, and packets that are none: who is honest keeps his session and his data, and
// another one comes in. What the others have begun is over before long.
func TestHostileRoCE(t *testing.T) {
	s := serveOver(t, initiator.TransportRoCE, 4<<20, func(c *target.Config, _ *target.Target) {
		c.Limits.PendingLogins, c.Limits.PendingPerAddress, c.Timeouts.Login = 32, 8, 2*time.Second
	})
	at := netip.MustParseAddrPort(s.addr)
	cfg := s.config(initiator.TransportRoCE)
	cfg.OnEvent = func(e initiator.Event) { t.Log(e) }
	honest := openLUN(t, cfg)
	stop, wg := make(chan struct{}), sync.WaitGroup{}
	wg.Go(func() {
		p, got := make([]byte, 64<<10), make([]byte, 64<<10)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			for k := range p {
				p[k] = byte(i + k)
			}
			if _, err := honest.WriteAt(p, int64(i%32)*65536); err != nil {
				t.Error(err)
				return
			}
			if _, err := honest.ReadAt(got, int64(i%32)*65536); err != nil || !bytes.Equal(got, p) {
				t.Errorf("%v, or other data", err)
				return
			}
		}
	})
	iser := newForger(t, at.Port(), []byte{0x80, 0, 0, 0})
	nvme := newForger(t, at.Port(), append([]byte{0, 0, 0, 0, 32, 0, 31, 0}, make([]byte, 24)...))
	rnd := rand.New(rand.NewPCG(1, 176))
	for i := range 60 {
		c := source(t)
		for k := range 4 {
			f := iser
			if k%2 == 1 {
				f = nvme
			}
			f.forge(t, c, at.Addr(), rnd.Uint32()|1, 0x1000+uint32(i*4+k))
		}
		junk := make([]byte, rnd.IntN(400))
		for k := range junk {
			junk[k] = byte(rnd.Uint32())
		}
		if _, err := c.WriteToUDPAddrPort(junk, netip.AddrPortFrom(at.Addr(), rocePortNumber)); err != nil {
			t.Error(err)
		}
		if i == 40 {
			late := openLUN(t, s.config(initiator.TransportRoCE))
			if _, err := late.ReadAt(make([]byte, 4096), 0); err != nil {
				t.Error(err)
			}
		}
	}
	await.True(t, "all that waited for login has gone", func() bool {
		st := s.Status()
		return st.Pending == 0 && len(st.RoCE) == 1 && st.RoCE[0].QPs <= len(st.Sessions)
	})
	before := honest.Stats().ReadBytes
	await.True(t, "the honest session goes on", func() bool { return honest.Stats().ReadBytes > before })
	close(stop)
	wg.Wait()
	st := s.Status()
	if c := st.RoCE[0].Counters; c.CMRequests < 200 || c.BadICRC+c.Malformed+c.UnknownQP == 0 {
		t.Errorf("the test tested nothing: %+v", c)
	}
	if l := honest.Stats(); l.Losses != 0 || len(st.Sessions) != 2 {
		t.Errorf("%d losses, %d sessions", l.Losses, len(st.Sessions))
	}
	for _, p := range st.Portals {
		t.Logf("%s: accepted %d, evicted %d, turned away %d", p.Listen, p.Accepted, p.Evicted, p.Turned)
	}
}
