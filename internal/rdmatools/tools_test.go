package rdmatools

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"softiser/internal/await"
	"softiser/internal/loopback"
	"softiser/rdma"
)

func freePort(t *testing.T) string {
	_, port, _ := strings.Cut(loopback.FreeAddr(t), ":")
	return port
}

// tool runs one command line to its end.
func tool(ctx context.Context, args ...string) (string, error) {
	cmd := &cobra.Command{Use: "test", SilenceErrors: true, SilenceUsage: true}
	cmd.AddCommand(Command())
	var out bytes.Buffer
	var mu sync.Mutex
	cmd.SetOut(writer(func(b []byte) (int, error) { mu.Lock(); defer mu.Unlock(); return out.Write(b) }))
	cmd.SetErr(cmd.OutOrStdout())
	cmd.SetArgs(append([]string{"rdma"}, args...))
	err := cmd.ExecuteContext(ctx)
	mu.Lock()
	defer mu.Unlock()
	return out.String(), err
}

type writer func([]byte) (int, error)

func (f writer) Write(b []byte) (int, error) { return f(b) }

// served repeats f until something listens where f connects to, and returns what
// it ended with then.
func served(t testing.TB, f func() error) (err error) {
	t.Helper()
	await.True(t, "the server listens", func() bool {
		err = f()
		return !errors.Is(err, syscall.ECONNREFUSED)
	})
	return err
}

// both runs server and client.
func both(t *testing.T, server, client []string) (sout, cout string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	var wg sync.WaitGroup
	var serr error
	wg.Go(func() { sout, serr = tool(ctx, server...) })
	cerr := served(t, func() (err error) {
		cout, err = tool(ctx, client...)
		return err
	})
	if cerr != nil {
		cancel()
	}
	wg.Wait()
	if cerr != nil || serr != nil {
		t.Fatalf("client: %v\n%s\nserver: %v\n%s", cerr, cout, serr, sout)
	}
	return sout, cout
}

func TestRPing(t *testing.T) {
	for _, opts := range [][]string{{}, {"--crc=off"}, {"--p2p"}, {"--large-fpdu"}, {"--mpa-rev=1"}} {
		for _, size := range []string{"17", "64", "4096", "65535"} {
			port := freePort(t)
			s, c := both(t,
				append([]string{"rping", "-s", "-a", "127.0.0.1", "-p", port, "-v", "-S", size, "-C", "3"}, opts...),
				append([]string{"rping", "-c", "-a", "127.0.0.1", "-p", port, "-v", "-V", "-d", "-S", size, "-C", "3"}, opts...))
			if n := strings.Count(s, "server ping data: rdma-ping-"); n != 3 {
				t.Errorf("%v: the server printed %q", opts, s)
			}
			if n := strings.Count(c, "\nping data: rdma-ping-"); n != 3 {
				t.Errorf("%v: the client printed %q", opts, c)
			}
		}
	}
}

// The tools' words for the CRC are those of the verbs: off refuses, offered follows.
func TestCRCWords(t *testing.T) {
	for word, want := range map[string]rdma.CRCMode{"required": rdma.CRCRequired, "offered": rdma.CRCOffered, "off": rdma.CRCOff} {
		if p, err := (&transport{crc: word, rev: 2}).params(); err != nil || p.CRC != want {
			t.Errorf("--crc %s means %v, %v", word, p.CRC, err)
		}
	}
	port := freePort(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = tool(ctx, "rping", "-s", "-a", "127.0.0.1", "-p", port, "-C", "1")
	}()
	err := served(t, func() error {
		_, err := tool(ctx, "rping", "-c", "-a", "127.0.0.1", "-p", port, "-C", "1", "--crc=off")
		return err
	})
	if !errors.Is(err, rdma.ErrRefused) {
		t.Errorf("a server that insists on CRC, a client that has it off: %v", err)
	}
	cancel()
	<-done
}

// Frames above the path's segments have one name in all tools; siw's is understood.
func TestLargeFPDUHasOneName(t *testing.T) {
	for _, c := range append(perfCommands(), rpingCommand(), ucmatoseCommand()) {
		f := c.Flags().Lookup("large-fpdu")
		if f == nil || c.Flags().Lookup("gso") != f {
			t.Errorf("%s: %v", c.Name(), f)
			continue
		}
		if err := c.ParseFlags([]string{"--gso"}); err != nil || f.Value.String() != "true" {
			t.Errorf("%s --gso: %v, %s", c.Name(), err, f.Value)
		}
		if help := c.Flags().FlagUsages(); strings.Contains(help, "gso") || !strings.Contains(help, "--large-fpdu") {
			t.Errorf("%s:\n%s", c.Name(), help)
		}
	}
}

// The text is the one of rdma-core's rping.
func TestRPingText(t *testing.T) {
	b := make([]byte, 100)
	rpingText(b, 1)
	want := "rdma-ping-1: BCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`abcd"
	if string(b[:99]) != want[:99] || b[99] != 0 {
		t.Errorf("%q, want %q", b, want[:99])
	}
}

func TestRPingPersistent(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	port := freePort(t)
	done := make(chan string, 1)
	go func() {
		out, err := tool(ctx, "rping", "-s", "-P", "-p", port, "--json")
		if err != nil {
			t.Error(err)
		}
		done <- out
	}()
	await.Listening(t, "127.0.0.1:"+port)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			out, err := tool(context.Background(), "rping", "-c", "-p", port, "-C", "5", "-V", "--json")
			var sum rpingSummary
			if err != nil || json.Unmarshal([]byte(out), &sum) != nil || sum.Pings != 5 || !sum.Validated || !sum.CRC {
				t.Errorf("%v: %s", err, out)
			}
		})
	}
	wg.Wait()
	cancel()
	var sum rpingSummary
	if out := <-done; json.Unmarshal([]byte(out), &sum) != nil || sum.Pings != 40 || sum.Connections != 8 {
		t.Errorf("the server says %s", out)
	}
}

func TestUCMatose(t *testing.T) {
	for _, opts := range [][]string{{}, {"-c", "4", "-C", "50", "-S", "5000"}, {"-C", "0"}, {"-S", "0"}} {
		port := freePort(t)
		s, c := both(t,
			append([]string{"ucmatose", "-b", "127.0.0.1", "-p", port}, opts...),
			append([]string{"ucmatose", "-s", "127.0.0.1", "-p", port}, opts...))
		for _, out := range []string{s, c} {
			if !strings.Contains(out, "test complete\nreturn status 0\n") {
				t.Errorf("%v: %s", opts, out)
			}
		}
	}
}

// A client that does not ask for the peer-to-peer start-up, as siw by default:
// the server speaks first all the same.
func TestUCMatosePlainClient(t *testing.T) {
	port := freePort(t)
	done := make(chan error, 1)
	go func() {
		_, err := tool(context.Background(), "ucmatose", "-p", port, "-C", "2")
		done <- err
	}()
	dev, err := rdma.Open(nil)
	if err != nil {
		t.Fatal(err)
	}
	e, err := newEndpoint(dev, rdma.QPConfig{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer e.close()
	for range 2 {
		if err := e.qp.PostRecv(rdma.RecvWR{SGL: e.sgl(make([]byte, 100))}); err != nil {
			t.Fatal(err)
		}
	}
	err = served(t, func() error {
		_, err := rdma.Dial(context.Background(), "tcp", "127.0.0.1:"+port, e.qp, nil)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if wc, err := e.next(context.Background()); err != nil || wc.Opcode != rdma.WCRecv {
			t.Fatal(wc, err)
		}
	}
	for range 2 {
		if err := e.qp.PostSend(rdma.SendWR{Op: rdma.OpSend, SGL: e.sgl(make([]byte, 100))}); err != nil {
			t.Fatal(err)
		}
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestPerf(t *testing.T) {
	for _, k := range perfKinds {
		t.Run(k.name, func(t *testing.T) {
			for _, opts := range [][]string{{"-n", "300"}, {"-D", "30ms", "-s", "4096"}, {"-D", "1ns"}} {
				opts = without(k, opts, "-s")
				port := freePort(t)
				_, c := both(t, []string{k.name, "-p", port}, append([]string{k.name, "127.0.0.1", "-p", port, "--json"}, opts...))
				var d perfDoc
				if err := json.Unmarshal([]byte(c), &d); err != nil {
					t.Fatalf("%v: %s", err, c)
				}
				if d.Iterations < 1 || opts[0] == "-n" && d.Iterations != 300 || d.MsgRate <= 0 || !d.CRC {
					t.Errorf("%+v", d)
				}
				if (d.Latency != nil) != k.latency || (d.MBps > 0) == k.latency {
					t.Errorf("%+v", d)
				}
			}
			port := freePort(t)
			if _, c := both(t, []string{k.name, "-p", port}, []string{k.name, "127.0.0.1", "-p", port, "-n", "10"}); !strings.HasPrefix(c, " #bytes") || strings.Count(c, "\n") != 2 {
				t.Errorf("%q", c)
			}
		})
	}
}

func TestPerfMismatch(t *testing.T) {
	port := freePort(t)
	done := make(chan error, 1)
	go func() {
		_, err := tool(context.Background(), "read-bw", "-p", port)
		done <- err
	}()
	err := served(t, func() error {
		_, err := tool(context.Background(), "write-bw", "127.0.0.1", "-p", port)
		return err
	})
	if err == nil || !strings.Contains(err.Error(), "the server runs read-bw, the client write-bw") {
		t.Errorf("the client says: %v", err)
	}
	if err := <-done; err == nil {
		t.Error("the server says nothing")
	}
}

func TestBadArguments(t *testing.T) {
	for _, args := range [][]string{
		{"rping"}, {"rping", "-s", "-c"}, {"rping", "-c", "-S", "5"}, {"rping", "-c", "-S", "9999999"}, {"rping", "-c", "--crc=maybe"},
		{"ucmatose", "-c", "0"}, {"ucmatose", "-C", "-1"},
		{"write-bw", "h", "-s", "0"}, {"write-bw", "h", "-t", "0"}, {"read-lat", "h", "-n", "0"}, {"read-lat", "a", "b"},
		{"read-bw", "h", "-o", "0"}, {"read-bw", "h", "-R", "-D", "1"}, {"send-bw", "h", "-R", "-r", "0"},
	} {
		if out, err := tool(context.Background(), args...); err == nil {
			t.Errorf("%v: %s", args, out)
		}
	}
}

// Every tool says how it is used, with examples and what its exit codes mean.
func TestHelp(t *testing.T) {
	for _, c := range Command().Commands() {
		out, err := tool(t.Context(), c.Name(), "--help")
		if err != nil || !strings.Contains(out, "iser-initiator rdma "+c.Name()) || !strings.Contains(out, "Exit codes: 0 ") || !strings.HasPrefix(out, strings.SplitN(c.Long, "\n", 2)[0]) {
			t.Errorf("%s: %v\n%s", c.Name(), err, out)
		}
	}
}

// Both devices are listed, each with what its provider has.
func TestDevInfo(t *testing.T) {
	out, err := tool(t.Context(), "devinfo")
	if err != nil || strings.Count(out, "hca_id:\t") != 2 || strings.Count(out, "max_qp_rd_atom:") != 2 || !strings.Contains(out, "iWARP (1)") || !strings.Contains(out, "RC UC UD") {
		t.Errorf("%v: %s", err, out)
	}
	var m struct {
		Devices []struct {
			Device, Provider string
			Types            string `json:"qp_types"`
			Request          int    `json:"private_data_request"`
			Lookup           int    `json:"private_data_sidr_request"`
		}
	}
	out, err = tool(t.Context(), "devinfo", "--json")
	if err != nil || json.Unmarshal([]byte(out), &m) != nil || len(m.Devices) != 2 {
		t.Fatalf("%v: %s", err, out)
	}
	if iw, ro := m.Devices[0], m.Devices[1]; iw.Provider != "iwarp" || iw.Types != "RC" || iw.Request != 508 || iw.Lookup != 0 || ro.Provider != "roce" || ro.Request != 56 || ro.Lookup != 180 || iw.Device == ro.Device {
		t.Errorf("%+v", m)
	}
	for args, want := range map[string]string{"-l": "2 HCAs found:\n\tsoftiser0\n\tsoftiser1\n\n", "-l -d roce": "1 HCAs found:\n\tsoftiser1\n\n", "-l -d softiser0": "1 HCAs found:\n\tsoftiser0\n\n"} {
		if out, err := tool(t.Context(), append([]string{"devinfo"}, strings.Fields(args)...)...); err != nil || out != want {
			t.Errorf("%s: %v: %q", args, err, out)
		}
	}
	if _, err := tool(t.Context(), "devinfo", "-d", "mlx5_0"); err == nil || !strings.Contains(err.Error(), "softiser0, iwarp, softiser1, roce") {
		t.Errorf("a device that does not exist: %v", err)
	}
}
