// Package loopback gives tests the two ends of a TCP connection, addresses to listen
// on, ports in front of others that fall silent or are choosy, all on 127.0.0.1, and a loopback of
// their own.
package loopback

import (
	"math/rand/v2"
	"net"
	"strconv"
	"testing"
)

// Pair returns the two ends of a new connection; the caller closes them.
func Pair(t testing.TB) (client, server *net.TCPConn) {
	t.Helper()
	ln := listen(t)
	defer ln.Close()
	c, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	s, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	return c.(*net.TCPConn), s.(*net.TCPConn)
}

// FreeAddr returns an address that nobody listens on, for a server that another
// process, or the code under test, starts. Where the test itself listens it uses port 0.
// The port is one that the system does not hand out itself, to a connection of somebody
// else, and no other test gets it until this one has ended.
func FreeAddr(t testing.TB) string {
	t.Helper()
	const first, last = 10000, 20000
	start := rand.IntN(last - first)
	for i := range last - first {
		port := strconv.Itoa(first + (start+i)%(last-first))
		// An abstract socket is a mark that goes with its process, however that ends.
		mark, err := net.Listen("unix", "@softiser-test-port-"+port)
		if err != nil {
			continue
		}
		ln, err := net.Listen("tcp", "127.0.0.1:"+port)
		if err != nil {
			mark.Close()
			continue
		}
		ln.Close()
		t.Cleanup(func() { mark.Close() })
		return "127.0.0.1:" + port
	}
	t.Fatalf("every port from %d to %d is taken", first, last)
	return ""
}

// NeedIPv6 skips a test where there is no ::1.
func NeedIPv6(t testing.TB) {
	t.Helper()
	ln, err := net.Listen("tcp", "[::1]:0")
	if err != nil {
		t.Skip("no IPv6 here: ", err)
	}
	ln.Close()
}

func listen(t testing.TB) net.Listener {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return ln
}
