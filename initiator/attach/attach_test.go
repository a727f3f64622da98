package attach

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"softiser/blockdev"
	"softiser/initiator/blockio"
	"softiser/internal/await"
	"softiser/internal/usage"
)

// fakeLUN is a volume in memory.
type fakeLUN struct {
	mu      sync.Mutex
	data    []byte
	flushes int
	closed  int
	flush   error
	stuck   chan struct{} // when set: Flush waits for Close, which closes it
	away    chan struct{} // when set: requests wait for Close, which closes it
	begun   atomic.Int64  // requests
	size    atomic.Int64  // 0: that of data
	cached  bool          // the target has a volatile cache
	ro      atomic.Bool   // the volume is write-protected
	resized func(blockdev.Info)
	names   []string // nil: a name that says nothing
}

func (l *fakeLUN) Info() blockdev.Info {
	return blockdev.Info{Size: cmp.Or(l.size.Load(), int64(len(l.data))), BlockSize: 512, PhysBlockSize: 4096, WriteCache: l.cached, ReadOnly: l.ro.Load()}
}

// resize gives the volume another size, and tells who has asked for it last.
func (l *fakeLUN) resize(size int64) {
	l.size.Store(size)
	l.mu.Lock()
	f := l.resized
	l.mu.Unlock()
	f(l.Info())
}

func (l *fakeLUN) SubmitBatch(rs []*blockio.Request) {
	for _, r := range append([]*blockio.Request(nil), rs...) {
		l.begun.Add(1)
		go func() {
			if l.away != nil {
				<-l.away
				r.Err = blockdev.ErrClosed
				r.Done(r)
				return
			}
			l.mu.Lock()
			switch r.Op {
			case blockio.OpRead:
				copy(r.Buf, l.data[r.Off:])
			case blockio.OpWrite:
				copy(l.data[r.Off:], r.Buf)
			}
			l.mu.Unlock()
			r.Done(r)
		}()
	}
}

func (l *fakeLUN) NewFlusher() *blockio.Flusher { return nil }

func (l *fakeLUN) Names() []string {
	if l.names != nil {
		return l.names
	}
	return []string{"naa.fake"}
}

func (l *fakeLUN) Extents(off, n int64) ([]blockdev.Extent, error) {
	return []blockdev.Extent{{Off: off, Len: n, Data: true}}, nil
}

func (l *fakeLUN) Flush() error {
	if l.stuck != nil {
		<-l.stuck
		return blockdev.ErrClosed
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.flushes++
	return l.flush
}

func (l *fakeLUN) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed++
	for _, ch := range []chan struct{}{l.stuck, l.away} {
		if ch != nil {
			close(ch)
		}
	}
	return nil
}

func (l *fakeLUN) OnResize(f func(blockdev.Info)) func() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.resized = f
	return func() {}
}

func (l *fakeLUN) counts() (flushes, closed int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.flushes, l.closed
}

func options(t *testing.T, l *fakeLUN) Options {
	return Options{
		Dir: filepath.Join(t.TempDir(), "run"), URL: "iser://h:3260/iqn.2026-11.x:y/0", Device: "none", Describe: "y LUN 0",
		Open:          func(context.Context, Nexus) (LUN, error) { return l, nil },
		FinishTimeout: 10 * time.Second,
	}
}

func TestAttachLifecycle(t *testing.T) {
	l := &fakeLUN{data: make([]byte, 1<<20)}
	opt := options(t, l)
	opt.TCP = "127.0.0.1:0"
	a, held, err := Attach(t.Context(), opt)
	if err != nil || held != nil {
		t.Fatal(err, held)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- a.Wait(ctx) }()

	st, err := os.Stat(a.Record.Socket)
	if err != nil || st.Mode().Perm()&0o077 != 0 {
		t.Errorf("socket %v, %v: others can reach it", st, err)
	}
	live, err := List(opt.Dir)
	if err != nil || len(live) != 1 || live[0].URL != opt.URL || live[0].PID != os.Getpid() || live[0].Size != 1<<20 {
		t.Fatalf("list %+v, %v", live, err)
	}
	// Again: the same attachment is reported, the volume is not opened twice.
	again := opt
	again.Open = func(context.Context, Nexus) (LUN, error) { t.Error("opened twice"); return nil, errors.New("no") }
	if b, held, err := Attach(t.Context(), again); err != nil || b != nil || held == nil || !held.Already || held.Socket != a.Record.Socket {
		t.Errorf("again: %v, %+v, %v", b, held, err)
	}
	// Again, with what the attachment does not have: a script would go on with another device.
	for option, set := range map[string]func(*Options){
		"--device /dev/nbd7": func(o *Options) { o.Device = "/dev/nbd7" },
		"--device ublk":      func(o *Options) { o.Device = "ublk" },
		"--socket":           func(o *Options) { o.Socket = filepath.Join(t.TempDir(), "nbd.sock") },
		"--tcp":              func(o *Options) { o.TCP = "127.0.0.1:1" },
		"--export-name":      func(o *Options) { o.Export = "x" },
		"--read-only":        func(o *Options) { o.ReadOnly = true },
	} {
		other := again
		set(&other)
		option, _, _ = strings.Cut(option, " ")
		if b, held, err := Attach(t.Context(), other); err == nil || b != nil || held != nil || !strings.Contains(err.Error(), option) || !strings.Contains(err.Error(), "attached already") {
			t.Errorf("again, with another %s: %v, %+v, %v", option, b, held, err)
		}
	}
	left := again // open, and so as it is
	left.TCP, left.Device = "", "auto"
	if _, held, err := Attach(t.Context(), left); err != nil || held == nil || !held.Already {
		t.Errorf("again, with less said: %+v, %v", held, err)
	}
	for _, addr := range []string{a.Record.Socket, a.Record.TCP} {
		network := "unix"
		if addr == a.Record.TCP {
			network = "tcp"
		}
		c, err := net.Dial(network, addr)
		if err != nil {
			t.Fatal(err)
		}
		p := make([]byte, 8)
		if _, err := c.Read(p); err != nil || string(p) != "NBDMAGIC" {
			t.Errorf("%s: %q, %v", addr, p, err)
		}
		c.Close()
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("detach: %v", err)
	}
	if f, c := l.counts(); f != 1 || c != 1 {
		t.Errorf("%d flushes, closed %d times", f, c)
	}
	if files, _ := os.ReadDir(opt.Dir); len(files) != 0 {
		t.Errorf("left behind: %v", files)
	}
}

func TestAttachFailuresLeaveNothing(t *testing.T) {
	boom := errors.New("no such target")
	notSocket := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(notSocket, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name string
		mod  func(*Options)
		want string
	}{
		{"open", func(o *Options) { o.Open = func(context.Context, Nexus) (LUN, error) { return nil, boom } }, "no such target"},
		{"socket path is a file", func(o *Options) { o.Socket = notSocket }, "is not a socket"},
		{"public address", func(o *Options) { o.TCP = "0.0.0.0:0" }, "only loopback"},
		{"bad address", func(o *Options) { o.TCP = "nonsense" }, "expected 127.0.0.1"},
		{"bad device", func(o *Options) { o.Device = "/dev/sda" }, "expected auto, none, ublk, /dev/nbdN or /dev/ublkbN"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l := &fakeLUN{data: make([]byte, 1<<20)}
			opt := options(t, l)
			tc.mod(&opt)
			if _, _, err := Attach(t.Context(), opt); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want %q", err, tc.want)
			}
			if files, _ := os.ReadDir(opt.Dir); len(files) != 0 {
				t.Errorf("left behind: %v", files)
			}
		})
	}
}

func TestFailedFlushIsReported(t *testing.T) {
	l := &fakeLUN{data: make([]byte, 1<<20), flush: errors.New("medium error")}
	a, _, err := Attach(t.Context(), options(t, l))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := a.Wait(ctx); err == nil || !strings.Contains(err.Error(), "may be lost: medium error") {
		t.Errorf("error %v", err)
	}
}

// Who has a process end is told what went wrong at its end: of one in the background nobody else hears it.
func TestDetachTellsOfAFailedFlush(t *testing.T) {
	opt := options(t, &fakeLUN{data: make([]byte, 1<<20), flush: errors.New("medium error")})
	ctx, stop := signal.NotifyContext(t.Context(), syscall.SIGTERM)
	defer stop()
	a, _, err := Attach(ctx, opt)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- a.Wait(ctx) }()
	r, err := Detach(t.Context(), opt.Dir, opt.URL, false)
	if r == nil || err == nil || !strings.Contains(err.Error(), "may be lost: medium error") {
		t.Errorf("%v, %v", r, err)
	}
	if err := <-done; err == nil {
		t.Error("the process has no error itself")
	}
	if files, _ := os.ReadDir(opt.Dir); len(files) != 0 {
		t.Errorf("left behind: %v", files)
	}
}

// The unit gives an attachment the time that its end may take with a target that does not answer.
func TestUnitWaitsForTheEnd(t *testing.T) {
	text, err := os.ReadFile("../../packaging/systemd/iser-attach@.service")
	if err != nil {
		t.Fatal(err)
	}
	_, stop, _ := strings.Cut(string(text), "\nTimeoutStopSec=")
	stop, _, _ = strings.Cut(stop, "\n")
	has, err := time.ParseDuration(stop + "s")
	if err != nil {
		t.Fatal(err)
	}
	step, err := time.ParseDuration(Command("", nil).Flags().Lookup("timeout").DefValue)
	if err != nil {
		t.Fatal(err)
	}
	// writeBack, stop, and the logout (see options)
	if takes := step + 2*step + 15*time.Second; has < takes {
		t.Errorf("it has %v, and may take %v", has, takes)
	}
}

// A flush that the target does not answer holds detaching up no longer than the
// time-out.
func TestStuckFlush(t *testing.T) {
	l := &fakeLUN{data: make([]byte, 1<<20), stuck: make(chan struct{})}
	opt := options(t, l)
	opt.FinishTimeout = time.Second
	a, _, err := Attach(t.Context(), opt)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := a.Wait(ctx); err == nil || !strings.Contains(err.Error(), "may be lost: it did not end within 1s") {
		t.Errorf("error %v", err)
	}
	if _, closed := l.counts(); closed != 1 {
		t.Errorf("closed %d times", closed)
	}
}

// An attachment whose target is gone ends at once where nothing waits for a flush, and says nothing of a loss; where
// something does, it waits and says so.
func TestIdleWithoutTarget(t *testing.T) {
	for _, c := range []struct {
		name      string
		wrote     bool
		recovered bool // from a process that was killed
		want      string
	}{{"nothing written", false, false, ""}, {"written", true, false, "may be lost: it did not end within 1s"}, {"recovered", false, true, "may be lost: it did not end within 1s"}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			l := &fakeLUN{data: make([]byte, 1<<20), stuck: make(chan struct{})}
			opt := options(t, l)
			opt.FinishTimeout = time.Second
			var away atomic.Bool
			opt.State = func() (string, string) {
				if away.Load() {
					return stateReconnecting, "the target is gone"
				}
				return "connected", ""
			}
			a, _, err := Attach(t.Context(), opt)
			if err != nil {
				t.Fatal(err)
			}
			if c.wrote {
				a.nexus.Cache.Enter([16]byte{1}).Wrote(nil)
			}
			a.Record.Recovered = c.recovered
			away.Store(true)
			err = detached(t, a)
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("error %v, want %q", err, c.want)
			}
		})
	}
}

// detached ends an attachment as a signal does, and returns what is said of it.
func detached(t *testing.T, a *Attachment) error {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	done := make(chan error, 1)
	go func() { done <- a.Wait(ctx) }()
	select {
	case err := <-done:
		return err
	case <-time.After(time.Minute):
		t.Fatal("it does not end")
		return nil
	}
}

// Requests of NBD clients that the target does not answer hold detaching up no longer than the time-out.
func TestDetachWhileTheTargetIsAway(t *testing.T) {
	l := &fakeLUN{data: make([]byte, 1<<20), away: make(chan struct{})}
	opt := options(t, l)
	opt.FinishTimeout = time.Second
	a, _, err := Attach(t.Context(), opt)
	if err != nil {
		t.Fatal(err)
	}
	c := talk(t, a.Record.Socket)
	c.ask(t, 1, 0, 4096)
	await.True(t, "the target has it", func() bool { return l.begun.Load() == 1 })
	if err := detached(t, a); err == nil || !strings.Contains(err.Error(), "did not answer within 2s were given up") {
		t.Errorf("error %v", err)
	}
	if flushes, closed := l.counts(); flushes != 0 || closed != 1 {
		t.Errorf("%d flushes, closed %d times", flushes, closed)
	}
}

// A volume that has become read-only holds what was written before; one that was and is, nothing.
func TestLastFlushOfAReadOnlyVolume(t *testing.T) {
	for _, c := range []struct {
		before, after, export bool
		want                  int
	}{{false, false, false, 1}, {false, true, false, 1}, {true, false, false, 1}, {true, true, false, 0}, {false, false, true, 0}} {
		l := &fakeLUN{data: make([]byte, 1<<20)}
		l.ro.Store(c.before)
		opt := options(t, l)
		opt.ReadOnly = c.export
		a, _, err := Attach(t.Context(), opt)
		if err != nil {
			t.Fatal(err)
		}
		l.ro.Store(c.after)
		if err := detached(t, a); err != nil {
			t.Error(err)
		}
		if flushes, _ := l.counts(); flushes != c.want {
			t.Errorf("%+v: %d flushes", c, flushes)
		}
	}
}

// A client that takes no replies until the time is over does not take the time of the last flush.
func TestDetachOfAStoppedClient(t *testing.T) {
	t.Parallel() // it takes the time-out
	l := &fakeLUN{data: make([]byte, 4<<20)}
	opt := options(t, l)
	a, _, err := Attach(t.Context(), opt)
	if err != nil {
		t.Fatal(err)
	}
	c := talk(t, a.Record.Socket)
	for range 32 { // more than a socket takes
		c.ask(t, 0, 0, 4<<20)
	}
	await.True(t, "replies wait for the client", func() bool { return l.begun.Load() >= 8 })
	if err := detached(t, a); err == nil || strings.Contains(err.Error(), "flush") || !strings.Contains(err.Error(), "were cut") {
		t.Errorf("error %v", err)
	}
	if flushes, closed := l.counts(); flushes != 1 || closed != 1 {
		t.Errorf("%d flushes, closed %d times", flushes, closed)
	}
}

// What the record says follows the volume's size and the way to the target.
func TestListAfterResize(t *testing.T) {
	l := &fakeLUN{data: make([]byte, 1<<20)}
	opt := options(t, l)
	var state atomic.Pointer[string]
	say := func(s string) { state.Store(&s) }
	say("connected")
	changed := make(chan struct{}, 1)
	opt.Changed = changed
	opt.State = func() (string, string) {
		if s := *state.Load(); s != "connected" {
			return s, "the cable is out"
		}
		return "connected", ""
	}
	a, _, err := Attach(t.Context(), opt)
	if err != nil {
		t.Fatal(err)
	}
	listed := func(what string, ok func(r *Record) bool) {
		t.Helper()
		await.True(t, what+" is listed", func() bool {
			live, err := List(opt.Dir)
			if err != nil || len(live) != 1 {
				t.Fatalf("list: %v, %v", live, err)
			}
			return ok(live[0])
		})
	}
	listed("the first state", func(r *Record) bool { return r.Size == 1<<20 && r.State == "connected" })
	l.resize(64 << 20)
	l.resize(5 << 20)
	listed("the new size", func(r *Record) bool { return r.Size == 5<<20 })
	for _, s := range []string{"reconnecting", "down"} {
		say(s)
		changed <- struct{}{}
		listed(s, func(r *Record) bool { return r.State == s && r.Reason == "the cable is out" && r.Size == 5<<20 })
	}
	say("connected")
	changed <- struct{}{}
	listed("its return", func(r *Record) bool { return r.State == "connected" && r.Reason == "" })
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := a.Wait(ctx); err != nil {
		t.Error(err)
	}
}

// A record that grows while it is read, which takes more than one call, is read again; one
// that is empty, or makes no sense for good, is an error.
func TestRecordThatGrows(t *testing.T) {
	const before, after = `{"url": "iser://h/t/0"}` + "\n", `{"url": "iser://h/t/0", "state": "reconnecting"}` + "\n"
	for _, c := range []struct {
		name  string
		found []string
		reads int
		ok    bool
	}{
		{"at rest", []string{before}, 1, true},
		{"grows", []string{before + after[len(before):], after}, 2, true},
		{"empty", []string{""}, 1, false},
		{"no record", []string{"{"}, rereads, false},
	} {
		reads := 0
		r, err := readRecordBy(func(string) ([]byte, error) {
			b := c.found[min(reads, len(c.found)-1)]
			reads++
			return []byte(b), nil
		}, "attach-x.json")
		if (err == nil) != c.ok || reads != c.reads || c.ok && r.URL != "iser://h/t/0" {
			t.Errorf("%s: %+v, %v after %d reads", c.name, r, err, reads)
		}
	}
}

// Whoever only looks whether a process serves by a record, as --list does, is not taken for one that does: attaching
// at that moment would report the dead process's attachment, and attach nothing.
func TestLockRecordThatIsLookedAt(t *testing.T) {
	path := filepath.Join(t.TempDir(), "attach-x.json")
	if err := os.WriteFile(path, []byte(`{"url":"iser://h/x/0","pid":1}`), 0o600); err != nil {
		t.Fatal(err)
	}
	looks, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	if served(looks) {
		t.Fatal("nobody serves")
	}
	f, held, err := lockRecordBy(func() { looks.Close() }, path)
	if err != nil || held != nil {
		t.Fatalf("%+v, %v", held, err)
	}
	defer f.Close()
	if _, held, err := lockRecord(path); err != nil || held == nil || held.URL != "iser://h/x/0" {
		t.Errorf("it is served now: %+v, %v", held, err)
	}
	(&Record{path: path}).clean() // as who has looked before that would
	if !sameFile(f, path) {
		t.Error("the record of a live process is gone")
	}
}

func TestDetachByAnyName(t *testing.T) {
	for _, key := range []func(r *Record) string{
		func(r *Record) string { return r.URL },
		func(r *Record) string { return r.Socket },
		func(r *Record) string { // as attach takes it, too
			t.Chdir(filepath.Dir(r.Socket))
			return "./" + filepath.Base(r.Socket)
		},
		func(r *Record) string { return r.URI },
	} {
		opt := options(t, &fakeLUN{data: make([]byte, 1<<20)})
		ctx, stop := signal.NotifyContext(t.Context(), syscall.SIGTERM)
		a, _, err := Attach(ctx, opt)
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() { done <- a.Wait(ctx) }()
		if r, err := Detach(t.Context(), opt.Dir, "", false); err != nil || r != nil {
			t.Errorf("no name: %v, %v", r, err)
		}
		if r, err := Detach(t.Context(), opt.Dir, key(&a.Record), false); err != nil || r == nil {
			t.Errorf("%v, %v", r, err)
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
		if r, err := Detach(t.Context(), opt.Dir, key(&a.Record), false); err != nil || r != nil {
			t.Errorf("again: %v, %v", r, err)
		}
		stop()
	}
}

// A process that is asked to end while another one takes its place ends, and the attachment is the other's: that one
// is asked, too.
func TestDetachDuringATakeover(t *testing.T) {
	dir := t.TempDir()
	f, _, err := lockRecord(recordPath(dir, "iser://h/x/0"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	process := func(name string, args ...string) *exec.Cmd {
		c := exec.Command(name, args...)
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		return c
	}
	old, next := process("sleep", "600"), process("sleep", "600")
	defer old.Process.Kill()
	defer next.Process.Kill()
	note := func(pid int) {
		r := Record{URL: "iser://h/x/0", PID: pid, State: "connected"}
		if err := r.write(f); err != nil {
			t.Fatal(err)
		}
	}
	note(old.Process.Pid)
	done := make(chan error, 1)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	go func() {
		r, err := Detach(ctx, dir, "iser://h/x/0", false)
		if err == nil && (r == nil || r.PID != next.Process.Pid) {
			err = fmt.Errorf("detached: %+v", r)
		}
		if err != nil {
			next.Process.Kill() // nobody waits for it
		}
		done <- err
	}()
	_ = old.Wait() // it is asked to end
	note(next.Process.Pid)
	var ended *exec.ExitError
	if err := next.Wait(); !errors.As(err, &ended) || ended.Sys().(syscall.WaitStatus).Signal() != syscall.SIGTERM {
		t.Errorf("it was not asked: %v", err)
	}
	f.Close()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// An attachment that somebody makes while the one before ends is another one: it is left alone.
func TestDetachDoesNotEndTheNextOne(t *testing.T) {
	for name, next := range map[string]func(t *testing.T, was *os.File, path string, pid int) *os.File{
		"of a killed process": func(t *testing.T, was *os.File, _ string, _ int) *os.File {
			fd, err := syscall.Dup(int(was.Fd()))
			if err := errors.Join(err, (&Record{URL: "iser://h/x/0"}).write(was)); err != nil {
				t.Fatal(err)
			}
			return os.NewFile(uintptr(fd), was.Name())
		},
		"after its end": func(t *testing.T, _ *os.File, path string, pid int) *os.File {
			f, err := os.CreateTemp(filepath.Dir(path), "")
			if err != nil {
				t.Fatal(err)
			}
			err = (&Record{URL: "iser://h/x/0", PID: pid, State: "connected"}).write(f)
			if err := errors.Join(err, syscall.Flock(int(f.Fd()), syscall.LOCK_EX), os.Rename(f.Name(), path)); err != nil {
				t.Fatal(err)
			}
			return f
		},
	} {
		t.Run(name, func(t *testing.T) {
			path := recordPath(t.TempDir(), "iser://h/x/0")
			f, _, err := lockRecord(path)
			if err != nil {
				t.Fatal(err)
			}
			var programs [2]*exec.Cmd
			for i := range programs {
				programs[i] = exec.Command("sleep", "600")
				if err := programs[i].Start(); err != nil {
					t.Fatal(err)
				}
				defer programs[i].Process.Kill()
			}
			if err := (&Record{URL: "iser://h/x/0", PID: programs[0].Process.Pid, State: "connected"}).write(f); err != nil {
				t.Fatal(err)
			}
			done := make(chan error, 1)
			go func() {
				_, err := Detach(t.Context(), filepath.Dir(path), "iser://h/x/0", false)
				done <- err
			}()
			_ = programs[0].Wait() // it is asked to end
			g := next(t, f, path, programs[1].Process.Pid)
			defer g.Close()
			f.Close()
			ended := make(chan error, 1)
			go func() { ended <- programs[1].Wait() }()
			select {
			case err := <-done:
				if err != nil {
					t.Error(err)
				}
				_ = programs[1].Process.Kill()
				<-ended
			case <-ended:
				t.Error("the next one was ended")
				g.Close()
				<-done
			}
		})
	}
}

func TestDeadRecordIsTakenOver(t *testing.T) {
	l := &fakeLUN{data: make([]byte, 1<<20)}
	opt := options(t, l)
	if err := os.MkdirAll(opt.Dir, 0o700); err != nil {
		t.Fatal(err)
	}
	sock := filepath.Join(opt.Dir, nameOf(opt.URL)+".sock")
	u, err := net.ListenUnix("unix", &net.UnixAddr{Name: sock})
	if err != nil {
		t.Fatal(err)
	}
	u.SetUnlinkOnClose(false)
	u.Close()
	b, _ := json.Marshal(Record{URL: opt.URL, PID: 1, Socket: sock})
	if err := os.WriteFile(filepath.Join(opt.Dir, nameOf(opt.URL)+".json"), b, 0o600); err != nil {
		t.Fatal(err)
	}
	a, held, err := Attach(t.Context(), opt)
	if err != nil || held != nil {
		t.Fatal(err, held)
	}
	if err := a.undo(); err != nil {
		t.Error(err)
	}
	// A dead record alone is cleaned up by List.
	if err := os.WriteFile(filepath.Join(opt.Dir, "attach-x.json"), b, 0o600); err != nil {
		t.Fatal(err)
	}
	if live, err := List(opt.Dir); err != nil || len(live) != 0 {
		t.Errorf("%v, %v", live, err)
	}
	if files, _ := os.ReadDir(opt.Dir); len(files) != 0 {
		t.Errorf("left behind: %v", files)
	}
}

// Ending the device of a killed process takes away all that it has left, unless another process serves by it now.
func TestRemovedDeviceLeavesNothing(t *testing.T) {
	for _, live := range []bool{false, true} {
		dir := t.TempDir()
		path := recordPath(dir, "iser://h/x/0")
		f, _, err := lockRecord(path)
		if err != nil {
			t.Fatal(err)
		}
		r := &Record{URL: "iser://h/x/0", PID: 1, Device: "/dev/ublkb1048575", path: path, Socket: filepath.Join(dir, "s"), Control: controlPath(path)}
		for _, name := range []string{r.Socket, r.Control} {
			if err := os.WriteFile(name, nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := r.write(f); err != nil {
			t.Fatal(err)
		}
		if !live {
			f.Close()
		}
		_ = r.removeDevice() // there is none
		files, err := os.ReadDir(dir)
		if want := map[bool]int{true: 3}[live]; err != nil || len(files) != want {
			t.Errorf("live %v: %v, %v", live, files, err)
		}
		f.Close()
	}
}

// While the volume is being opened the record of a dead process is nobody's: its process id may be another
// program's by now.
func TestDeadRecordWhileAttaching(t *testing.T) {
	opt := options(t, &fakeLUN{data: make([]byte, 1<<20)})
	if err := os.MkdirAll(opt.Dir, 0o700); err != nil {
		t.Fatal(err)
	}
	other := exec.Command("sleep", "600")
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = other.Process.Kill()
		var ended *exec.ExitError
		if err := other.Wait(); !errors.As(err, &ended) || ended.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
			t.Errorf("another program was ended: %v", err)
		}
	}()
	path := recordPath(opt.Dir, opt.URL)
	b, _ := json.Marshal(Record{URL: opt.URL, PID: other.Process.Pid, State: "connected"})
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	lun := opt.Open
	opt.Open = func(ctx context.Context, n Nexus) (LUN, error) {
		if live, err := List(opt.Dir); err != nil || len(live) != 0 {
			t.Errorf("list: %+v, %v", live, err)
		}
		if _, held, err := lockRecordBy(func() {}, path); err == nil {
			t.Errorf("attached already: %+v", held)
		}
		at, cancel := context.WithCancel(t.Context())
		cancel()
		if r, err := Detach(at, opt.Dir, opt.URL, false); r != nil || err != nil {
			t.Errorf("detach: %+v, %v", r, err)
		}
		return lun(ctx, n)
	}
	a, _, err := Attach(t.Context(), opt)
	if err != nil {
		t.Fatal(err)
	}
	if live, err := List(opt.Dir); err != nil || len(live) != 1 || live[0].PID != os.Getpid() {
		t.Errorf("afterwards: %+v, %v", live, err)
	}
	if err := a.undo(); err != nil {
		t.Error(err)
	}
}

// A run directory may be named from where somebody stands: what the record tells holds elsewhere, too, and what a
// dead process has left there goes.
func TestRunDirFromHere(t *testing.T) {
	here, elsewhere := t.TempDir(), t.TempDir()
	t.Chdir(here)
	opt := options(t, &fakeLUN{data: make([]byte, 1<<20)})
	opt.Dir = "run"
	a, _, err := Attach(t.Context(), opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir(elsewhere)
	c, err := dialControl(t.Context(), a.Record.Control, wordUpgrade)
	if err != nil {
		t.Errorf("the process cannot be asked: %v", err)
	} else {
		c.Close()
	}
	t.Chdir(here)
	if err := a.undo(); err != nil {
		t.Error(err)
	}
	if files, _ := os.ReadDir(opt.Dir); len(files) != 0 {
		t.Errorf("left behind: %v", files)
	}

	sock := filepath.Join(here, opt.Dir, "attach-x.sock")
	b, _ := json.Marshal(Record{URL: opt.URL, PID: 1, Socket: sock})
	for _, f := range []string{sock, filepath.Join(opt.Dir, "attach-x.json")} {
		if err := os.WriteFile(f, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if live, err := List(opt.Dir); err != nil || len(live) != 0 {
		t.Errorf("%v, %v", live, err)
	}
	if files, _ := os.ReadDir(opt.Dir); len(files) != 0 {
		t.Errorf("a dead process has left %v", files)
	}
}

func TestRunDirMustBeOurs(t *testing.T) {
	f := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(f, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := makeRunDir(f); err == nil {
		t.Error("a file was accepted")
	}
}

func TestMountedDeviceIsInUse(t *testing.T) {
	b, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		t.Skip(err)
	}
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); strings.HasPrefix(f[0], "/dev/") {
			if why := inUse(f[0]); !strings.Contains(why, "mounted on") {
				t.Errorf("%s: %q", f[0], why)
			}
			return
		}
	}
	t.Skip("no device is mounted")
}

func TestCommandErrors(t *testing.T) {
	for _, tc := range []struct {
		args []string
		want string
	}{
		{[]string{}, "needs the volume's URL"},
		{[]string{"http://x/y/0"}, "http"},
		{[]string{"a", "b"}, "accepts at most 1 arg"},
		{[]string{""}, "needs the volume's URL"},
		{[]string{"--detach", ""}, "name its URL, device or socket"},
		{[]string{"--upgrade", ""}, "name its URL, device or socket"},
	} {
		cmd := Command("test", func(error) string { return "" })
		cmd.SetArgs(tc.args)
		var out bytes.Buffer
		cmd.SetOut(&out)
		cmd.SetErr(&out)
		if err := cmd.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%q: error %v, want %q", tc.args, err, tc.want)
		}
	}
	dir := t.TempDir()
	for _, tc := range []struct {
		args []string
		want string
	}{
		{[]string{"--list", "--json", "--run-dir", dir}, "[]"},
		{[]string{"--list", "--run-dir", dir}, "nothing is attached"},
		{[]string{"--detach", "--run-dir", dir, "iser://h/iqn.2026-11.x:y/0"}, "is not attached; attached in " + dir + ": nothing"},
		{[]string{"--detach", "--json", "--run-dir", dir, "iser://h/iqn.2026-11.x:y/0"}, `"detached": false`},
	} {
		cmd := Command("test", func(error) string { return "" })
		cmd.SetArgs(tc.args)
		var out bytes.Buffer
		cmd.SetOut(&out)
		cmd.SetErr(&out)
		if err := cmd.ExecuteContext(t.Context()); err != nil || !strings.Contains(out.String(), tc.want) {
			t.Errorf("%q: %v, %q", tc.args, err, out.String())
		}
	}
}

func TestPrintedCommandsNameTheSocket(t *testing.T) {
	var out bytes.Buffer
	c := &command{opt: Options{Dir: "/run/elsewhere"}}
	if err := c.print(&out, &Record{URL: "iser://h/i/0", URI: "nbd+unix:///?socket=/run/s", Size: 42}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"nbdinfo 'nbd+unix:///?socket=/run/s'", "--ioengine=nbd", "qemu-img info", "attach --detach iser://h/i/0 --run-dir /run/elsewhere\n"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q lacks %q", out.String(), want)
		}
	}
}

// URIs lead to export and socket whatever these are called.
func TestURIs(t *testing.T) {
	for _, name := range []string{"", "vol", "my disk #1? 50%+x/y", "it's"} {
		sock := "/run/" + name
		u, err := url.Parse(uriOf(name, sock))
		if err != nil || u.Scheme != "nbd+unix" || u.Path != "/"+name || u.Query().Get("socket") != sock {
			t.Errorf("%q: %v, %v", name, u, err)
		}
	}
	if got, want := uriOf("vol", "/run/softiser-attach/a.sock"), "nbd+unix:///vol?socket=/run/softiser-attach/a.sock"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// The URI that is printed works with a real client.
func TestPrintedURI(t *testing.T) {
	if _, err := exec.LookPath("nbdinfo"); err != nil {
		t.Skip("nbdinfo is not installed (apt-get install libnbd-bin)")
	}
	opt := options(t, &fakeLUN{data: make([]byte, 1<<20)})
	opt.Export, opt.Socket = "my disk #1? 50%+x/y", filepath.Join(t.TempDir(), "a b&c=d#e%41+")
	a, _, err := Attach(t.Context(), opt)
	if err != nil {
		t.Fatal(err)
	}
	defer a.undo()
	if out, err := exec.Command("nbdinfo", "--size", a.Record.URI).CombinedOutput(); err != nil || strings.TrimSpace(string(out)) != "1048576" {
		t.Errorf("%v: %s", err, out)
	}
}

// A kernel device has as many sockets as --connections says, and clients of their own have room beside them.
func TestConnectionsOfTheKernel(t *testing.T) {
	opt := options(t, &fakeLUN{data: make([]byte, 1<<20)})
	opt.Connections = 70
	a, _, err := Attach(t.Context(), opt)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, opt.Connections)
	var kernel []net.Conn
	for range opt.Connections {
		ends := socketPair(t)
		kernel = append(kernel, ends[1])
		go func() { served <- a.srv.ServeKernel(ends[0], a.export, nil) }()
	}
	for i, c := range append(kernel, talk(t, a.Record.Socket).Conn) {
		(silent{c}).ask(t, 0, 0, 512)
		if _, err := io.ReadFull(c, make([]byte, 16+512)); err != nil {
			t.Errorf("connection %d: %v", i, err)
		}
	}
	for _, c := range kernel {
		c.Close()
		if err := <-served; err != nil {
			t.Error(err)
		}
	}
	if err := a.undo(); err != nil {
		t.Error(err)
	}
}

// NBD is served over TCP at addresses that only this machine reaches, whichever interface they name.
func TestListenLoopback(t *testing.T) {
	for addr, own := range map[string]bool{
		"127.0.0.1:0": true, "localhost:0": true, "[::1]:0": true, "[::1%lo]:0": true,
		"0.0.0.0:0": false, "[::]:0": false, "192.0.2.1:0": false, "[fe80::1%lo]:0": false, "host:0": false,
	} {
		l, err := listenLoopback(addr)
		if err == nil {
			l.Close()
		}
		if refused := usage.Is(err); refused == own { // a machine may have no IPv6
			t.Errorf("%s: %v", addr, err)
		}
	}
}
