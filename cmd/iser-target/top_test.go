package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"softiser/internal/await"
	"softiser/internal/loopback"
	"softiser/target"
	"softiser/target/nvmf"
	"softiser/target/volume"
)

// looks are two states of a target that lie two seconds apart.
func looks() (before, now target.Status) {
	lat := func(n uint64, each, below time.Duration) volume.Latency {
		return volume.Latency{Count: n, Sum: time.Duration(n) * each, Buckets: []volume.LatencyBucket{{Below: below, Count: n}}}
	}
	state := func(n uint64) target.Status {
		return target.Status{
			State: "listening", Uptime: time.Hour,
			Targets: []target.TargetStatus{{Name: "iqn.a", LUNs: []target.LUNStatus{{LUN: 0, Volume: "disk", ReadLatency: lat(1000*n, 4*time.Millisecond, 5*time.Millisecond)}, {LUN: 1, Error: "gone"}}}},
			Volumes: []target.VolumeStatus{
				{Name: "idle"}, {Name: "disk", Stats: volume.Stats{Reads: 1000 * n, ReadBytes: 4096000 * n, Throttling: volume.Throttling{Waiting: 3}}}},
			Sessions: []target.SessionStatus{{TSIH: 2, Initiator: "iqn.sleeper"},
				{TSIH: 1, Initiator: "iqn.host\x1b]2;evil\a", Transport: "iSER", Outstanding: 7, Reads: 1000 * n, BytesOut: 4096000 * n}},
			Controllers: []target.ControllerStatus{{Subsystem: "nqn.s", ID: 5, Host: "nqn.host", Transport: "NVMe/TCP", Traffic: nvmf.Traffic{Writes: 10 * n, WriteBytes: 5120 * n}}},
		}
	}
	return state(1), state(3)
}

// Rates, latencies and the queue are those of the time between two looks, the busiest first.
func TestTopView(t *testing.T) {
	before, now := looks()
	v := newTopView(&before, &now, 2*time.Second)
	d := v.Volumes[0]
	if d.Name != "disk" || d.ReadIOPS != 1000 || d.ReadBytes != 4096000 || d.WriteIOPS != 0 || d.ReadLatency != 4*time.Millisecond || d.ReadP99 != 5*time.Millisecond || d.WriteP99 != 0 || math.Abs(d.Queue-4) > 1e-9 || d.Waiting != 3 {
		t.Errorf("%+v", d)
	}
	if s := v.Sessions[0]; s.TSIH != 1 || s.ReadIOPS != 1000 || s.Busy != 7 || v.Sessions[1].ReadIOPS != 0 {
		t.Errorf("%+v", v.Sessions)
	}
	if c := v.Controllers[0]; c.ID != 5 || c.WriteIOPS != 10 || c.WriteBytes != 5120 {
		t.Errorf("%+v", c)
	}
	if v.Total.ReadIOPS != 1000 || v.NotServed != 1 {
		t.Errorf("%+v", v)
	}
	// Counters that have begun anew are all of this time, latencies then unknown.
	v = newTopView(&now, &before, time.Second)
	if d := v.Volumes[0]; d.ReadIOPS != 1000 || d.ReadLatency != 0 || d.ReadP99 != 0 || d.Queue != 0 {
		t.Errorf("%+v", d)
	}
	b, err := json.Marshal(v)
	if err != nil || !strings.Contains(string(b), `"name":"disk","read_iops":1000,`) || !strings.Contains(string(b), `"tsih":1,"peer":"iqn.host`) {
		t.Errorf("%v, %s", err, b)
	}
}

// What peers are called does nothing to the terminal that a view is shown on.
func TestTopScreen(t *testing.T) {
	before, now := looks()
	text := newTopView(&before, &now, 2*time.Second).table()
	for _, want := range []string{"read 4.1M/s 1k IOPS", "disk    1k      4.1M", "iSER", `iqn.host\x1b]2;evil\a`, "nqn.host", "not served 1"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("there is no %q in\n%s", want, text)
		}
	}
	if strings.ContainsRune(string(text), '\x1b') {
		t.Errorf("the terminal obeys\n%q", text)
	}
}

func TestShortNumbers(t *testing.T) {
	for v, want := range map[float64]string{0: "0", 7.4: "7", 999.4: "999", 999.6: "1k", 12345: "12.3k", 4.096e6: "4.1M", 2.5e9: "2.5G", 3e15: "3e+03T"} {
		if got := si(v); got != want {
			t.Errorf("%v: %s, want %s", v, got, want)
		}
	}
	for d, want := range map[time.Duration]string{0: "-", 999: "999ns", 12345: "12.3µs", 1234567: "1.23ms", 61 * time.Second: "1m1s"} {
		if got := short(d); got != want {
			t.Errorf("%d: %s, want %s", d, got, want)
		}
	}
}

// It looks each interval, ends quietly when it is told to, and with the target's error when that
// has gone.
func TestTopRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b bytes.Buffer
		asked := 0
		gone := errors.New("it has gone")
		ask := func() (target.Status, error) {
			if asked++; asked > 4 {
				return target.Status{}, gone
			}
			return target.Status{State: fmt.Sprint("look ", asked)}, nil
		}
		begun := time.Now()
		if err := (&top{out: &b, every: time.Second}).run(t.Context(), ask); err != gone || strings.Count(b.String(), "look ") != 3 || time.Since(begun) != 4*time.Second { //nolint:errorlint // this very one
			t.Errorf("%v after %v: %s", err, time.Since(begun), b.String())
		}
		ctx, cancel := context.WithTimeout(t.Context(), 1500*time.Millisecond)
		defer cancel()
		asked = 0
		if err := (&top{out: &b, every: time.Second, json: true}).run(ctx, ask); err != nil || asked != 2 {
			t.Errorf("%v after %d looks", err, asked)
		}
	})
}

// A target in a process of its own is watched over its admin socket.
func TestTopOfATarget(t *testing.T) {
	dir := t.TempDir()
	socket := filepath.Join(dir, "s")
	start(t, "--listen", loopback.FreeAddr(t), "--socket", socket, "--log-level", "error", "--export", "ram0=memory,size=1MiB")
	code, out := command(t, "top", "--socket", socket, "--once", "--json", "--interval", "100ms")
	var v topView
	if err := json.Unmarshal([]byte(out), &v); code != 0 || err != nil || v.State != "listening" || len(v.Volumes) != 1 {
		t.Errorf("%d, %v\n%s", code, err, out)
	}
	if code, out := command(t, "top", "--socket", socket, "--once", "--interval", "100ms"); code != 0 || !strings.Contains(out, "VOLUME") || strings.Contains(out, "\x1b") {
		t.Errorf("%d\n%s", code, out)
	}
	if code, _ := command(t, "top", "--socket", socket, "--interval", "1ms"); code != exitUsage {
		t.Errorf("an interval of 1 ms: %d", code)
	}
	if code, _ := command(t, "top", "--socket", filepath.Join(dir, "none")); code != exitNoTarget {
		t.Errorf("no target: %d", code)
	}
}

// top that waits for whoever does not read it is ended by the second signal.
func TestTopThatNobodyReadsEnds(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	asked := make(chan struct{}, 100)
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte("{}"))
		asked <- struct{}{}
	})}
	go srv.Serve(l) //nolint:errcheck // until it is closed
	t.Cleanup(func() { srv.Close() })
	var fds [2]int
	if err := syscall.Pipe2(fds[:], syscall.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	r, w := os.NewFile(uintptr(fds[0]), "r"), os.NewFile(uintptr(fds[1]), "w")
	t.Cleanup(func() { r.Close(); w.Close() })
	if err := syscall.SetNonblock(fds[1], true); err != nil {
		t.Fatal(err)
	}
	for err == nil { // until the pipe is full
		_, err = syscall.Write(fds[1], make([]byte, 4096))
	}
	if err := syscall.SetNonblock(fds[1], false); err != nil {
		t.Fatal(err)
	}
	c := program(t, "top", "--once", "--interval", "100ms", "--socket", socket)
	c.Stdout = w
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	<-asked
	<-asked
	time.Sleep(300 * time.Millisecond) // it writes now; a signal before that ends it all the same
	ended := make(chan struct{})
	go func() { c.Wait(); close(ended) }() //nolint:errcheck // by a signal
	for deadline := time.Now().Add(await.Deadline); ; {
		_ = c.Process.Signal(syscall.SIGTERM) // it may have ended
		select {
		case <-ended:
			return
		case <-time.After(20 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			_ = c.Process.Kill()
			<-ended
			t.Fatal("SIGTERM does not end it")
		}
	}
}
