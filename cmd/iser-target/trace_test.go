package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"softiser/initiator"
	"softiser/initiator/blockio"
	"softiser/initiator/nvmf"
	"softiser/internal/await"
	"softiser/internal/loopback"
	"softiser/target/volume"
)

// TestTraceHelp: the help explains each step and wait that is told.
func TestTraceHelp(t *testing.T) {
	help := traceCommand().Long
	_, waits, _ := strings.Cut(help, "WAITED")
	for _, step := range traceSteps {
		if !strings.Contains(help, "  "+strings.ToUpper(step)+" ") {
			t.Errorf("the help does not have %s", step)
		}
	}
	for _, f := range reflect.VisibleFields(reflect.TypeFor[volume.TraceWaits]()) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), "_ns")
		if !strings.Contains(waits, name) {
			t.Errorf("the help does not have the wait %s", name)
		}
	}
}

// tracing is a trace command under way.
type tracing struct {
	t    *testing.T
	out  output
	end  context.CancelFunc // as Ctrl-C does
	done chan int
}

// traceFrom begins to trace. A client that has ended is gone for the target when that reads the
// end of its connection: until then its volume is still traced.
func traceFrom(t *testing.T, socket string, args ...string) (x *tracing) {
	t.Helper()
	await.True(t, "it traces", func() bool {
		x = &tracing{t: t, done: make(chan int, 1)}
		ctx, cancel := context.WithCancel(t.Context())
		x.end = cancel
		go func() { x.done <- runWith(ctx, &x.out, append([]string{"trace", "--socket", socket}, args...)...) }()
		await.True(t, "it has begun, or has ended", func() bool {
			return strings.Contains(x.out.String(), "tracing") || len(x.done) > 0
		})
		if strings.Contains(x.out.String(), "tracing") {
			return true
		}
		cancel()
		if !strings.Contains(x.out.String(), "somebody else traces") {
			t.Fatalf("exit %d: %s", <-x.done, &x.out)
		}
		return false
	})
	return x
}

// commands waits for the end and returns what --json has told, and the summary.
func (x *tracing) commands() (all []volume.TracedCommand, sum traceSummary) {
	x.t.Helper()
	if code := <-x.done; code != 0 {
		x.t.Fatalf("exit %d: %s", code, &x.out)
	}
	for s := bufio.NewScanner(strings.NewReader(x.out.String())); s.Scan(); {
		var line struct {
			volume.TracedCommand
			Summary *traceSummary
		}
		if !strings.HasPrefix(s.Text(), "{") {
			continue
		}
		if err := json.Unmarshal(s.Bytes(), &line); err != nil {
			x.t.Fatalf("%v: %s", err, s.Text())
		}
		if line.Summary != nil {
			return all, *line.Summary
		}
		all = append(all, line.TracedCommand)
	}
	x.t.Fatalf("there is no summary: %s", &x.out)
	return nil, sum
}

// Each wire: a write and a read, by whom, of which blocks, and every step of theirs.
func TestTrace(t *testing.T) {
	dir := t.TempDir()
	addr, socket := loopback.FreeAddr(t), filepath.Join(dir, "s")
	start(t, "--listen", addr, "--socket", socket, "--export", "d=memory,size=8MiB", "--log-level", "warn")
	for _, c := range []struct {
		wire, at, initiator string
		open                func() blockio.Volume
		kinds               [2]string
	}{
		{"iSCSI/TCP", "iqn.2026-11.softiser:d/0", initiator.DefaultInitiatorName(), overISCSI(t, addr, initiator.TransportTCP), [2]string{"WRITE(10)", "READ(10)"}},
		{"iSER", "d", initiator.DefaultInitiatorName(), overISCSI(t, addr, initiator.TransportISER), [2]string{"WRITE(10)", "READ(10)"}},
		{"NVMe/TCP", "nqn.2026-11.softiser:d/1", "nqn.2026-11.test:host", overNVMe(t, addr, nvmf.TransportTCP), [2]string{"Write", "Read"}},
		{"NVMe/RDMA", "d", "nqn.2026-11.test:host", overNVMe(t, addr, nvmf.TransportRDMA), [2]string{"Write", "Read"}},
	} {
		t.Run(c.wire, func(t *testing.T) {
			v := c.open()
			defer v.Close()
			x := traceFrom(t, socket, c.at, "--json", "--count", "2")
			p := make([]byte, 128<<10)
			for _, op := range []blockio.Op{blockio.OpWrite, blockio.OpRead} {
				if err := v.Do(t.Context(), &blockio.Request{Op: op, Off: 1 << 20, Segs: [][]byte{p}}); err != nil {
					t.Fatal(err)
				}
			}
			all, sum := x.commands()
			if len(all) != 2 || sum.Commands != 2 || sum.LeftOut != 0 || sum.Steps["total"].Commands != 2 || sum.Steps["committed"].Commands != 1 {
				t.Fatalf("%+v, %+v", all, sum)
			}
			for i, r := range all {
				good := "GOOD"
				node := "iqn.2026-11.softiser:d"
				if strings.HasPrefix(c.wire, "NVMe") {
					good, node = "success", "nqn.2026-11.softiser:d"
				}
				if r.Wire != c.wire || r.Command != c.kinds[i] || r.Initiator != c.initiator || r.Node != node || r.LBA != 2048 || r.Bytes != 128<<10 || r.Status != good || r.Session == 0 {
					t.Errorf("%+v", r)
				}
				steps := []time.Duration{1, r.Leased, r.Placed, r.Committed, r.Answered, r.Released}
				if i == 1 { // a read commits nothing
					if r.Committed != 0 {
						t.Errorf("a read: %+v", r)
					}
					steps[3] = r.Placed
				}
				for j := 1; j < len(steps); j++ {
					if steps[j] < steps[j-1] {
						t.Errorf("step %d comes before the one before it: %v", j, steps)
					}
				}
				if age := time.Since(r.Arrived); age < 0 || age > time.Minute {
					t.Errorf("it arrived at %v", r.Arrived)
				}
			}
		})
	}
}

// What takes blocks away and what flushes are seen as committed too, over both protocols.
func TestTraceCommitted(t *testing.T) {
	dir := t.TempDir()
	addr, socket := loopback.FreeAddr(t), filepath.Join(dir, "s")
	start(t, "--listen", addr, "--socket", socket, "--export", "d=memory,size=8MiB", "--log-level", "warn")
	for wire, open := range map[string]func() blockio.Volume{
		"iSCSI/TCP": overISCSI(t, addr, initiator.TransportTCP), "NVMe/TCP": overNVMe(t, addr, nvmf.TransportTCP),
	} {
		t.Run(wire, func(t *testing.T) {
			v := open()
			defer v.Close()
			// The first command may find a unit attention, before it comes to the volume.
			if err := v.Do(t.Context(), &blockio.Request{Op: blockio.OpRead, Segs: [][]byte{make([]byte, 4096)}}); err != nil {
				t.Fatal(err)
			}
			ops := []blockio.Op{blockio.OpFlush, blockio.OpDiscard, blockio.OpWriteZeroes}
			x := traceFrom(t, socket, "d", "--json", "--count", fmt.Sprint(len(ops)))
			for _, op := range ops {
				if err := v.Do(t.Context(), &blockio.Request{Op: op, Off: 1 << 20, Len: 64 << 10}); err != nil {
					t.Fatal(op, err)
				}
			}
			all, _ := x.commands()
			for _, r := range all {
				if r.Committed == 0 || r.Committed > r.Answered {
					t.Errorf("%s: committed after %v, answered after %v", r.Command, r.Committed, r.Answered)
				}
			}
		})
	}
}

// For people: a line for each command with its status, the percentiles at the end; what is
// faster than asked for is not shown; a volume that goes ends the trace.
func TestTraceText(t *testing.T) {
	dir := t.TempDir()
	addr, socket := loopback.FreeAddr(t), filepath.Join(dir, "s")
	start(t, "--listen", addr, "--socket", socket, "--export", "d=memory,size=8MiB", "--log-level", "warn")
	x := traceFrom(t, socket, "d")
	if code, out := command(t, "trace", "--socket", socket, "iqn.2026-11.softiser:d/0"); code != exitFailure || !strings.Contains(out, "somebody else traces") {
		t.Errorf("a second one: exit %d, %s", code, out)
	}
	v := overISCSI(t, addr, initiator.TransportISER)() // its first command finds a unit attention, before it comes to the volume
	defer v.Close()
	read := func() {
		if err := v.Do(t.Context(), &blockio.Request{Op: blockio.OpRead, Segs: [][]byte{make([]byte, 4096)}}); err != nil {
			t.Fatal(err)
		}
	}
	read()
	await.True(t, "the read is shown", func() bool { return strings.Contains(x.out.String(), "READ(10)") })
	x.end()
	if code := <-x.done; code != 0 {
		t.Errorf("exit %d", code)
	}
	for _, want := range []string{"LEASED", "UNIT ATTENTION", "\nSTEP ", "\nreleased ", "0 left out", fmt.Sprintf("%s, GOOD", initiator.DefaultInitiatorName())} {
		if !strings.Contains(x.out.String(), want) {
			t.Errorf("there is no %q in %s", want, &x.out)
		}
	}

	x = traceFrom(t, socket, "nqn.2026-11.softiser:d/1", "--slower-than", "1h")
	read()
	for _, args := range [][]string{{"lun", "remove", "--socket", socket, "iqn.2026-11.softiser:d", "0"}, {"namespace", "remove", "--socket", socket, "nqn.2026-11.softiser:d", "1"}} {
		if code, out := command(t, args...); code != 0 {
			t.Fatalf("%v: exit %d, %s", args, code, out)
		}
	}
	if code := <-x.done; code != exitFailure || !strings.Contains(x.out.String(), volume.ErrVolumeGone.Error()) || !strings.Contains(x.out.String(), "\n0 commands") {
		t.Errorf("exit %d: %s", code, &x.out)
	}
	for _, c := range []struct {
		want string
		code int
		args []string
	}{
		{"no volume named", exitFailure, []string{"nobody"}},
		{"has no LUN or namespace 7", exitFailure, []string{"iqn.2026-11.softiser:d/7"}},
		{"the number of a LUN", exitUsage, []string{"iqn.2026-11.softiser:d/x"}},
		{"not negative", exitUsage, []string{"d", "--count", "-1"}},
		{"1 of 1 arguments are missing", exitUsage, nil},
	} {
		if code, out := command(t, append([]string{"trace", "--socket", socket}, c.args...)...); code != c.code || !strings.Contains(out, c.want) {
			t.Errorf("%v: exit %d, want %q in %s", c.args, code, c.want, out)
		}
	}
	if code, out := command(t, "trace", "--socket", filepath.Join(dir, "none"), "d"); code != exitNoTarget {
		t.Errorf("no target: exit %d, %s", code, out)
	}
}

// TestTraceGoesOn: a trace goes on at the process that takes over.
func TestTraceGoesOn(t *testing.T) {
	s := serveProgram(t, "--export", "m=memory,size=8MiB")
	l := s.open("iqn.2026-11.softiser:m", "")
	x := traceFrom(t, s.socket, "m", "--json")
	traced := func() int { return strings.Count(x.out.String(), `"answered_ns"`) }
	reads := func(at int) func() bool {
		return func() bool {
			if _, err := l.ReadAt(make([]byte, 512), 0); err != nil {
				t.Fatal(err)
			}
			return traced() > at
		}
	}
	await.True(t, "a command is traced", reads(0))
	if _, err := s.upgrade(); err != nil {
		t.Fatal(err)
	}
	await.True(t, "the trace is told of the new process", func() bool { return strings.Contains(x.out.String(), "the trace goes on there") })
	await.True(t, "commands of the new process are traced", reads(traced()))
	n := traced()
	x.end()
	if all, sum := x.commands(); len(all) < n || sum.Commands != len(all) {
		t.Errorf("%d commands were told, %d summed up", len(all), sum.Commands)
	}
}

// Percentiles of steps are those of what they took, to an eighth of a power of two, however short that is.
func TestTracePercentiles(t *testing.T) {
	var out strings.Builder
	x := tracer{out: &out, json: true}
	for i := range 100 {
		x.steps[0].observe(time.Duration(i + 1))
		x.steps[1].observe(3 * time.Second)
	}
	if err := x.sum(); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"leased":{"commands":100,"p50_ns":51,"p99_ns":103}`, `"placed":{"commands":100,"p50_ns":3221225471,"p99_ns":3221225471}`} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %s in %s", want, out.String())
		}
	}
}
