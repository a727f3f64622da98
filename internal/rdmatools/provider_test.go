package rdmatools

import (
	"context"
	"encoding/json"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"softiser/rdma"
	"softiser/rdma/rdmatest"
)

// ends are the arguments of a server and a client that find each other.
type ends struct{ server, client []string }

// rocePerf are those of the measurements over RoCE: UDP port 4791 belongs to one process
// for each address, and other tests have theirs.
func rocePerf() ends {
	s, c := rdmatest.RoCEAddr().String(), rdmatest.RoCEAddr().String()
	return ends{
		server: []string{"--provider", "roce", "--bind_source_ip", s},
		client: []string{s, "--provider", "roce", "--bind_source_ip", c},
	}
}

func TestRPingRoCE(t *testing.T) {
	for _, opts := range [][]string{{}, {"-S", "17"}, {"-S", "65535"}, {"-S", "4096", "-m", "256"}} {
		s, c := rdmatest.RoCEAddr().String(), rdmatest.RoCEAddr().String()
		sopts := opts[:min(len(opts), 2)] // the path MTU is the client's
		sout, cout := both(t,
			append([]string{"rping", "-s", "--provider", "roce", "-a", s, "-v", "-C", "3"}, sopts...),
			append([]string{"rping", "-c", "--provider", "roce", "-a", s, "-I", c, "-v", "-V", "-d", "-C", "3"}, opts...))
		if n := strings.Count(sout, "server ping data: rdma-ping-"); n != 3 {
			t.Errorf("%v: the server printed %q", opts, sout)
		}
		if n := strings.Count(cout, "\nping data: rdma-ping-"); n != 3 || !strings.Contains(cout, "path MTU") {
			t.Errorf("%v: the client printed %q", opts, cout)
		}
	}
}

func TestUCMatoseRoCE(t *testing.T) {
	for _, opts := range [][]string{{}, {"-c", "4", "-C", "50", "-S", "5000"}, {"-C", "0"}, {"-S", "0"}} {
		s, c := rdmatest.RoCEAddr().String(), rdmatest.RoCEAddr().String()
		sout, cout := both(t,
			append([]string{"ucmatose", "--provider", "roce", "-b", s}, opts...),
			append([]string{"ucmatose", "--provider", "roce", "-b", c, "-s", s}, opts...))
		for _, out := range []string{sout, cout} {
			if !strings.Contains(out, "test complete\nreturn status 0\n") {
				t.Errorf("%v: %s", opts, out)
			}
		}
	}
}

// Every measurement over RoCE, by this program's own exchange and by perftest's.
func TestPerfRoCE(t *testing.T) {
	for _, k := range perfKinds {
		t.Run(k.name, func(t *testing.T) {
			for _, opts := range [][]string{{"-n", "300"}, {"-D", "30ms"}, {"-n", "20", "-R"}} {
				e := rocePerf()
				server := []string{k.name}
				if slices.Contains(opts, "-R") {
					server = append(server, opts[:2]...)
				}
				_, c := both(t, append(server, e.server...), slices.Concat([]string{k.name}, e.client, []string{"--json"}, opts))
				var d perfDoc
				if err := json.Unmarshal([]byte(c), &d); err != nil {
					t.Fatalf("%v: %s", err, c)
				}
				if d.Iterations < 1 || opts[0] == "-n" && opts[1] == "300" && d.Iterations != 300 || d.MsgRate <= 0 || !d.CRC || d.Provider != "roce" || d.MTU != 4096 {
					t.Errorf("%+v", d)
				}
				if (d.Latency != nil) != k.latency || (d.MBps > 0) == k.latency {
					t.Errorf("%+v", d)
				}
			}
		})
	}
}

// Unreliable connections are measured as well, by both exchanges; the control connection of
// perftest's stays a reliable one. What is in flight fits the receive buffer.
func TestPerfUC(t *testing.T) {
	for _, k := range perfKinds {
		if k.answered() {
			continue
		}
		t.Run(k.name, func(t *testing.T) {
			e := rocePerf()
			opts := []string{"-c", "UC", "-n", "50", "-s", "64"}
			if !k.latency {
				opts = append(opts, "-t", "8")
			}
			for _, own := range [][]string{nil, {"-R"}} {
				_, c := both(t, slices.Concat([]string{k.name}, e.server, opts), slices.Concat([]string{k.name}, e.client, []string{"--json"}, opts, own))
				var d perfDoc
				if err := json.Unmarshal([]byte(c), &d); err != nil || d.Iterations != 50 || d.QPType != "UC" {
					t.Errorf("%v: %v: %s", own, err, c)
				}
			}
		})
	}
	e := rocePerf()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	done := make(chan error, 1)
	go func() {
		_, err := tool(ctx, append([]string{"send-lat"}, e.server...)...)
		done <- err
	}()
	err := served(t, func() error {
		_, err := tool(ctx, slices.Concat([]string{"send-lat", "-c", "UC"}, e.client)...)
		return err
	})
	if serr := <-done; err == nil || serr == nil || !strings.Contains(err.Error(), "the server has queue pairs of type RC, the client UC") {
		t.Errorf("client: %v; server: %v", err, serr)
	}
}

// Datagrams are measured too; a size that was not asked for is cut to what they carry.
func TestPerfUD(t *testing.T) {
	for _, k := range []string{"send-bw", "send-lat"} {
		for _, opts := range [][]string{{"-n", "200"}, {"-n", "50", "-s", "64"}} {
			e := rocePerf()
			if k == "send-bw" {
				opts = append(opts, "-t", "8")
			}
			_, c := both(t, slices.Concat([]string{k, "-c", "UD"}, e.server), slices.Concat([]string{k, "-c", "UD", "--json"}, e.client, opts))
			var d perfDoc
			if err := json.Unmarshal([]byte(c), &d); err != nil || d.MsgRate <= 0 || d.QPType != "UD" || d.Size > 4096 {
				t.Errorf("%v: %s", err, c)
			}
		}
	}
	e := rocePerf()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	if _, err := tool(ctx, slices.Concat([]string{"send-lat", "-c", "UD", "-s", "4097"}, e.client)...); err == nil || !strings.Contains(err.Error(), "a datagram carries 4096 bytes") {
		t.Errorf("too long: %v", err)
	}
	done := make(chan error, 1)
	go func() {
		_, err := tool(ctx, slices.Concat([]string{"send-lat", "-c", "UD"}, e.server)...)
		done <- err
	}()
	err := served(t, func() error {
		_, err := tool(ctx, slices.Concat([]string{"send-bw", "-c", "UD"}, e.client)...)
		return err
	})
	if serr := <-done; serr == nil || !errors.Is(err, rdma.ErrRejected) || !strings.HasSuffix(err.Error(), "the server runs send-lat, the client send-bw") {
		t.Errorf("client: %v; server: %v", err, serr)
	}
}

// Somebody else's lookup, whatever it asks for, does not end the test of a client.
func TestPerfUDStrangers(t *testing.T) {
	client := rdma.RoCEAddr(netip.MustParseAddrPort("127.0.0.2:50000"))
	d := &perfDatagrams{
		s:      &perfServer{endpoint: &endpoint{qp: new(rdma.QP)}, perf: &perf{kind: perfKinds[2]}},
		client: netip.AddrPort(client).Addr(), asked: client, done: make(chan error, 1),
	}
	for _, private := range [][]byte{nil, []byte("SSH-2.0"), (&perfOffer{Test: perfEnd}).append(nil), (&perfOffer{Test: "read-bw"}).append(nil)} {
		stranger := rdma.RoCEAddr(netip.MustParseAddrPort("127.0.0.3:50000"))
		if a := d.lookup(&rdma.Lookup{Remote: stranger, PrivateData: private}); a.QP != nil || !strings.Contains(string(a.PrivateData), "another client") {
			t.Errorf("%q: %+v", private, a)
		}
		select {
		case err := <-d.done:
			t.Errorf("%q has ended the test: %v", private, err)
		default:
		}
	}
	if a := d.lookup(&rdma.Lookup{Remote: client, PrivateData: (&perfOffer{Test: perfEnd}).append(nil)}); a.QP == nil || <-d.done != nil {
		t.Errorf("the client itself: %+v", a)
	}
}

// A server waits for its first client without end, but not for one that has left without a word.
func TestPerfUDClientGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &perfDatagrams{s: &perfServer{endpoint: &endpoint{qp: new(rdma.QP)}}, done: make(chan error, 1)}
		ended := make(chan error, 1)
		go func() { ended <- d.wait(t.Context()) }()
		goesOn := func(when string) {
			t.Helper()
			synctest.Wait()
			select {
			case err := <-ended:
				t.Fatalf("%s: %v", when, err)
			default:
			}
		}
		time.Sleep(time.Hour)
		goesOn("before there is a client")
		for range 100 {
			d.s.progress.Add(1)
			time.Sleep(patience - time.Second)
			goesOn("while messages come")
		}
		time.Sleep(2*patience + time.Second)
		synctest.Wait()
		select {
		case err := <-ended:
			if !errors.Is(err, rdma.ErrTimeout) {
				t.Error(err)
			}
		default:
			t.Error("the server still waits")
			d.finish(nil)
		}
	})
}

// Over RoCE a client that was killed says nothing, over iWARP the kernel does for it.
func TestPerfClientKilled(t *testing.T) {
	for provider, gone := range map[string]bool{"roce": true, "iwarp": false} {
		synctest.Test(t, func(t *testing.T) {
			s := &perfServer{endpoint: &endpoint{qp: new(rdma.QP)}, perf: &perf{transport: transport{provider: provider}}}
			ctx, cancel := context.WithTimeout(t.Context(), 3*patience)
			defer cancel()
			if err := s.wait(ctx); errors.Is(err, rdma.ErrTimeout) != gone {
				t.Errorf("%s: %v", provider, err)
			}
		})
	}
}

// Both atomic operations do what they say.
func TestAtomicTypes(t *testing.T) {
	for _, op := range []string{"FETCH_AND_ADD", "CMP_AND_SWAP"} {
		port := freePort(t)
		_, c := both(t, []string{"atomic-lat", "-p", port}, []string{"atomic-lat", "127.0.0.1", "-p", port, "-n", "10", "-A", op, "--json"})
		var d perfDoc
		if err := json.Unmarshal([]byte(c), &d); err != nil || d.Iterations != 10 || d.Size != 8 {
			t.Errorf("%s: %v, %s", op, err, c)
		}
	}
}

// A client is told in words why the server does not want it, over RoCE too, where they
// are padded and cut.
func TestPerfMismatchRoCE(t *testing.T) {
	e := rocePerf()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	done := make(chan error, 1)
	go func() {
		_, err := tool(ctx, append([]string{"read-bw"}, e.server...)...)
		done <- err
	}()
	err := served(t, func() error {
		_, err := tool(ctx, append([]string{"write-bw"}, e.client...)...)
		return err
	})
	if err == nil || !strings.HasSuffix(err.Error(), "the server runs read-bw, the client write-bw") || !errors.Is(err, rdma.ErrRejected) {
		t.Errorf("the client says: %v", err)
	}
	if err := <-done; err == nil {
		t.Error("the server says nothing")
	}
}

// What means nothing to the provider is refused by its name.
func TestFlagsOfProviders(t *testing.T) {
	for want, args := range map[string][]string{
		"--crc goes with --provider iwarp only":           {"rping", "-s", "--provider", "roce", "-a", "127.0.0.1", "--crc", "off"},
		"--congestion goes with --provider iwarp only":    {"write-bw", "h", "--provider", "roce", "--congestion", "cubic"},
		"--mtu goes with --provider roce only":            {"rping", "-c", "-m", "1024"},
		"--source goes with --provider roce only":         {"rping", "-c", "-I", "127.0.0.1"},
		"--bind_source_ip goes with --provider roce only": {"read-lat", "--bind_source_ip", "127.0.0.1"},
		`provider "rxe"`:               {"ucmatose", "--provider", "rxe"},
		"say which (-a)":               {"rping", "-s", "--provider", "roce"},
		"say which (-b)":               {"ucmatose", "--provider", "roce"},
		"say which (--bind_source_ip)": {"send-lat", "--provider", "roce"},
		`local address "x"`:            {"send-lat", "h", "--provider", "roce", "--bind_source_ip", "x"},
		"path MTU 1500: want 256, 512, 1024, 2048 or 4096": {"rping", "-c", "--provider", "roce", "-m", "1500"},
		"-A SWAP": {"atomic-bw", "h", "-A", "SWAP"},
	} {
		if out, err := tool(t.Context(), args...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, %s; want %q", args, err, out, want)
		}
	}
}

// What one end offers the other reads, with or without the padding of RoCE.
func TestPerfOffer(t *testing.T) {
	for _, k := range perfKinds {
		want := perfOffer{k.name, 1 << 28, 4096, rdma.RemoteAddr{TO: 1<<63 + 5, STag: 0xfedcba98}}
		b := want.append(nil)
		if len(b) > 56 {
			t.Errorf("%d bytes do not fit a request over RoCE", len(b))
		}
		for _, pad := range []int{0, 20} {
			var got perfOffer
			if err := got.parse(append(b[:len(b):len(b)], make([]byte, pad)...)); err != nil || got != want {
				t.Errorf("%+v, %v; want %+v", got, err, want)
			}
		}
	}
	o := perfOffer{Test: "write-bw"}
	good := string(o.append(nil))
	for _, b := range []string{"", good[1:], good[:35], good + "x", "SP01" + good[4:]} {
		if err := new(perfOffer).parse([]byte(b)); err == nil {
			t.Errorf("%q was taken", b)
		}
	}
}

// without takes an option with its value away, if the measurement has none of it.
func without(k perfKind, opts []string, option string) []string {
	if i := slices.Index(opts, option); i >= 0 && k.atomic() {
		return slices.Delete(slices.Clone(opts), i, i+2)
	}
	return opts
}
