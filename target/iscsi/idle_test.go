package iscsi

import (
	"os"
	"runtime"
	"strconv"
	"syscall"
	"testing"
)

// idleSessions names, in the environment, how many sessions TestIdleSessions keeps; make
// idle-sessions has it keep 10,000.
const idleSessions = "SOFTISER_IDLE_SESSIONS"

// As many sessions as the limits let in do nothing: each costs what it is allowed to, whoever
// wakes up is served, and there is room for nobody else.
func TestIdleSessions(t *testing.T) {
	n := 200
	if s := os.Getenv(idleSessions); s != "" {
		var err error
		if n, err = strconv.Atoi(s); err != nil || n < 1 || n > 60000 {
			t.Fatalf("%s=%s is no number of sessions", idleSessions, s)
		}
	}
	need := uint64(2*n + 200) // both ends are here
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if was := limit; was.Cur < need {
		limit.Cur, limit.Max = need, max(limit.Max, need)
		if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
			t.Skipf("%d sessions need %d descriptors, there are %d, and more are not allowed: %v", n, need, was.Cur, err)
		}
		defer syscall.Setrlimit(syscall.RLIMIT_NOFILE, &was)
	}
	s := serve(t, func(c *serverConfig, _ *Target) {
		c.Limits.Sessions, c.Limits.SessionsPerAddress, c.Limits.ReservedSessions = n, n, 0
	})
	used := func() int64 {
		for range 2 { // pools give what is in them away at the second time
			runtime.GC()
		}
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapInuse + m.StackInuse)
	}
	login := func(i int) *rawInitiator {
		r := s.dial()
		r.isid[3], r.isid[4], r.isid[5] = byte(i>>16), byte(i>>8), byte(i)
		return r
	}
	before := used()
	var all []*rawInitiator
	for i := range n {
		r := login(i)
		r.mustLogin(testIQN)
		all = append(all, r)
	}
	each := (used() - before) / int64(n)
	t.Logf("%d sessions take %d bytes each, both ends together", n, each)
	if each > 128<<10 {
		t.Errorf("an idle session takes %d bytes, both ends together", each)
	}
	for i := 0; i < n; i += max(1, n/50) {
		all[i].ready()
	}
	if p := login(n).login(testIQN); p.LoginResponse().Status() == 0 {
		t.Error("one session more than there may be has been let in")
	}
}
