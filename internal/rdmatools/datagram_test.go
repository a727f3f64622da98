package rdmatools

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"softiser/rdma"
	"softiser/rdma/rdmatest"
)

// Each pingpong with itself; the originals are in interop.
func TestPingPongs(t *testing.T) {
	for _, k := range []string{"rc", "uc", "ud"} {
		t.Run(k, func(t *testing.T) {
			for _, opts := range [][]string{{"-n", "200"}, {"-n", "20", "-s", "1", "-r", "2"}, {"-n", "1", "--json"}} {
				s, c := rdmatest.RoCEAddr().String(), rdmatest.RoCEAddr().String()
				sout, cout := both(t,
					append([]string{k + "-pingpong", "--bind_source_ip", s}, opts...),
					append([]string{k + "-pingpong", "--bind_source_ip", c, s}, opts...))
				for _, out := range []string{sout, cout} {
					if slices.Contains(opts, "--json") {
						var m map[string]any
						if err := json.Unmarshal([]byte(out), &m); err != nil || m["iterations"] != 1.0 {
							t.Errorf("%v: %s", err, out)
						}
						continue
					}
					if !strings.Contains(out, "  local address:  LID 0x0000, QPN 0x") || !strings.Contains(out, "GID ::ffff:127.") || !strings.HasSuffix(out, " usec/iter\n") {
						t.Errorf("%v: %q", opts, out)
					}
				}
			}
		})
	}
}

// What ibv_rc_pingpong has sent as its destination, and what is none.
func TestPingPongDestination(t *testing.T) {
	const seen = "0000:000011:8e2c5a:00000000000000000000ffff0a090002\x00"
	want := pingpongDest{Endpoint: rdma.Endpoint{Addr: netip.MustParseAddr("10.9.0.2"), QPN: 17, PSN: 0x8e2c5a}}
	var d pingpongDest
	if err := d.parse([]byte(seen)); err != nil || d != want {
		t.Errorf("%+v, %v", d, err)
	}
	if b := want.append(nil); string(b) != seen || len(b) != pingpongDestLen {
		t.Errorf("%q", b)
	}
	for _, bad := range []string{
		"", "done", strings.Replace(seen, "000011", "1000011", 1), strings.Replace(seen, ":", ";", 1), strings.Replace(seen, "8e2c5a", "8e2c5g", 1),
		seen[:len(seen)-3] + "\x00", strings.Repeat("\x00", pingpongDestLen), "0000:000011:8e2c5a:00000000000000000000000000000000\x00",
	} {
		if err := new(pingpongDest).parse([]byte(bad)); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
}

// An end that goes away in the middle of the exchange, or says nonsense, ends the attempt.
func TestPingPongHostile(t *testing.T) {
	for _, words := range []string{"", "0000:000011", strings.Repeat("x", pingpongDestLen), "0000:000011:8e2c5a:00000000000000000000ffff0a090002\x00"} {
		addr := rdmatest.RoCEAddr().String()
		done := make(chan error, 1)
		go func() {
			_, err := tool(t.Context(), "ud-pingpong", "--bind_source_ip", addr)
			done <- err
		}()
		if err := served(t, func() error {
			nc, err := net.Dial("tcp", net.JoinHostPort(addr, "18515"))
			if err == nil {
				_, _ = nc.Write([]byte(words))
				_ = nc.Close()
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
		if err := <-done; err == nil {
			t.Errorf("%q: the server says nothing", words)
		}
	}
}

func TestUDAddy(t *testing.T) {
	for _, opts := range [][]string{{}, {"-c", "3", "-C", "50", "-S", "4096"}, {"-C", "0"}, {"-S", "0"}} {
		s, c := rdmatest.RoCEAddr().String(), rdmatest.RoCEAddr().String()
		sout, cout := both(t, append([]string{"udaddy", "-b", s}, opts...), append([]string{"udaddy", "-b", c, "-s", s}, opts...))
		for _, out := range []string{sout, cout} {
			if !strings.HasSuffix(out, "test complete\nreturn status 0\n") || slices.Contains(opts, "0") == strings.Contains(out, "data transfers complete") {
				t.Errorf("%v: %s", opts, out)
			}
		}
	}
}

// A client that asks for fewer queue pairs than the server has does not keep it waiting.
func TestUDAddyFewer(t *testing.T) {
	s, c := rdmatest.RoCEAddr().String(), rdmatest.RoCEAddr().String()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	done := make(chan error, 1)
	go func() {
		_, err := tool(ctx, "udaddy", "-b", s, "-c", "2", "--timeout", "50ms")
		done <- err
	}()
	_ = served(t, func() error {
		_, err := tool(ctx, "udaddy", "-b", c, "-s", s, "--timeout", "50ms")
		return err
	})
	if err := <-done; !errors.Is(err, rdma.ErrTimeout) || !strings.Contains(err.Error(), "the same -c") {
		t.Error(err)
	}
}

// Datagrams that do not come are waited for as long as was asked for.
func TestUDAddyLost(t *testing.T) {
	s, c := rdmatest.RoCEAddr().String(), rdmatest.RoCEAddr().String()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	done := make(chan error, 1)
	go func() {
		_, err := tool(ctx, "udaddy", "-b", s, "-C", "11", "--timeout", "300ms")
		done <- err
	}()
	if err := served(t, func() error {
		_, err := tool(ctx, "udaddy", "-b", c, "-s", s, "-C", "10", "--timeout", "300ms")
		return err
	}); !errors.Is(err, rdma.ErrTimeout) {
		t.Errorf("the client, which is not answered: %v", err)
	}
	if err := <-done; !errors.Is(err, rdma.ErrTimeout) || !strings.Contains(err.Error(), " of 11 datagrams came") {
		t.Errorf("the server: %v", err)
	}
}

func TestMCKey(t *testing.T) {
	const group = "239.77.3.4"
	r, s := rdmatest.RoCEAddr().String(), rdmatest.RoCEAddr().String()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	// The receiver has joined when it says so.
	var out bytes.Buffer
	joined, done := make(chan struct{}, 1), make(chan error, 1)
	m := mckeyCommand()
	m.SetArgs([]string{"-m", group, "-b", r, "-C", "20", "-S", "1000"})
	m.SilenceErrors = true
	m.SetOut(writer(func(b []byte) (int, error) {
		if bytes.Contains(b, []byte("receiving")) {
			joined <- struct{}{}
		}
		return out.Write(b)
	}))
	go func() { done <- m.ExecuteContext(ctx) }()
	select {
	case <-joined:
	case err := <-done:
		t.Skipf("no multicast on loopback here: %v", err)
	}
	sent, err := tool(ctx, "mckey", "-m", group, "-b", s, "-s", "-C", "20", "-S", "1000", "--settle", "0s")
	if err != nil {
		t.Error(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	for role, out := range map[string]string{"client": sent, "server": out.String()} {
		if !strings.HasPrefix(out, "mckey: starting "+role+"\nmckey: joining\nmckey: joined dgid: ::ffff:239.77.3.4 ") || !strings.HasSuffix(out, "data transfers complete\ntest complete\nreturn status 0\n") {
			t.Errorf("%s: %q", role, out)
		}
	}
}

// What the tools for datagrams refuse, and how they say so.
func TestDatagramArguments(t *testing.T) {
	at := rdmatest.RoCEAddr().String()
	for want, args := range map[string][]string{
		"say which (-b)":               {"udaddy"},
		`local address "x"`:            {"udaddy", "-b", "x"},
		"-S 4097: a datagram":          {"udaddy", "-b", at, "-S", "4097"},
		"1 to 1024 queue pairs":        {"udaddy", "-b", at, "-c", "0"},
		"address of a multicast group": {"mckey", "-b", at, "-m", "10.0.0.1"},
		`mckey: -b ""`:                 {"mckey", "-m", "239.1.2.3"},
		"mckey: want 1 to 1024":        {"mckey", "-b", at, "-m", "239.1.2.3", "-C", "-1"},
		"pingpong: -s 0":               {"rc-pingpong", "-s", "0"},
		"pingpong: -n 0":               {"uc-pingpong", "-n", "0"},
		"pingpong: -r 0":               {"ud-pingpong", "-r", "0"},
		"unknown shorthand flag: 'm'":  {"ud-pingpong", "-m", "1024"},
		"of different families":        {"mckey", "-b", at, "-m", "ff15::1"},
	} {
		if out, err := tool(t.Context(), args...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, %s; want %q", args, err, out, want)
		}
	}
}
