package congestion

import (
	"context"
	"net"
	"net/netip"
	"strings"
	"testing"
)

// pair connects two sockets; listening and dialing are made as told.
func pair(t *testing.T, listen, dial, addr string) (client, server net.Conn) {
	t.Helper()
	lc := net.ListenConfig{Control: Listening(listen)}
	ln, err := lc.Listen(context.Background(), "tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	d := net.Dialer{Control: Dialing(dial)}
	if client, err = d.Dial("tcp", ln.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if server, err = ln.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close(); server.Close() })
	return client, server
}

func of(t *testing.T, nc net.Conn) string {
	t.Helper()
	rc, err := nc.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	return get(rc)
}

func TestSameHost(t *testing.T) {
	host := hostDefault()
	if host == "" {
		t.Skip("the host does not tell its congestion control")
	}
	for _, c := range []struct{ listen, dial, addr, client, server string }{
		{"", "", "127.0.0.1:0", local, local},
		{Auto, Auto, "127.0.0.1:0", local, local},
		{Auto, Auto, "0.0.0.0:0", local, local},
		{Host, Host, "127.0.0.1:0", host, host},
		{Host, Auto, "127.0.0.1:0", local, host},
		{"reno", "reno", "127.0.0.1:0", "reno", "reno"},
	} {
		cl, sv := pair(t, c.listen, c.dial, c.addr)
		if err := Accepted(c.listen, sv); err != nil {
			t.Errorf("%+v: %v", c, err)
		}
		if err := Apply(c.dial, cl); err != nil {
			t.Errorf("%+v: %v", c, err)
		}
		if g := of(t, cl); g != c.client {
			t.Errorf("%+v: client has %s", c, g)
		}
		if g := of(t, sv); g != c.server {
			t.Errorf("%+v: server has %s", c, g)
		}
	}
}

// TestFromElsewhere: what a connection inherited from an automatic listener is
// taken back for a peer on another host, and for one that wants the default.
func TestFromElsewhere(t *testing.T) {
	host := hostDefault()
	if host == "" || host == local {
		t.Skipf("the host's default is %q: nothing to take back", host)
	}
	_, sv := pair(t, Auto, Auto, "127.0.0.1:0")
	if err := accepted(Auto, sv.(*net.TCPConn), false); err != nil {
		t.Fatal(err)
	}
	if g := of(t, sv); g != host {
		t.Errorf("a peer elsewhere got %s, the host's default is %s", g, host)
	}
	_, sv = pair(t, Auto, Auto, "127.0.0.1:0")
	if err := Accepted(Host, sv); err != nil {
		t.Fatal(err)
	}
	if g := of(t, sv); g != host {
		t.Errorf("host: got %s, the host's default is %s", g, host)
	}
	// Chosen by the administrator: stays.
	_, sv = pair(t, "reno", Auto, "127.0.0.1:0")
	if err := Accepted("reno", sv); err != nil || of(t, sv) != "reno" {
		t.Errorf("reno: %s, %v", of(t, sv), err)
	}
}

func TestUnknownName(t *testing.T) {
	const bad = "no-such-thing"
	says := func(err error) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), bad) || !strings.Contains(err.Error(), "tcp_available") {
			t.Error(err)
		}
	}
	lc := net.ListenConfig{Control: Listening(bad)}
	_, err := lc.Listen(context.Background(), "tcp", "127.0.0.1:0")
	says(err)
	d := net.Dialer{Control: Dialing(bad)}
	_, err = d.Dial("tcp", "127.0.0.1:1")
	says(err)
	cl, sv := pair(t, Host, Host, "127.0.0.1:0")
	says(Apply(bad, cl))
	says(Accepted(bad, sv))
	p, q := net.Pipe()
	defer p.Close()
	defer q.Close()
	if err := Apply(bad, p); err != nil {
		t.Errorf("a connection that is not TCP: %v", err)
	}
}

func TestOwnAddress(t *testing.T) {
	for s, want := range map[string]bool{"127.3.2.1": true, "::1": true, "::ffff:127.0.0.1": true, "0.0.0.0": true, "192.0.2.1": false, "2001:db8::1": false} {
		if got := ours(netip.MustParseAddr(s)); got != want {
			t.Errorf("%s: %v", s, got)
		}
	}
	own, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range own {
		if n, ok := o.(*net.IPNet); ok && !ours(netip.MustParseAddr(n.IP.String())) {
			t.Errorf("%v is of an interface of this host", n)
		}
	}
}
