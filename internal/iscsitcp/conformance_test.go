package iscsitcp

import (
	"fmt"
	"net"
	"testing"

	"softiser/internal/iscsi"
	"softiser/internal/iscsi/datamovertest"
)

// tcpPair connects two sockets over loopback.
func tcpPair(t testing.TB) (client, server net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ch := make(chan net.Conn, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			t.Error(err)
		}
		ch <- c
	}()
	client, err = net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return client, <-ch
}

func pairWith(cfg Config) datamovertest.Pair {
	return func(t testing.TB) (iscsi.Datamover, iscsi.Datamover) {
		a, b := tcpPair(t)
		i, err := New(a, iscsi.RoleInitiator, cfg)
		if err != nil {
			t.Fatal(err)
		}
		g, err := New(b, iscsi.RoleTarget, cfg)
		if err != nil {
			t.Fatal(err)
		}
		return i, g
	}
}

func TestConformance(t *testing.T) {
	datamovertest.Run(t, pairWith(Config{}))
	if n := BuffersOut(); n != 0 {
		t.Errorf("%d receive buffers were not given back", n)
	}
}

func BenchmarkDatamover(b *testing.B) { datamovertest.Benchmark(b, pairWith(Config{})) }

var _ = fmt.Sprint
