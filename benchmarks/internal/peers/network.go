package peers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"softiser/benchmarks/internal/proc"
	"softiser/benchmarks/internal/result"

	"bytes"
	"encoding/binary"
	"net/netip"
)

// Iperf3 starts iperf3's server.
func Iperf3(e *Env) (*Server, error) {
	port := strconv.Itoa(proc.FreePort())
	s := &Server{Name: "iperf3", URL: port}
	// -1 is not given: it serves one test after another.
	return s, s.start(e, "127.0.0.1:"+port, nil, "iperf3", "-s", "-B", "127.0.0.1", "-p", port)
}

// IperfRun sends one stream in writes of 1 MiB; congestion "" is the host's
// default.
func (e *Env) IperfRun(ctx context.Context, s *Server, congestion string, streams int) (result.Values, error) {
	argv := []string{"iperf3", "-c", "127.0.0.1", "-p", s.URL, "-l", "1M", "-t", fmt.Sprintf("%d", max(1, int(e.Dur.Seconds()+0.5))), "-J"}
	if streams > 1 {
		argv = append(argv, "-P", strconv.Itoa(streams))
	}
	if congestion != "" {
		argv = append(argv, "-C", congestion)
	}
	return e.client(ctx, s, nil, argv, func(b []byte) (result.Values, float64, error) {
		var r struct {
			End struct {
				Received struct {
					Bytes   float64
					BitRate float64 `json:"bits_per_second"`
				} `json:"sum_received"`
			}
			Error string
		}
		if err := json.Unmarshal(b, &r); err != nil {
			return nil, 0, err
		}
		if r.Error != "" {
			return nil, 0, errors.New(r.Error)
		}
		return result.Values{result.BW: r.End.Received.BitRate / 8}, r.End.Received.Bytes, nil
	})
}

// ucxEnv: TCP over loopback, segments of 1 MiB, rendezvous without copies.
var ucxEnv = []string{"UCX_TLS=tcp", "UCX_NET_DEVICES=lo", "UCX_TCP_TX_SEG_SIZE=1m", "UCX_TCP_RX_SEG_SIZE=1m", "UCX_RNDV_SCHEME=put_zcopy"}

// UCX runs one test of ucx_perftest, for example "ucp_put_bw", with messages of
// size bytes and depth outstanding. Its server serves one test.
func (e *Env) UCX(ctx context.Context, test string, size, depth int) (result.Values, error) {
	port := strconv.Itoa(proc.FreePort())
	s := &Server{Name: "ucx_perftest"}
	argv := []string{"ucx_perftest", "-p", port}
	spec := proc.Spec{Argv: argv, Env: ucxEnv, Place: e.Place, Side: proc.Server, Log: e.log("ucx")}
	e.note(spec)
	p, err := proc.Start(spec)
	if err != nil {
		return nil, err
	}
	s.procs = append(s.procs, p)
	defer s.Close()
	// The server takes one connection: probing it would use it up.
	time.Sleep(500 * time.Millisecond)
	n := int(e.Dur.Seconds() * 100_000)
	if size >= 1<<20 {
		n = int(e.Dur.Seconds() * 2000)
	}
	client := []string{"ucx_perftest", "127.0.0.1", "-p", port, "-t", test, "-s", strconv.Itoa(size), "-n", strconv.Itoa(n), "-w", "1000", "-O", strconv.Itoa(depth), "-f"}
	return e.client(ctx, s, ucxEnv, client, func(b []byte) (result.Values, float64, error) {
		return parseUCX(b, size, n)
	})
}

// parseUCX reads the line of figures that -f leaves: iterations, latency at the
// median, average, overall (µs), bandwidth average and overall (MB/s), message
// rate average and overall. Newer versions begin it with "Final:".
func parseUCX(b []byte, size, n int) (result.Values, float64, error) {
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(strings.TrimPrefix(line, "Final:"))
		if len(f) != 8 {
			continue
		}
		if _, err := strconv.ParseFloat(f[0], 64); err != nil {
			continue
		}
		rate, err := strconv.ParseFloat(f[len(f)-1], 64)
		if err != nil {
			return nil, 0, err
		}
		lat, err := strconv.ParseFloat(f[1], 64)
		return result.Values{result.IOPS: rate, result.BW: rate * float64(size), result.P50: lat * 1000}, float64(n) * float64(size), err
	}
	return nil, 0, fmt.Errorf("ucx_perftest printed no result: %q", b[max(0, len(b)-300):])
}

// Verbs starts the helper that answers RDMA tests.
func Verbs(e *Env) (*Server, error) { return helper(e, "verbs-server") }

// RoCEAddr is an address of loopback for servers over RoCE: UDP port 4791 of an address belongs
// to one process.
const RoCEAddr = "127.91.0.1"

// VerbsRoCE is Verbs over RoCE.
func VerbsRoCE(e *Env) (*Server, error) {
	s := &Server{Name: "verbs-server", URL: RoCEAddr + ":7471"}
	return s, s.startUDP(e, netip.AddrPortFrom(netip.MustParseAddr(RoCEAddr), 4791), e.Self, "verbs-server", "--roce", "--addr", s.URL)
}

// UDPRef starts the helper that sends datagrams back.
func UDPRef(e *Env) (*Server, error) {
	addr := fmt.Sprintf("127.0.0.1:%d", proc.FreePort())
	s := &Server{Name: "udp-server", URL: addr}
	return s, s.startUDP(e, netip.MustParseAddrPort(addr), e.Self, "udp-server", "--addr", addr)
}

// startUDP is start for a server that has a UDP port when it is ready.
func (s *Server) startUDP(e *Env, at netip.AddrPort, argv ...string) error {
	p, err := s.launch(e, nil, argv)
	if err != nil {
		return err
	}
	// An IPv4 address in /proc/net/udp is a word of this machine.
	a := at.Addr().As4()
	line := fmt.Sprintf(": %08X:%04X ", binary.NativeEndian.Uint32(a[:]), at.Port())
	return p.Wait("listen", func() error {
		b, err := os.ReadFile("/proc/net/udp")
		if err == nil && !bytes.Contains(b, []byte(line)) {
			err = fmt.Errorf("nobody has UDP port %v", at)
		}
		return err
	})
}

// TCPRef starts the helper that answers plain TCP tests.
func TCPRef(e *Env) (*Server, error) { return helper(e, "tcp-server") }

// TCPRefHost is TCPRef with the host's congestion control.
func TCPRefHost(e *Env) (*Server, error) { return helper(e, "tcp-server", "--congestion=host") }

func helper(e *Env, name string, args ...string) (*Server, error) {
	addr := fmt.Sprintf("127.0.0.1:%d", proc.FreePort())
	s := &Server{Name: name, URL: addr}
	return s, s.start(e, addr, nil, append([]string{e.Self, name, "--addr", addr}, args...)...)
}

// HelperRun runs the client half of a helper with its options.
func (e *Env) HelperRun(ctx context.Context, s *Server, name string, args ...string) (result.Values, error) {
	argv := append([]string{e.Self, name, "--addr", s.URL, fmt.Sprintf("--time=%dms", e.Dur.Milliseconds())}, args...)
	return e.helperClient(ctx, s, argv)
}

// helperClient runs a client that prints what it has done as JSON.
func (e *Env) helperClient(ctx context.Context, s *Server, argv []string) (result.Values, error) {
	var cpu float64 // per GiB, of the measured time alone: the client fills its memory before
	v, err := e.client(ctx, s, nil, argv, func(b []byte) (result.Values, float64, error) {
		var r struct {
			Messages, Bytes float64
			Seconds         float64
			CPU             float64 `json:"cpu_s"`
			P50             float64 `json:"p50_ns"`
			P99             float64 `json:"p99_ns"`
		}
		if err := json.Unmarshal(b, &r); err != nil {
			return nil, 0, err
		}
		if r.Seconds == 0 || r.Messages == 0 {
			return nil, 0, errors.New("nothing was moved")
		}
		v := result.Values{result.IOPS: r.Messages / r.Seconds, result.BW: r.Bytes / r.Seconds}
		if r.P50 > 0 {
			v[result.P50], v[result.P99] = r.P50, r.P99
		}
		cpu = r.CPU / (r.Bytes / (1 << 30))
		return v, r.Bytes, nil
	})
	if err == nil && cpu > 0 {
		v[result.CPUClient] = cpu
		v[result.CPUBoth] = cpu + v[result.CPUServer]
	}
	return v, err
}
