// Package loopback gives tests the two ends of a TCP connection, and addresses
// to listen on, on 127.0.0.1.
package loopback

import (
	"net"
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
// process, or the code under test, starts. Somebody else may take the port first;
// where the test itself listens it uses port 0.
func FreeAddr(t testing.TB) string {
	t.Helper()
	ln := listen(t)
	defer ln.Close()
	return ln.Addr().String()
}

func listen(t testing.TB) net.Listener {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return ln
}
