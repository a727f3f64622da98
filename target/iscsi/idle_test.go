package iscsi

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Names in the environment: how many sessions TestIdleSessions keeps (make idle-sessions has
// it keep 10,000), and, for the process with the initiators, where the target is.
const (
	idleSessions = "SOFTISER_IDLE_SESSIONS"
	idleTarget   = "SOFTISER_IDLE_TARGET"
)

// As many sessions as the limits let in do nothing: each costs what it is allowed to, whoever
// wakes up is served, and there is room for nobody else. The initiators are a process of
// their own: what is counted is the target's, and each has its own limit of descriptors.
func TestIdleSessions(t *testing.T) {
	n := 200
	if s := os.Getenv(idleSessions); s != "" {
		var err error
		if n, err = strconv.Atoi(s); err != nil || n < 1 || n > 60000 {
			t.Fatalf("%s=%s is no number of sessions", idleSessions, s)
		}
	}
	allowDescriptors(t, n+200)
	if addr := os.Getenv(idleTarget); addr != "" {
		idleInitiators(t, addr, n)
		return
	}
	s := serve(t, func(c *serverConfig, _ *Target) {
		c.Limits.Sessions, c.Limits.SessionsPerAddress, c.Limits.ReservedSessions = n, n, 0
		c.Timeouts.NopInterval = -1 // nobody answers pings until all are logged in
	})
	before := usedMemory()
	began := time.Now()
	others := startIdle(t, s.addr)
	if !others.says("all logged in") {
		t.Fatal("the initiators have ended")
	}
	took := time.Since(began)
	each := (usedMemory() - before) / int64(n)
	t.Logf("%d sessions, logged in within %.1f s, take %d bytes each at the target", n, took.Seconds(), each)
	if each > 128<<10 {
		t.Errorf("an idle session takes %d bytes", each)
	}
	if p := s.dial().login(testIQN); p.LoginResponse().Status() == 0 {
		t.Error("one session more than there may be has been let in")
	}
	others.stdin.Close() // some of them are to wake up
	if !others.says("served") {
		t.Error("sessions that have been idle are not served")
	}
	if err := others.Wait(); err != nil {
		t.Errorf("the initiators: %v", err)
	}
}

// idleInitiators logs n initiators in, and lets fifty of them work when standard input ends.
func idleInitiators(t *testing.T, addr string, n int) {
	all := make([]*rawInitiator, n)
	for i := range all {
		r := dialRaw(t, addr)
		// As many hosts: a login asks after the sessions of its own initiator; see awaitEnding.
		r.name = fmt.Sprintf("iqn.2026-11.test:idle%d", i)
		r.mustLogin(testIQN)
		all[i] = r
	}
	fmt.Println("all logged in")
	_, _ = io.Copy(io.Discard, os.Stdin)
	for i := 0; i < n; i += max(1, n/50) {
		all[i].ready()
	}
	fmt.Println("served")
}

// idleProcess is the process with the initiators.
type idleProcess struct {
	*exec.Cmd
	stdin io.Closer
	out   *bufio.Scanner
}

func startIdle(t *testing.T, addr string) *idleProcess {
	c := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestIdleSessions$", "-test.timeout=10m")
	c.Env = append(os.Environ(), idleTarget+"="+addr)
	c.Stderr = os.Stderr
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	in, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	return &idleProcess{c, in, bufio.NewScanner(out)}
}

// says waits for a line; false: the process has ended without.
func (p *idleProcess) says(line string) bool {
	for p.out.Scan() {
		if strings.TrimSpace(p.out.Text()) == line {
			return true
		}
		fmt.Fprintln(os.Stderr, p.out.Text())
	}
	return false
}

// allowDescriptors raises the limit of descriptors to n for as long as the test runs.
func allowDescriptors(t *testing.T, n int) {
	need := uint64(n)
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if was := limit; was.Cur < need {
		limit.Cur, limit.Max = need, max(limit.Max, need)
		if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
			t.Skipf("%d descriptors are needed, there are %d, and more are not allowed: %v", need, was.Cur, err)
		}
		t.Cleanup(func() { syscall.Setrlimit(syscall.RLIMIT_NOFILE, &was) })
	}
}

// usedMemory is what heap and stacks hold.
func usedMemory() int64 {
	for range 2 { // pools give what is in them away at the second time
		runtime.GC()
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapInuse + m.StackInuse)
}
