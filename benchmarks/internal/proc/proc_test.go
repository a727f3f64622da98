package proc

import (
	"context"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"softiser/internal/await"
)

func TestServerLifecycle(t *testing.T) {
	log := t.TempDir() + "/log"
	p, err := Start(Spec{Argv: []string{"sh", "-c", "echo started; exec sleep 60"}, Place: Free, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	if gone, _ := p.Exited(); gone {
		t.Error("it has ended")
	}
	if _, err := p.CPU(); err != nil {
		t.Error(err)
	}
	if n, err := Status(p.PID(), "VmRSS"); err != nil || n == 0 {
		t.Errorf("RSS %d, %v", n, err)
	}
	if _, err := Status(p.PID(), "NoSuchField"); err == nil {
		t.Error("a field that does not exist was read")
	}
	p.Stop()
	if gone, _ := p.Exited(); !gone {
		t.Error("it is still there")
	}
	if _, err := p.CPU(); err != nil {
		t.Errorf("after the end: %v", err)
	}
}

func TestWaitListen(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	p, err := Start(Spec{Argv: []string{"sleep", "60"}, Place: Free})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Stop()
	if err := p.WaitListen(l.Addr().String()); err != nil {
		t.Error(err)
	}
	dead, err := Start(Spec{Argv: []string{"sh", "-c", "echo why it failed; exit 3"}, Place: Free, Log: t.TempDir() + "/log"})
	if err != nil {
		t.Fatal(err)
	}
	defer dead.Stop()
	if err := dead.WaitListen("127.0.0.1:1"); err == nil || !strings.Contains(err.Error(), "why it failed") {
		t.Errorf("error %v", err)
	}
}

func TestRun(t *testing.T) {
	out, err := Run(t.Context(), Spec{Argv: []string{"sh", "-c", "echo hello; i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done"}, Place: Free})
	if err != nil || string(out.Stdout) != "hello\n" || out.CPU <= 0 || out.Wall <= 0 {
		t.Errorf("%+v, %v", out, err)
	}
	if _, err := Run(t.Context(), Spec{Argv: []string{"sh", "-c", "echo bad >&2; exit 1"}, Place: Free}); err == nil || !strings.Contains(err.Error(), "bad") {
		t.Errorf("error %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := Run(ctx, Spec{Argv: []string{"sleep", "60"}, Place: Free}); err == nil {
		t.Error("a client outlived its context")
	}
}

// Ending a client ends what it has started.
func TestRunKillsChildren(t *testing.T) {
	pidFile := t.TempDir() + "/pid"
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := Run(ctx, Spec{Argv: []string{"sh", "-c", "sleep 60 >/dev/null 2>&1 & echo $! >" + pidFile + ".new; mv " + pidFile + ".new " + pidFile + "; wait"}, Place: Free})
		done <- err
	}()
	var pid int
	await.True(t, "the client's child tells its pid", func() bool {
		b, _ := os.ReadFile(pidFile)
		pid, _ = strconv.Atoi(strings.TrimSpace(string(b)))
		return pid != 0
	})
	cancel()
	if err := <-done; err == nil {
		t.Error("no error")
	}
	await.True(t, "the client's child is dead", func() bool {
		state, err := Status(pid, "VmRSS") // a zombie has none
		return err != nil || state == 0
	})
}

func TestCommand(t *testing.T) {
	s := Spec{Argv: []string{"x", "--uri=a?b=c", "--size=1"}, Env: []string{"A=b"}, Side: Server}
	if got := s.Command(); got != "A=b taskset -c 0 x '--uri=a?b=c' --size=1" {
		t.Errorf("%q", got)
	}
}

func TestPinning(t *testing.T) {
	if got := Pinned.wrap(Client, []string{"x"}); strings.Join(got, " ") != "taskset -c 1 x" {
		t.Errorf("%q", got)
	}
	if got := Free.wrap(Server, []string{"x"}); len(got) != 1 {
		t.Errorf("%q", got)
	}
	if _, ok := Have("sh"); !ok {
		t.Error("no sh")
	}
	if _, ok := Have("no-such-program"); ok {
		t.Error("found what is not there")
	}
	if cpu, err := CPU(os.Getpid()); err != nil || cpu < 0 {
		t.Errorf("%v, %v", cpu, err)
	}
}
