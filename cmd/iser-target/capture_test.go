package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"softiser/initiator"
	"softiser/initiator/blockio"
	"softiser/initiator/nvmf"
	"softiser/internal/await"
	"softiser/internal/certs/certtest"
	"softiser/internal/loopback"
	"softiser/internal/pcaptest"
	"softiser/internal/race"
	"softiser/internal/sockio"
	"softiser/target"
	"softiser/target/admin"
)

// capturing is a capture command under way.
type capturing struct {
	t    *testing.T
	file string
	out  output
	end  context.CancelFunc // as Ctrl-C does
	done chan int
}

// captureFrom begins to capture.
func captureFrom(t *testing.T, socket string, args ...string) *capturing {
	t.Helper()
	c := &capturing{t: t, file: filepath.Join(t.TempDir(), "c.pcap"), done: make(chan int, 1)}
	ctx, cancel := context.WithCancel(t.Context())
	c.end = cancel
	go func() {
		c.done <- runWith(ctx, &c.out, append([]string{"capture", "--socket", socket, "-w", c.file, "--time", "1h"}, args...)...)
	}()
	await.True(t, "the head of the file is written", func() bool {
		fi, err := os.Stat(c.file)
		return err == nil && fi.Size() >= 24
	})
	return c
}

// conns ends the capture and returns what is in the file.
func (c *capturing) conns() []*pcaptest.Conn {
	c.t.Helper()
	c.end()
	if code := <-c.done; code != 0 || !strings.Contains(c.out.String(), " 0 B left out") {
		c.t.Fatalf("exit %d: %s", code, &c.out)
	}
	if fi, err := os.Stat(c.file); err != nil || fi.Mode().Perm() != 0o600 {
		c.t.Errorf("%v, %v", fi, err)
	}
	conns, err := pcaptest.Read(c.file)
	if err != nil {
		c.t.Fatal(err)
	}
	return conns
}

// tshark returns the fields that it finds in the file, each value once for each time it is there,
// and fails the test for each warning or error of its.
func (c *capturing) tshark(field string, args ...string) map[string]int {
	c.t.Helper()
	run := func(args ...string) string {
		cmd := exec.CommandContext(c.t.Context(), "tshark", args...)
		var out, errs bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &errs
		if err := cmd.Run(); err != nil {
			c.t.Fatalf("tshark: %v\n%s", err, &errs)
		}
		return out.String()
	}
	undisturbed, err := pcaptest.Undisturbed(c.t.Context())
	if err != nil {
		c.t.Fatal(err)
	}
	args = append(args, undisturbed...)
	got := map[string]int{}
	for line := range strings.Lines(run(append(args, "-n", "-r", c.file, "-o", "tcp.check_checksum:TRUE", "-T", "fields", "-e", "_ws.expert.severity", "-e", "_ws.expert.message", "-e", field)...)) {
		parts := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		for v := range strings.SplitSeq(parts[0], ",") {
			if n, err := strconv.Atoi(v); v != "" && (err != nil || n >= 0x600000) { // a warning, or worse
				c.t.Errorf("tshark complains: %s", parts[1])
			}
		}
		for v := range strings.SplitSeq(parts[2], ",") {
			got[v]++
		}
	}
	return got
}

// overISCSI opens LUN 0 of the target of --export d.
func overISCSI(t *testing.T, addr string, tr initiator.Transport) func() blockio.Volume {
	return func() blockio.Volume {
		l, err := initiator.Open(t.Context(), initiator.Config{Transport: tr, Address: addr, TargetName: "iqn.2026-11.softiser:d"})
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
}

// overNVMe opens namespace 1 of the subsystem of --export d.
func overNVMe(t *testing.T, addr string, tr nvmf.Transport) func() blockio.Volume {
	return func() blockio.Volume {
		n, err := nvmf.Open(t.Context(), nvmf.Config{Transport: tr, Address: addr, Subsystem: "nqn.2026-11.softiser:d", NSID: 1, HostNQN: "nqn.2026-11.test:host"})
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
}

// What a login, a write and a read look like on each wire, as tshark reads it.
func TestCapture(t *testing.T) {
	if _, err := exec.LookPath("tshark"); err != nil {
		t.Skip("tshark is not installed (make tools)")
	}
	dir := t.TempDir()
	addr, socket := loopback.FreeAddr(t), filepath.Join(dir, "s")
	start(t, "--listen", addr, "--socket", socket, "--export", "d=memory,size=8MiB", "--log-level", "warn")
	port := addr[strings.LastIndexByte(addr, ':')+1:]
	b := &tlsBed{reloadBed: &reloadBed{t: t}}
	for _, c := range []struct {
		name  string
		open  func() blockio.Volume
		conns int
		field string
		args  []string
		want  []string
	}{
		// Login, command, Data-In, R2T, Data-Out.
		{"iSCSI", overISCSI(t, addr, initiator.TransportTCP), 1, "iscsi.opcode", []string{"-d", "tcp.port==" + port + ",iscsi"}, []string{"0x03", "0x23", "0x01", "0x25", "0x31", "0x05"}},
		// RDMA Write, Read Request, Read Response, Send, Send with Invalidate.
		{"iSER", overISCSI(t, addr, initiator.TransportISER), 1, "iwarp_rdma.opcode", []string{"--disable-protocol", "nvme-tcp"}, []string{"0x00", "0x01", "0x02", "0x03", "0x04"}},
		// ICReq, ICResp, command, response, data in both directions, R2T.
		{"NVMe over TCP", overNVMe(t, addr, nvmf.TransportTCP), 2, "nvme-tcp.type", []string{"-d", "tcp.port==" + port + ",nvme-tcp"}, []string{"0", "1", "4", "5", "6", "7", "9"}},
		{"NVMe over RDMA", overNVMe(t, addr, nvmf.TransportRDMA), 2, "iwarp_rdma.opcode", []string{"--disable-protocol", "nvme-tcp"}, []string{"0x00", "0x01", "0x02", "0x03", "0x04"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			cap := captureFrom(t, socket, "--next", ":"+port, "--connections", strconv.Itoa(c.conns))
			v := c.open()
			b.t = t
			b.roundTrip(v, 7)
			v.Close()
			for _, conn := range cap.conns() {
				if !conn.Complete {
					t.Errorf("%v: there is a gap", conn.Client)
				}
			}
			if race.Enabled {
				return // to the detector tshark is nothing
			}
			got := cap.tshark(c.field, c.args...)
			for _, w := range c.want {
				if got[w] == 0 {
					t.Errorf("there is no %s %s: %v", c.field, w, got)
				}
			}
		})
	}
}

// A session and a host are found, the data is that of the commands, others are not in it, and of
// TLS it is what is above.
func TestCaptureWhom(t *testing.T) {
	b := newTLSBed(t)
	open := func(addr string, tls *initiator.TLS) *initiator.LUN {
		l, err := initiator.Open(t.Context(), b.config(addr, tls))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		return l
	}
	first := open(b.addr, b.client(b.ca, certtest.Leaf{}))
	other := open(b.open, nil)
	st := b.status()
	i := slices.IndexFunc(st.Sessions, func(s target.SessionStatus) bool { return strings.HasSuffix(s.Transport, "TLS") })
	var hosts [2]*nvmf.Namespace // at one address
	for i := range hosts {
		var err error
		hosts[i], err = nvmf.Open(t.Context(), nvmf.Config{Address: b.addr, Subsystem: "nqn.2026-11.test:a", NSID: 1, HostNQN: "nqn.2026-11.test:host", Keys: nvmf.Keys{TLSKey: tlsPSK}, CtrlLossTimeout: 1})
		if err != nil {
			t.Fatal(err)
		}
		defer hosts[i].Close()
	}
	for _, c := range []struct {
		args []string
		do   func()
		not  byte
	}{
		{[]string{"--session", fmt.Sprint(st.Sessions[i].TSIH)}, func() { b.roundTrip(other, 5); b.roundTrip(first, 6) }, 5},
		{[]string{"--peer", st.Sessions[i].Remote}, func() { b.roundTrip(other, 5); b.roundTrip(first, 6) }, 5},
		{[]string{"--controller", fmt.Sprint(b.status().Controllers[0].ID)}, func() { b.roundTrip(hosts[1], 5); b.roundTrip(hosts[0], 6) }, 5},
	} {
		cap := captureFrom(t, b.sock, c.args...)
		c.do()
		cap.end()
		if code := <-cap.done; code != 0 {
			t.Fatalf("%v: exit %d: %s", c.args, code, &cap.out)
		}
		raw, err := os.ReadFile(cap.file)
		if err != nil {
			t.Fatal(err)
		}
		sent := bytes.Count(raw, bytes.Repeat([]byte{6}, 4096))
		if n := bytes.Count(raw, bytes.Repeat([]byte{c.not}, 512)); n != 0 || sent < 2*(3<<20)/4096*9/10 {
			t.Errorf("%v: %d KiB of what was written and read, %d of what others wrote", c.args, sent*4, n)
		}
	}
}

// Each subsystem numbers its controllers: a number that two of them have names neither.
func TestCaptureController(t *testing.T) {
	st := target.Status{Controllers: []target.ControllerStatus{
		{Subsystem: "nqn.a", ID: 1, Remotes: []string{"192.0.2.1:1", "192.0.2.1:2"}}, {Subsystem: "nqn.a", ID: 2, Remotes: []string{"192.0.2.1:3"}}, {Subsystem: "nqn.b", ID: 2},
	}}
	var q admin.CaptureRequest
	if err := (&captureFlags{controller: 1}).connections(&q, &st, false); err != nil || !slices.Equal(q.Peers, st.Controllers[0].Remotes) {
		t.Errorf("%v, %v", q.Peers, err)
	}
	if err := (&captureFlags{controller: 2}).connections(&q, &st, false); err == nil || !strings.Contains(err.Error(), "nqn.a, nqn.b") {
		t.Errorf("an ambiguous number: %v", err)
	}
}

// Ctrl-C at the moment in which a capture ends by itself: its rest is still read.
func TestCaptureEndsByItself(t *testing.T) {
	dir := t.TempDir()
	l, err := net.Listen("unix", filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	asked := make(chan struct{})
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/capture", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Trailer", "Softiser-Capture")
		fmt.Fprintf(w, "%024d", 0)
		_ = http.NewResponseController(w).Flush()
		for range 2 { // the first refusal has been read when the second question comes
			select {
			case <-asked:
			case <-r.Context().Done():
				return
			}
		}
		fmt.Fprint(w, "the rest")
		w.Header().Set("Softiser-Capture", `{"connections":1}`)
	})
	mux.HandleFunc("DELETE /v1/capture", func(w http.ResponseWriter, r *http.Request) {
		select {
		case asked <- struct{}{}:
		case <-r.Context().Done():
		}
		http.Error(w, `{"error":"there is no capture"}`, http.StatusConflict)
	})
	srv, served := &http.Server{Handler: mux}, make(chan error, 1)
	go func() { served <- srv.Serve(l) }()
	cap := captureFrom(t, l.Addr().String(), "--peer", "192.0.2.1")
	cap.end()
	if code := <-cap.done; code != 0 {
		t.Errorf("exit %d: %s", code, &cap.out)
	}
	if b, err := os.ReadFile(cap.file); err != nil || !strings.HasSuffix(string(b), "the rest") {
		t.Errorf("%q, %v", b, err)
	}
	srv.Close()
	<-served
}

// Mistakes are told before anything is written, an end without a connection is an error, a
// capture ends by its time, and there is one at a time.
func TestCaptureErrors(t *testing.T) {
	dir := t.TempDir()
	addr, socket := loopback.FreeAddr(t), filepath.Join(dir, "s")
	start(t, "--listen", addr, "--socket", socket, "--export", "d=memory,size=1MiB", "--log-level", "warn")
	there := filepath.Join(dir, "there")
	if err := os.WriteFile(there, []byte("mine"), 0o644); err != nil {
		t.Fatal(err)
	}
	f := filepath.Join(dir, "f")
	for _, c := range []struct {
		want string
		code int
		args []string
	}{
		{"--write is missing", exitUsage, []string{"--next", addr}},
		{"one of --session, --controller, --peer, --next is missing", exitUsage, []string{"-w", f}},
		{"--next, --session exclude each other", exitUsage, []string{"-w", f, "--next", addr, "--session", "1"}},
		{"no session with TSIH 7", exitFailure, []string{"-w", f, "--session", "7"}},
		{"no controller with ID 7", exitFailure, []string{"-w", f, "--controller", "7"}},
		{"portal", exitUsage, []string{"-w", f, "--next", "localhost"}},
		{"no portal listens on port 1;", exitFailure, []string{"-w", f, "--next", ":1"}},
		{"an address is needed", exitUsage, []string{"-w", f, "--peer", "somebody:1"}},
		{"-w is empty", exitUsage, []string{"-w", "", "--peer", "127.0.0.1"}},
		{"1 to 64", exitUsage, []string{"-w", f, "--peer", "127.0.0.1", "--connections", "65"}},
		{"want up to", exitUsage, []string{"-w", f, "--peer", "127.0.0.1", "--time", "0s"}},
		{"1 byte to 64 GiB", exitUsage, []string{"-w", f, "--peer", "127.0.0.1", "--bytes", "0"}},
		{"there exists; remove it, or name another file", exitFailure, []string{"-w", there, "--peer", "127.0.0.1"}},
		{"nothing has been sent or received", exitFailure, []string{"-w", f, "--peer", "192.0.2.1", "--time", "10ms"}},
	} {
		if code, out := command(t, append([]string{"capture", "--socket", socket}, c.args...)...); code != c.code || !strings.Contains(out, c.want) {
			t.Errorf("%v: exit %d, want %q in %s", c.args, code, c.want, out)
		}
	}
	if b, err := os.ReadFile(there); err != nil || string(b) != "mine" {
		t.Errorf("a file that was there: %q, %v", b, err)
	}
	cap := captureFrom(t, socket, "--next", addr)
	if code, out := command(t, "capture", "--socket", socket, "-w", filepath.Join(dir, "g"), "--next", addr); code != exitFailure || !strings.Contains(out, sockio.ErrTapped.Error()) {
		t.Errorf("a second one: exit %d, %s", code, out)
	}
	if _, err := os.Stat(filepath.Join(dir, "g")); !os.IsNotExist(err) {
		t.Errorf("its file: %v", err)
	}
	cap.end()
	if code := <-cap.done; code != exitFailure {
		t.Errorf("an end without a connection: exit %d", code)
	}
	if b, err := os.ReadFile(cap.file); err != nil || len(b) != 24 || binary.LittleEndian.Uint32(b) != 0xa1b23c4d {
		t.Errorf("a file without packets: % x, %v", b, err)
	}
	if code, out := command(t, "capture", "--socket", filepath.Join(dir, "none"), "-w", f+"2", "--next", addr, "--time", time.Second.String()); code != exitNoTarget {
		t.Errorf("no target: exit %d, %s", code, out)
	}
}
