package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"go.uber.org/zap"

	"softiser/internal/await"
	"softiser/internal/handover"
	"softiser/internal/loopback"
	"softiser/target"
	"softiser/target/admin"
	"softiser/target/registry"
)

// served is a target that runs as a process of its own, which others take the place of.
type served struct {
	t            *testing.T
	addr, socket string
	log          string
	pid          int // of the process that serves now
}

// serveProgram starts a target; more are arguments of serve.
func serveProgram(t *testing.T, more ...string) *served {
	t.Helper()
	dir := t.TempDir()
	s := &served{t: t, addr: loopback.FreeAddr(t), socket: filepath.Join(dir, "s"), log: filepath.Join(dir, "log")}
	log, err := os.Create(s.log) // not a pipe: the processes that follow have it as well
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	c := program(t, append([]string{"serve", "--listen", s.addr, "--socket", s.socket}, more...)...)
	c.Stdout, c.Stderr = log, log
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	s.pid = c.Process.Pid
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the log of the target:\n%s", s.read())
		}
		s.end()
	})
	await.True(t, "it serves", func() bool { return strings.Contains(s.read(), "serves on") })
	return s
}

func (s *served) read() string {
	b, err := os.ReadFile(s.log)
	if err != nil {
		s.t.Fatal(err)
	}
	return string(b)
}

// end ends the process that serves now, which need not be a child of this one.
func (s *served) end() {
	if syscall.Kill(s.pid, syscall.SIGTERM) != nil {
		return
	}
	await.True(s.t, "the target ends", func() bool { return gone(s.pid) })
}

// gone reports whether a process has ended, waited for or not.
func gone(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, rest, _ := strings.Cut(string(b), ") ")
	return err != nil || strings.HasPrefix(rest, "Z")
}

// upgrade replaces the process.
func (s *served) upgrade(args ...string) (u admin.Upgraded, err error) {
	code, out := command(s.t, append([]string{"upgrade", "--socket", s.socket, "--json"}, args...)...)
	if code == 0 && strings.Contains(out, "null") {
		s.t.Errorf("no list:\n%s", out)
	}
	if code != 0 {
		return u, errors.New(out)
	}
	if err := json.Unmarshal([]byte(out), &u); err != nil {
		s.t.Fatal(err, out)
	}
	if u.Old != s.pid || u.New == s.pid {
		s.t.Fatalf("%d has taken over from %d; it was %d", u.New, u.Old, s.pid)
	}
	await.True(s.t, "the old process ends", func() bool { return gone(u.Old) })
	s.pid = u.New
	return u, nil
}

// TestUpgrade: listeners and volumes go from process to process. Nobody is refused meanwhile,
// memory keeps its content, the file its lock.
func TestUpgrade(t *testing.T) {
	dir, metrics := t.TempDir(), loopback.FreeAddr(t)
	img := filepath.Join(dir, "d.img")
	s := serveProgram(t, "--metrics", metrics, "--export", "m=memory,size=8MiB", "--export", "d="+img+",size=8MiB", "--export", "z=null,size=8MiB")
	pattern := bytes.Repeat([]byte("stays so"), 512)
	names := []string{"iqn.2026-11.softiser:m", "iqn.2026-11.softiser:d"}
	for _, n := range names {
		l := attach(t, s.addr, n)
		if _, err := l.WriteAt(pattern, 1<<20); err != nil {
			t.Fatal(err)
		}
		l.Close()
	}
	was := namesOf(t, s.addr, names[0])
	quit, refused := make(chan struct{}), make(chan error, 1)
	go func() { refused <- dialAlways(s.addr, quit) }()
	for range 3 {
		u, err := s.upgrade()
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"portal " + s.addr, "volume m", "volume d"} {
			if !slices.Contains(u.Carried, want) {
				t.Fatalf("%s is not among what is carried: %v", want, u.Carried)
			}
		}
		if len(u.Closed) == 0 || !strings.Contains(u.Closed[0], "volume z") {
			t.Fatalf("closed: %v", u.Closed)
		}
		for _, sub := range statusOf(t, s.socket).Subsystems[:2] {
			if n := sub.Namespaces; len(n) != 1 || n[0].Error != "" {
				t.Fatalf("%s: %+v", sub.NQN, n)
			}
		}
		t.Logf("pause until everything was the new process's: %v", u.Pause)
		for _, n := range names {
			l := attach(t, s.addr, n)
			b := make([]byte, len(pattern))
			if _, err := l.ReadAt(b, 1<<20); err != nil || !bytes.Equal(b, pattern) {
				t.Fatalf("%s has lost its content (%v)", n, err)
			}
			if _, err := l.ReadAt(b, 4<<20); err != nil || bytes.ContainsFunc(b, func(r rune) bool { return r != 0 }) {
				t.Fatalf("%s: what was never written is not zero (%v)", n, err)
			}
			if _, err := l.WriteAt(pattern, 2<<20); err != nil {
				t.Fatal(err)
			}
			l.Close()
		}
		if code, out := command(t, "serve", "--listen", loopback.FreeAddr(t), "--export", "d="+img); code == 0 || !strings.Contains(out, "locked") {
			t.Fatalf("another target can have the file: %d\n%s", code, out)
		}
		await.True(t, "the null volume is served again", func() bool {
			st := statusOf(t, s.socket)
			return len(st.Targets) == 3 && len(st.Targets[2].LUNs) == 1 && st.Targets[2].LUNs[0].Error == ""
		})
		if r, err := http.Get("http://" + metrics + "/metrics"); err != nil {
			t.Fatal(err)
		} else {
			r.Body.Close()
		}
	}
	close(quit)
	if err := <-refused; err != nil {
		t.Errorf("a connection was refused: %v", err)
	}
	if now := namesOf(t, s.addr, names[0]); !slices.Equal(now, was) {
		t.Errorf("the memory volume was %v and has become another disk: %v", was, now)
	}
	s.end()
	if _, err := os.Lstat(s.socket); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the last process has left its socket: %v", err)
	}
}

func namesOf(t *testing.T, addr, iqn string) []string {
	t.Helper()
	l := attach(t, addr, iqn)
	defer l.Close()
	return l.Names()
}

// dialAlways connects again and again until quit is closed, and returns the first error.
func dialAlways(addr string, quit <-chan struct{}) error {
	for {
		select {
		case <-quit:
			return nil
		default:
		}
		c, err := net.DialTimeout("tcp", addr, time.Minute)
		if err != nil {
			return err
		}
		c.Close()
		time.Sleep(2 * time.Millisecond) // not a wait for anything: the host has few ports
	}
}

// TestUpgradeSignal: SIGUSR2 does the same.
func TestUpgradeSignal(t *testing.T) {
	s := serveProgram(t, "--export", "m=memory,size=8MiB")
	if err := syscall.Kill(s.pid, syscall.SIGUSR2); err != nil {
		t.Fatal(err)
	}
	old := s.pid
	await.True(t, "the process is replaced", func() bool { return gone(old) })
	fmt.Sscanf(s.read()[strings.Index(s.read(), `"to"`):], `"to": %d`, &s.pid)
	await.True(t, "the new process serves", func() bool { return strings.Contains(s.read(), "took over") })
	if st := statusOf(t, s.socket); len(st.Targets) != 1 {
		t.Fatalf("%+v", st)
	}
}

// TestUpgradeFails: whatever is wrong with the new process, the old one goes on, and says why.
func TestUpgradeFails(t *testing.T) {
	s := serveProgram(t, "--export", "m=memory,size=8MiB")
	l := attach(t, s.addr, "iqn.2026-11.softiser:m")
	defer l.Close()
	pattern := bytes.Repeat([]byte("x"), 4096)
	if _, err := l.WriteAt(pattern, 0); err != nil {
		t.Fatal(err)
	}
	works := func() {
		t.Helper()
		b := make([]byte, 4096)
		if _, err := l.ReadAt(b, 0); err != nil || !bytes.Equal(b, pattern) || l.Stats().Logins != 1 {
			t.Fatalf("the old process does not go on: %v", err)
		}
		if gone(s.pid) {
			t.Fatal("it has ended")
		}
	}
	for binary, want := range map[string]string{"/nowhere": "no such file", "/bin/false": "ended before it could take over", "/bin/true": "ended before it could take over"} {
		if _, err := s.upgrade("--binary", binary); err == nil || !strings.Contains(err.Error(), want) {
			t.Fatalf("%s: %v", binary, err)
		}
		works()
	}
	for _, c := range []struct {
		want string
		args []string
	}{
		{"other portals take a restart", []string{"--listen", loopback.FreeAddr(t), "--export", "m=memory,size=8MiB"}},
		{"not in the configuration", []string{"--listen", s.addr, "--export", "n=memory,size=8MiB"}},
		{"another block_size", []string{"--listen", s.addr, "--export", "m=memory,size=8MiB,block=4096"}},
	} {
		code, out := command(t, append([]string{"serve", "--takeover", "--socket", s.socket}, c.args...)...)
		if code == 0 || !strings.Contains(out, c.want) {
			t.Fatalf("%v: %d\n%s", c.args, code, out)
		}
		if !collects() {
			t.Fatal("no garbage is collected any more")
		}
		works()
	}
	if code, out := command(t, "serve", "--takeover", "--export", "m=memory,size=8MiB"); code != exitUsage {
		t.Fatalf("without an admin socket: %d\n%s", code, out)
	}
}

// TestUpgradeCut: a new process that vanishes at any step before it has been told that
// everything is its own leaves the old one as it was.
func TestUpgradeCut(t *testing.T) {
	s := serveProgram(t, "--export", "m=memory,size=8MiB")
	l := attach(t, s.addr, "iqn.2026-11.softiser:m")
	defer l.Close()
	for step, cut := range map[string]func(*net.UnixConn){
		"connected": func(c *net.UnixConn) { c.Close() },
		"garbage":   func(c *net.UnixConn) { fmt.Fprint(c, strings.Repeat("x", 64)); c.Close() },
		"an older version": func(c *net.UnixConn) {
			if _, err := handover.Take(c, "old", stateVersion-1, await.Deadline); !errors.Is(err, handover.ErrRefused) {
				t.Errorf("a downgrade: %v", err)
			}
		},
		"a version too far ahead": func(c *net.UnixConn) {
			if _, err := handover.Take(c, "new", stateVersion+2, await.Deadline); !errors.Is(err, handover.ErrRefused) {
				t.Errorf("a version too far ahead: %v", err)
			}
		},
		"offered": func(c *net.UnixConn) {
			got, err := handover.Take(c, "new", stateVersion, await.Deadline)
			if err != nil {
				t.Fatal(err)
			}
			var st handedOver
			if err := json.Unmarshal(got.State, &st); err != nil || len(st.Volumes) != 1 {
				t.Errorf("%v: %s", err, got.State)
			}
			got.Close()
		},
		"refused": func(c *net.UnixConn) {
			got, err := handover.Take(c, "new", stateVersion, await.Deadline)
			if err != nil {
				t.Fatal(err)
			}
			got.Refuse(errors.New("no"))
			got.Close()
		},
	} {
		c, err := admin.TakeOver(t.Context(), s.socket)
		if err != nil {
			t.Fatalf("%s: %v", step, err)
		}
		cut(c)
		if _, err := l.WriteAt(make([]byte, 4096), 0); err != nil || l.Stats().Logins != 1 {
			t.Fatalf("%s: %v", step, err)
		}
		if code, out := command(t, "status", "--socket", s.socket); code != 0 {
			t.Fatalf("%s: status: %s", step, out)
		}
	}
	if _, err := s.upgrade(); err != nil { // and the next one gets everything
		t.Fatal(err)
	}
}

// offered returns what a process offers to the one that would take its place.
func offered(t *testing.T, socket string) (got *handover.Taken) {
	t.Helper()
	var err error
	if !await.Until(func() bool { // an attempt before this one may not be over
		var c *net.UnixConn
		if c, err = admin.TakeOver(t.Context(), socket); err == nil {
			got, err = handover.Take(c, "new", stateVersion, await.Deadline)
		}
		return err == nil
	}) {
		t.Fatal(err)
	}
	return got
}

// TestUpgradeTerminated: SIGTERM in the middle of a handover lets that come to its end: after --drain
// it is given up, and the old process ends in good order; if the new one has been told before that
// everything is its own, the old one ends at once.
func TestUpgradeTerminated(t *testing.T) {
	for _, taken := range []bool{false, true} {
		drain := map[bool]string{false: "100ms", true: "1h"}[taken]
		s := serveProgram(t, "--drain", drain, "--export", "m=memory,size=8MiB")
		got := offered(t, s.socket)
		if err := syscall.Kill(s.pid, syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		if !taken {
			await.True(t, "the process ends", func() bool { return gone(s.pid) })
		}
		if err := got.Accept(); (err == nil) != taken {
			t.Errorf("taken %v: %v", taken, err)
		}
		await.True(t, "the process ends", func() bool { return gone(s.pid) })
		if _, err := os.Lstat(s.socket); (err == nil) != taken {
			t.Errorf("taken %v: its socket: %v", taken, err)
		}
		got.Close()
	}
}

// TestUpgradeForeseen: what the new process lacks beside what is handed over is found while the old
// one can go on.
func TestUpgradeForeseen(t *testing.T) {
	s := serveProgram(t, "--export", "m=memory,size=8MiB")
	busy, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer busy.Close()
	for _, c := range []struct {
		want string
		args []string
	}{
		{"admin.metrics", []string{"--metrics", busy.Addr().String()}},
		{"roce://192.0.2.1", []string{"--listen", "roce://192.0.2.1"}},
	} {
		code, out := command(t, append([]string{"serve", "--takeover", "--socket", s.socket, "--listen", s.addr, "--export", "m=memory,size=8MiB"}, c.args...)...)
		if code == 0 || !strings.Contains(out, c.want) || gone(s.pid) {
			t.Fatalf("%v: %d\n%s", c.args, code, out)
		}
	}
	if _, err := s.upgrade(); err != nil {
		t.Fatal(err)
	}
}

// TestUpgradeStateDir: another folder of the state is refused, in which volumes would find nothing of what
// they have kept; another name of the same one is not.
func TestUpgradeStateDir(t *testing.T) {
	dir := t.TempDir()
	state, link := filepath.Join(dir, "state"), filepath.Join(dir, "link")
	if err := os.Symlink(state, link); err != nil {
		t.Fatal(err)
	}
	configure := func(state string) (file string) {
		file, _ = configFile(t, dir, "admin: {state_dir: "+state+"}\nvolumes: [{name: m, type: memory, size: 1MiB}]\ntargets: [{iqn: \"iqn.2026-11.test:m\", luns: [{lun: 0, volume: m}]}]\n")
		return file
	}
	s := serveProgram(t, "--config", configure(state))
	for _, other := range []string{filepath.Join(dir, "other"), `""`} {
		configure(other)
		if _, err := s.upgrade(); err == nil || !strings.Contains(err.Error(), "another folder takes a restart") {
			t.Fatalf("%s: %v", other, err)
		}
	}
	configure(link)
	if _, err := s.upgrade(); err != nil {
		t.Fatal(err)
	}
}

// TestStateDirInUse: a second target is refused the folder of the state of another one, which is named, also when that is the
// one that has taken over, and has it when that has ended.
func TestStateDirInUse(t *testing.T) {
	dir, other := t.TempDir(), t.TempDir()
	configure := func(in string) (file string) {
		file, _ = configFile(t, in, "admin: {state_dir: "+filepath.Join(dir, "state")+"}\nvolumes: [{name: m, type: memory, size: 1MiB, serial: one}]\ntargets: [{iqn: \"iqn.2026-11.test:m\", luns: [{lun: 0, volume: m}]}]\n")
		return file
	}
	s, second := serveProgram(t, "--config", configure(dir)), configure(other)
	refused := func(by string) {
		t.Helper()
		want := "admin.state_dir: " + filepath.Join(dir, "state") + " is in use by " + by
		if code, out := command(t, "serve", "--config", second, "--listen", loopback.FreeAddr(t)); code != exitFailure || !strings.Contains(out, want) {
			t.Errorf("exit %d, no %q in %s", code, want, out)
		}
		if code, out := command(t, "check", "--config", second, "--socket", filepath.Join(other, "none")); code != 0 || !strings.Contains(out, "warning: "+want) {
			t.Errorf("check: exit %d, no %q in %s", code, want, out)
		}
		if code, out := command(t, "check", "--config", second, "--socket", s.socket); code != 0 || strings.Contains(out, "in use by") {
			t.Errorf("check, with the target that has it: exit %d, %s", code, out)
		}
	}
	first := s.pid
	refused(fmt.Sprintf("process %d (", first))
	for range 2 {
		if _, err := s.upgrade(); err != nil {
			t.Fatal(err)
		}
	}
	refused(fmt.Sprintf("the process that has taken over from process %d", first))
	s.end()
	_, stop := start(t, "--config", second, "--listen", loopback.FreeAddr(t))
	stop()
}

// TestUpgradeRelativeStateDir: one name of two folders, each relative to a process of its own, is refused.
func TestUpgradeRelativeStateDir(t *testing.T) {
	build := func() *app {
		dir := t.TempDir()
		t.Chdir(dir)
		configFile(t, dir, "admin: {state_dir: state}\nvolumes: [{name: m, type: memory, size: 1MiB}]\ntargets: [{iqn: \"iqn.2026-11.test:m\", luns: [{lun: 0, volume: m}]}]\n")
		f := serveFlags{config: "c.yaml", storage: await.Deadline}
		cfg, err := f.resolve()
		if err != nil {
			t.Fatal(err)
		}
		a := &app{log: zap.NewNop()}
		if err := a.build(cfg, &f, registry.Config{}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(a.reg.Close)
		t.Cleanup(func() { a.srv.Shutdown(context.Background()) })
		return a
	}
	old, next := build(), build()
	x := taking{state: handedOver{StateDir: old.stateDir}}
	if err := x.checkStateDir(next.stateDir); err == nil || !strings.Contains(err.Error(), "another folder takes a restart") {
		t.Error(err)
	}
	if err := x.checkStateDir(old.stateDir); err != nil {
		t.Error(err)
	}
}

// TestUpgradeFiles: descriptors that have not come, or that are to be two things, are found before
// anything changes hands.
func TestUpgradeFiles(t *testing.T) {
	s := serveProgram(t, "--export", "m=memory,size=8MiB")
	got := offered(t, s.socket)
	defer got.Close()
	for want, spoil := range map[string]func(*handedOver){
		"":                             func(*handedOver) {},
		"with the descriptor of":       func(h *handedOver) { h.Volumes[0].File = h.Admin },
		"portal":                       func(h *handedOver) { h.Portals[0].File = got.Files() },
		"volume m: no descriptor":      func(h *handedOver) { h.Volumes[0].File = -1 },
		"with the descriptor of the a": func(h *handedOver) { h.Portals[0].File = h.Admin },
	} {
		x := taking{Taken: got}
		if err := json.Unmarshal(got.State, &x.state); err != nil {
			t.Fatal(err)
		}
		spoil(&x.state)
		if err := x.checkFiles(); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", want, err)
		}
	}
}

// TestUpgradeAsksAgain: connections that the old process had taken, and closes by its end, are no
// answer of the new one.
func TestUpgradeAsksAgain(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	ln, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	var asked atomic.Int32
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/upgrade", func(w http.ResponseWriter, _ *http.Request) {
		json.NewEncoder(w).Encode(admin.Upgraded{Old: 1, New: 2, Pause: time.Hour})
	})
	mux.HandleFunc("GET /v1/status", func(w http.ResponseWriter, _ *http.Request) {
		if asked.Add(1) <= 3 {
			if c, _, err := http.NewResponseController(w).Hijack(); err == nil {
				c.Close()
			}
			return
		}
		json.NewEncoder(w).Encode(target.Status{TakenOver: &target.TakenOver{PID: 1, Pause: 42 * time.Millisecond}})
	})
	srv, served := &http.Server{Handler: mux}, make(chan error, 1)
	go func() { served <- srv.Serve(ln) }()
	code, out := command(t, "upgrade", "--socket", socket)
	srv.Close()
	<-served
	if n := asked.Load(); code != 0 || n != 4 || !strings.Contains(out, "process 2 has taken over from 1; the pause was 42ms") {
		t.Errorf("exit %d after %d questions:\n%s", code, n, out)
	}
}

// TestUpgradeFromHere: a program is named from the folder of whoever asks, and not from that of the target.
func TestUpgradeFromHere(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	socket := filepath.Join(dir, "s")
	ln, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	asked := make(chan admin.UpgradeRequest, 1)
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/upgrade", func(w http.ResponseWriter, r *http.Request) {
		var q admin.UpgradeRequest
		if err := json.NewDecoder(r.Body).Decode(&q); err != nil {
			t.Error(err)
		}
		asked <- q
		http.Error(w, "not today", http.StatusConflict)
	})
	srv, served := &http.Server{Handler: mux}, make(chan error, 1)
	go func() { served <- srv.Serve(ln) }()
	defer func() {
		srv.Close()
		<-served
	}()
	for binary, want := range map[string]string{"": "", "new": "new", "./new": filepath.Join(dir, "new"), "../new": filepath.Join(filepath.Dir(dir), "new"), "/new": "/new"} {
		code, out := command(t, "upgrade", "--socket", socket, "--binary", binary)
		if q := <-asked; code != exitFailure || q.Binary != want {
			t.Errorf("--binary %q: exit %d, the target is asked for %q, want %q\n%s", binary, code, q.Binary, want, out)
		}
	}
}

// collects reports whether garbage is collected.
func collects() bool {
	percent := debug.SetGCPercent(100)
	debug.SetGCPercent(percent)
	return percent >= 0
}

func TestSuccessorArgs(t *testing.T) {
	for in, want := range map[string]string{
		"serve --export a=memory,size=1MiB":        "serve --takeover --export a=memory,size=1MiB",
		"serve --ready-fd 3 -c f":                  "serve --takeover -c f",
		"serve --takeover --ready-fd=3 --socket s": "serve --takeover --socket s",
	} {
		if got := strings.Join(successorArgs(strings.Fields(in)), " "); got != want {
			t.Errorf("%s: %s; want %s", in, got, want)
		}
	}
}

// TestUpgradeUntold: a service manager that cannot be told any more (podman takes the socket away once
// it has heard that the first process serves) is no reason for the new process to end, which has
// everything by then.
func TestUpgradeUntold(t *testing.T) {
	name := filepath.Join(t.TempDir(), "notify")
	manager, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: name, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("NOTIFY_SOCKET", name)
	s := serveProgram(t, "--export", "m=memory,size=8MiB")
	for said, b := "", make([]byte, 1024); !strings.Contains(said, "READY=1"); {
		n, err := manager.Read(b)
		if err != nil {
			t.Fatal(err)
		}
		said = string(b[:n])
	}
	_ = manager.Close()
	if err := os.Remove(name); err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := s.upgrade(); err != nil {
			t.Fatal(err)
		}
		l := attach(t, s.addr, "iqn.2026-11.softiser:m")
		if _, err := l.ReadAt(make([]byte, 512), 0); err != nil {
			t.Error(err)
		}
		l.Close()
	}
}

// TestUpgradeActiveGroup: a group of volumes that move between nodes, which was this node's, is so in the
// next process.
func TestUpgradeActiveGroup(t *testing.T) {
	dir := t.TempDir()
	for name, err := range map[string]error{"disk": os.WriteFile(filepath.Join(dir, "disk0.img"), make([]byte, 1<<20), 0o600), "store": os.Mkdir(filepath.Join(dir, "store"), 0o700)} {
		if err != nil {
			t.Fatal(name, err)
		}
	}
	file := filepath.Join(dir, "c.yaml")
	text := `
volumes:
  - {name: disk0, type: file, path: disk0.img, size: 1MiB, wwid: 6000000000000000000000000000da7a, serial: S1}
  - {name: m, type: memory, size: 1MiB}
targets:
  - {iqn: iqn.2026-11.test:a, luns: [{lun: 0, volume: disk0}]}
  - {iqn: iqn.2026-11.test:m, luns: [{lun: 0, volume: m}]}
ha: {node: a, store: store, groups: [{name: g1, volumes: [disk0], fencing: node}]}
`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	s := serveProgram(t, "--config", file)
	state := func() string { return statusOf(t, s.socket).Groups[0].State }
	if _, err := s.upgrade(); err != nil {
		t.Fatal(err)
	}
	if code, out := command(t, "promote", "g1", "--socket", s.socket); code != 0 { // waits until everything is opened
		t.Fatal(out)
	}
	l := attach(t, s.addr, "iqn.2026-11.test:a")
	pattern := bytes.Repeat([]byte("x"), 4096)
	if _, err := l.WriteAt(pattern, 4096); err != nil {
		t.Fatal(err)
	}
	l.Close()
	if _, err := s.upgrade(); err != nil {
		t.Fatal(err)
	}
	await.True(t, "the group is active again", func() bool { return state() == "active" })
	l = attach(t, s.addr, "iqn.2026-11.test:a")
	defer l.Close()
	b := make([]byte, len(pattern))
	if _, err := l.ReadAt(b, 4096); err != nil || !bytes.Equal(b, pattern) {
		t.Errorf("what was written: %v, equal %v", err, bytes.Equal(b, pattern))
	}
}

// A group that was given up stays so, with start: active as well: its new owner would lose it when it gives it
// up in turn.
func TestUpgradeDemotedGroup(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "disk0.img"), make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "c.yaml")
	text := `
volumes: [{name: disk0, type: file, path: disk0.img, size: 1MiB, wwid: 6000000000000000000000000000da7a, serial: S1}]
targets: [{iqn: iqn.2026-11.test:a, luns: [{lun: 0, volume: disk0}]}]
ha: {node: a, store: DIR, groups: [{name: g1, volumes: [disk0], fencing: node, start: active}]}
`
	text = strings.Replace(text, "store: DIR", "store: "+dir, 1)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	s := serveProgram(t, "--config", file)
	state := func() string { return statusOf(t, s.socket).Groups[0].State }
	await.True(t, "the group is active", func() bool { return state() == "active" })
	if code, out := command(t, "demote", "g1", "--socket", s.socket); code != 0 {
		t.Fatal(out)
	}
	if _, err := s.upgrade(); err != nil {
		t.Fatal(err)
	}
	if code, out := command(t, "reload", "--socket", s.socket); code != 0 { // waits until everything is opened
		t.Fatal(out)
	}
	if got := state(); got != "standby" {
		t.Errorf("the group is %s", got)
	}
}

// What programs iterate over is a list, also where nothing is in it.
func TestUpgradedLists(t *testing.T) {
	cmd := &cobra.Command{}
	var out bytes.Buffer
	cmd.SetOut(&out)
	if err := printUpgraded(cmd, admin.Upgraded{}, true); err != nil || strings.Contains(out.String(), "null") {
		t.Errorf("%v: %s", err, out.String())
	}
}
