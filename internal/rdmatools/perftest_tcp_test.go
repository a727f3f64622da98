package rdmatools

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"

	"softiser/rdma"
	"softiser/rdma/rdmatest"
)

// A destination as perftest 4.5-0.17's KEY_PRINT_FMT_GID (perftest_communication.h) has it.
const (
	ptTextSeen = "0000:0080:000011:8e2c5a:00001a2b:00005590be7b2000:00:00:00:00:00:00:00:00:00:00:ff:ff:0a:09:00:02:00000000:\x00"
	ptTextNone = "0000:0001:000011:8e2c5a:00001a2b:00005590be7b2000:00000000\x00" // KEY_PRINT_FMT
)

func TestPerftestTextDestination(t *testing.T) {
	want := ptTextDest{ptDest: ptDest{Reads: 128, QPN: 17, RKey: 0x1a2b, VAddr: 0x5590be7b2000}, PSN: 0x8e2c5a, Addr: netip.MustParseAddr("10.9.0.2")}
	var d ptTextDest
	if err := d.parse([]byte(ptTextSeen)); err != nil || d != want {
		t.Errorf("%+v, %v", d, err)
	}
	if b := want.append(nil); string(b) != ptTextSeen || len(b) != ptTextLen {
		t.Errorf("%q", b)
	}
	for _, bad := range []string{
		"", ptTextNone, ptTextSeen[1:], ptTextSeen + "\x00", strings.Repeat(":", ptTextLen), strings.Repeat("\x00", ptTextLen),
		strings.Replace(ptTextSeen, "000011:", "00011:0", 1), strings.Replace(ptTextSeen, "8e2c5a", "8e2c5g", 1), strings.Replace(ptTextSeen, "0080", "+080", 1),
		strings.Replace(strings.Replace(ptTextSeen, "ff:ff", "00:00", 1), "0a:09:00:02", "00:00:00:00", 1), ptTextSeen[:ptTextLen-1] + "0",
	} {
		if err := new(ptTextDest).parse([]byte(bad)); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
}

// What is taken is written again byte for byte, but for LID and SRQN.
func FuzzPerftestTextDestination(f *testing.F) {
	f.Add([]byte(ptTextSeen))
	f.Add([]byte(ptTextNone))
	f.Fuzz(func(t *testing.T, b []byte) {
		var d, again ptTextDest
		if d.parse(b) != nil {
			return
		}
		out := d.append(nil)
		if len(out) != ptTextLen {
			t.Fatalf("%q became %q", b, out)
		}
		if err := again.parse(out); err != nil || again != d {
			t.Fatalf("%q: %+v, then %+v, %v", b, d, again, err)
		}
	})
}

// Each measurement over perftest's TCP exchange, with this program at both ends.
func TestPerftestTCP(t *testing.T) {
	for _, k := range perfKinds {
		t.Run(k.name, func(t *testing.T) {
			runs := [][]string{{"-n", "50", "-s", "64"}, {"-n", "700", "-s", "5000"}}
			if !k.answered() {
				runs = append(runs, []string{"-n", "20", "-s", "1", "-c", "UC", "-m", "256"})
			}
			if k.op == rdma.OpSend { // the last of a size that is cut to the MTU, as nobody has asked for one
				runs = append(runs, []string{"-n", "50", "-s", "64", "-c", "UD"}, []string{"-n", "300", "-s", "4096", "-c", "UD"}, []string{"-n", "5", "-c", "UD", "-m", "256"})
			}
			for _, opts := range runs {
				opts = append(without(k, opts, "-s"), "--json", "--tcp-exchange")
				at := rocePerf()
				s, c := both(t, append(append([]string{k.name}, at.server...), opts...), append(append([]string{k.name}, at.client...), opts...))
				var d, sd perfDoc
				if err := json.Unmarshal([]byte(c), &d); err != nil {
					t.Fatalf("%v: %s", err, c)
				}
				if d.Iterations < 1 || d.MsgRate <= 0 || (d.Latency != nil) != k.latency || d.MTU != 4096 && d.MTU != 256 {
					t.Errorf("%+v", d)
				}
				if k.latency && k.answered() {
					continue // perftest's server has nothing to tell then
				}
				if err := json.Unmarshal([]byte(s), &sd); err != nil {
					t.Fatalf("%v: %s", err, s)
				}
				if sd.Iterations != d.Iterations || sd.MsgRate <= 0 {
					t.Errorf("the server has %+v, the client %+v", sd, d)
				}
			}
		})
	}
}

// A client that is not what it seems, or leaves, ends the server's attempt with a reason.
func TestPerftestTCPHostileClient(t *testing.T) {
	const version = "6.06\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"
	const greeting = version + "\x00\x00\x10\x00" + "\x00\x00\x00\x40"
	for _, c := range []struct{ name, says, want string }{
		{"ends at once", "", "has not said"},
		{"old version", strings.Replace(version, "6.06", "5.60", 1), "5.70 or later"},
		{"huge cycle", version + "\xff\xff\xff\xff", "buffer cycle"},
		{"no MTU", greeting + "9\x00", "path MTU"},
		{"no GID", greeting + "3\x00" + ptTextNone, "no GID"},
		{"no destination", greeting + "3\x00" + strings.Repeat("x", ptTextLen), "where its queue pair is"},
		{"another family", greeting + "3\x00" + strings.Replace(ptTextSeen, "ff:ff", "fe:ff", 1), "a connection from"},
		{"leaves before the test", greeting + "3\x00" + strings.Repeat(strings.Replace(ptTextSeen, "0a:09:00:02", "7f:00:00:01", 1), 4), "has left"},
	} {
		t.Run(c.name, func(t *testing.T) {
			addr := rdmatest.RoCEAddr().String()
			done := make(chan error, 1)
			go func() {
				_, err := tool(t.Context(), "send-lat", "--provider", "roce", "--tcp-exchange", "--bind_source_ip", addr)
				done <- err
			}()
			if err := served(t, func() error {
				nc, err := net.Dial("tcp", net.JoinHostPort(addr, fmt.Sprint(perfPort)))
				if err == nil {
					_, _ = nc.Write([]byte(c.says))
					_ = nc.(*net.TCPConn).CloseWrite()
					defer nc.Close()
					_, _ = io.Copy(io.Discard, nc)
				}
				return err
			}); err != nil {
				t.Fatal(err)
			}
			if err := <-done; err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("the server: %v, want %q", err, c.want)
			}
		})
	}
}

func TestPerftestTCPUsage(t *testing.T) {
	for _, args := range [][]string{
		{"write-bw", "--tcp-exchange"},
		{"write-bw", "--tcp-exchange", "--provider", "roce", "-R", "127.0.0.1"},
		{"send-bw", "--perftest", "--provider", "roce", "-c", "UD", "127.0.0.1"},
		{"send-bw", "--tcp-exchange", "--provider", "roce", "-D", "1", "127.0.0.1"},
	} {
		if _, err := tool(t.Context(), args...); err == nil || !strings.Contains(err.Error(), "--tcp-exchange") && !strings.Contains(err.Error(), "perftest's exchanges") {
			t.Errorf("%v: %v", args, err)
		}
	}
}

// FuzzExchange reads what the other end of a test tells in binary, and what it says of pingpong. What is understood
// can be written and understood again.
func FuzzExchange(f *testing.F) {
	f.Add((&ptDest{128, 17, 0x1a2b, 0x5590be7b2000}).append(nil))
	f.Add((&pingpongDest{1, rdma.Endpoint{Addr: netip.MustParseAddr("10.9.0.2"), QPN: 17, PSN: 5}}).append(nil))
	f.Add((&pingpongDest{0, rdma.Endpoint{Addr: netip.MustParseAddr("fe80::1")}}).append(nil))
	f.Add((&perfOffer{"send-bw", 65536, 128, rdma.RemoteAddr{TO: 1 << 40, STag: 7}}).append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		var d, d2 ptDest
		if d.parse(b) == nil && (d2.parse(d.append(nil)) != nil || d != d2) {
			t.Errorf("%+v became %+v", d, d2)
		}
		var p, p2 pingpongDest
		if p.parse(b) == nil && (p2.parse(p.append(nil)) != nil || p != p2 || len(p.append(nil)) != pingpongDestLen) {
			t.Errorf("%+v became %+v", p, p2)
		}
		var o, o2 perfOffer
		if o.parse(b) == nil && (o2.parse(o.append(nil)) != nil || o != o2) {
			t.Errorf("%+v became %+v", o, o2)
		}
	})
}

// A signal is no failure of the network, by which programs would take it for a refused connection:
// neither of a server that waits for its client, nor of one whose client says nothing.
func TestInterrupted(t *testing.T) {
	for _, args := range [][]string{{"rc-pingpong"}, {"write-bw", "--provider", "roce", "--tcp-exchange"}} {
		for _, silent := range []bool{false, true} {
			addr := rdmatest.RoCEAddr().String()
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			if !silent {
				cancel()
			}
			go func() {
				_, err := tool(ctx, append(args, "--bind_source_ip", addr)...)
				done <- err
			}()
			if silent {
				if err := served(t, func() error {
					nc, err := net.Dial("tcp", net.JoinHostPort(addr, fmt.Sprint(perfPort)))
					if err == nil {
						t.Cleanup(func() { nc.Close() })
					}
					return err
				}); err != nil {
					t.Fatal(err)
				}
			}
			cancel()
			var op *net.OpError
			if err := <-done; !errors.Is(err, context.Canceled) || errors.As(err, &op) {
				t.Errorf("%v, with a silent client %v: %v", args, silent, err)
			}
		}
	}
}
