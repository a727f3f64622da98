package rdma

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"softiser/internal/loopback"
)

// An address that is local to a link is reached by its interface, by whatever name that goes, and by nothing else.
func TestResolveOnLink(t *testing.T) {
	lo, err := net.InterfaceByName("lo")
	if err != nil {
		t.Skip(err)
	}
	for in, want := range map[string]string{
		"[fe80::1%lo]:3260": "[fe80::1%lo]:3260", "[fe80::1%" + strconv.Itoa(lo.Index) + "]:3260": "[fe80::1%lo]:3260",
		"[fd00::1%lo]:1": "[fd00::1]:1", "10.0.0.1:1": "10.0.0.1:1", "[::ffff:10.0.0.1]:1": "10.0.0.1:1",
	} {
		got, err := resolve(t.Context(), ProviderRoCE.Network(), in)
		if err != nil || got != netip.MustParseAddrPort(want) {
			t.Errorf("%s: %v, %v; want %s", in, got, err, want)
		}
	}
	for in, why := range map[string]string{"[fe80::1]:1": "interface", "[fe80::1%nowhere]:1": "fe80::1%nowhere"} {
		if got, err := resolve(t.Context(), ProviderRoCE.Network(), in); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%s: %v, %v; want something about %s", in, got, err, why)
		}
	}
}

// Who listens at a host by its name listens at its address of IPv4, as over TCP, whichever comes first.
func TestResolveToListen(t *testing.T) {
	was := net.DefaultResolver
	t.Cleanup(func() { net.DefaultResolver = was })
	net.DefaultResolver = &net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) {
		ours, theirs := net.Pipe()
		go answerOnce(theirs)
		return ours, nil
	}}
	all, err := resolveAll(t.Context(), ProviderRoCE.Network(), "both.test.:7", netip.Addr{})
	if err != nil || len(all) != 2 {
		t.Fatal(all, err)
	}
	if all[0].Addr().Is4() {
		t.Skip("IPv6 is not there, or not the first choice")
	}
	got, err := resolve(t.Context(), ProviderRoCE.Network(), "both.test.:7")
	if want := netip.MustParseAddrPort("127.0.0.9:7"); err != nil || got != want {
		t.Errorf("%v, %v; want %v", got, err, want)
	}
}

// answerOnce answers one question of DNS over a stream: of any name the addresses are ::1 and 127.0.0.9.
func answerOnce(c net.Conn) {
	defer c.Close()
	var size [2]byte
	if _, err := io.ReadFull(c, size[:]); err != nil {
		return
	}
	b := make([]byte, binary.BigEndian.Uint16(size[:]))
	if _, err := io.ReadFull(c, b); err != nil {
		return
	}
	var m dnsmessage.Message
	if m.Unpack(b) != nil || len(m.Questions) != 1 {
		return
	}
	q := m.Questions[0]
	m.Response, m.Additionals = true, nil
	h := dnsmessage.ResourceHeader{Name: q.Name, Class: q.Class}
	switch q.Type {
	case dnsmessage.TypeA:
		m.Answers = []dnsmessage.Resource{{Header: h, Body: &dnsmessage.AResource{A: [4]byte{127, 0, 0, 9}}}}
	case dnsmessage.TypeAAAA:
		m.Answers = []dnsmessage.Resource{{Header: h, Body: &dnsmessage.AAAAResource{AAAA: netip.IPv6Loopback().As16()}}}
	}
	if b, err := m.AppendPack(size[:]); err == nil {
		binary.BigEndian.PutUint16(b, uint16(len(b)-len(size)))
		_, _ = c.Write(b) // or it is asked again
	}
}

// The local address is that of the way to a host, though there is none to its first address.
func TestLocalAddrToNext(t *testing.T) {
	loopback.Namespace(t, loopback.MTU)
	nowhere, here := netip.MustParseAddrPort("[2001:db8::1]:0"), netip.MustParseAddrPort("127.0.0.1:0")
	if got, err := localAddrToOne([]netip.AddrPort{nowhere, here}); err != nil || got != here.Addr() {
		t.Errorf("%v, %v", got, err)
	}
	if _, err := localAddrToOne([]netip.AddrPort{nowhere, nowhere}); err == nil {
		t.Error("a way to nowhere")
	}
}

// A local address on a link is the same, whether its interface has its name or its number.
func TestLocalOnLink(t *testing.T) {
	loopback.Namespace(t, loopback.MTU)
	lo, err := net.InterfaceByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("ip", "-6", "addr", "add", "fe80::1/64", "dev", "lo", "nodad").CombinedOutput(); err != nil {
		t.Skipf("ip addr: %v %s", err, out)
	}
	d, err := Open(&DeviceConfig{Provider: ProviderRoCE})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	pd, err := d.AllocPD()
	if err != nil {
		t.Fatal(err)
	}
	defer pd.Dealloc()
	for _, zone := range []string{"lo", strconv.Itoa(lo.Index)} {
		local := netip.MustParseAddr("fe80::1%" + zone)
		if mtu := PathMTU(local); mtu != 4096 {
			t.Errorf("%v: path MTU %d", local, mtu)
		}
		cq, err := d.CreateCQ(CQConfig{})
		if err != nil {
			t.Fatal(err)
		}
		defer cq.Close()
		qp, err := pd.CreateQP(QPConfig{Type: TypeUD, SendCQ: cq, RecvCQ: cq, Datagram: DatagramParams{LocalAddr: local}})
		if err != nil {
			t.Fatal(err)
		}
		defer qp.Close()
		if got := qp.Info().LocalAddr.String(); got != "[fe80::1%lo]:0" {
			t.Errorf("%v: %s", local, got)
		}
	}
}

// A host that has addresses of both families is reached at one of the family of the local address.
func TestChoose(t *testing.T) {
	v6, v4, mapped := netip.MustParseAddr("fd00::1"), netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("::ffff:10.0.0.1")
	for _, c := range []struct {
		ips         []netip.Addr
		local, want netip.Addr
	}{
		{[]netip.Addr{v6, v4}, netip.MustParseAddr("10.0.0.2"), v4},
		{[]netip.Addr{v6, mapped}, netip.MustParseAddr("10.0.0.2"), v4},
		{[]netip.Addr{v6, v4}, netip.MustParseAddr("::ffff:10.0.0.2"), v4},
		{[]netip.Addr{v4, v6}, netip.MustParseAddr("fd00::2"), v6},
		{[]netip.Addr{mapped, v6}, netip.Addr{}, v4},
		{[]netip.Addr{v6}, netip.MustParseAddr("10.0.0.2"), v6},
	} {
		got := choose(c.ips, c.local, 7)
		if got[0] != netip.AddrPortFrom(c.want, 7) || c.local.IsValid() && len(c.ips) > 1 && len(got) > 1 {
			t.Errorf("%v from %v: %v, want %v", c.ips, c.local, got, c.want)
		}
	}
}

// Of the time there is, each address of a host has its share, and the last one all that is left.
func TestShares(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, c := range []struct {
			timeout, ctx time.Duration
			n            int
			want         []time.Duration
		}{
			{10 * time.Second, 0, 1, []time.Duration{10 * time.Second}},
			{10 * time.Second, 0, 2, []time.Duration{5 * time.Second, 5 * time.Second}},
			{10 * time.Second, 6 * time.Second, 2, []time.Duration{3 * time.Second, 7 * time.Second}}, // the context ends it before
			{3 * time.Second, 0, 3, []time.Duration{2 * time.Second, time.Second}},
		} {
			ctx := t.Context()
			if c.ctx > 0 {
				var cancel func()
				ctx, cancel = context.WithTimeout(ctx, c.ctx)
				defer cancel()
			}
			var got []time.Duration
			first := errors.New("the first one's")
			err := oneOf(ctx, make([]netip.AddrPort, c.n), c.timeout, func(_ netip.AddrPort, d time.Duration) (bool, error) {
				got = append(got, d)
				time.Sleep(d)
				if len(got) > 1 {
					return true, errors.New("another")
				}
				return true, first
			})
			if err != first || !slices.Equal(got, c.want) {
				t.Errorf("%v, context %v, %d addresses: %v, %v; want %v", c.timeout, c.ctx, c.n, got, err, c.want)
			}
		}
	})
}
