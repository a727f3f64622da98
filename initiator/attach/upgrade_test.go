package attach

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"softiser/initiator/internal/e2e"
	"softiser/internal/await"
	"softiser/internal/loopback"
)

// attached is an attachment by the program, in the background.
type attached struct {
	t   *testing.T
	bin string
	dir string
	url string
	rec Record
}

// attachProgram attaches a volume with options.
func attachProgram(t *testing.T, url string, options ...string) *attached {
	t.Helper()
	x := &attached{t: t, bin: e2e.Binary(t, "iser-initiator"), dir: t.TempDir(), url: url}
	out := x.run(append(options, "--daemon", "--json", "--device=none", "--log", filepath.Join(x.dir, "log"), url)...)
	if err := json.Unmarshal([]byte(out), &x.rec); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Cleanup(func() {
		exec.Command(x.bin, "attach", "--detach", "--force", "--timeout=1s", "--run-dir", x.dir, url).Run()
	})
	return x
}

func (x *attached) try(args ...string) (string, error) {
	out, err := exec.Command(x.bin, append(append([]string{"attach"}, args...), "--run-dir", x.dir)...).CombinedOutput()
	return string(out), err
}

func (x *attached) run(args ...string) string {
	x.t.Helper()
	out, err := x.try(args...)
	if err != nil {
		log, _ := os.ReadFile(filepath.Join(x.dir, "log"))
		x.t.Fatalf("%q: %v\n%s\n%s", args, err, out, log)
	}
	return out
}

// listed is the record as --list shows it.
func (x *attached) listed() Record {
	x.t.Helper()
	var live []Record
	if err := json.Unmarshal([]byte(x.run("--list", "--json")), &live); err != nil || len(live) != 1 {
		x.t.Fatalf("%v: %+v", err, live)
	}
	return live[0]
}

// patient are options of an attachment that waits for a target which gets little of the processor,
// and makes no second connection to see whether it is there.
var patient = []string{"--silence-probe=-1s", "--noop-interval=-1s", "--keep-alive-tmo=0"}

// Ten upgrades under a verified load over one connection: no error, no second connection of the
// client, none to the target either, and the volume is reached under the same names. What the
// pauses were is logged.
func TestUpgradeUnderLoad(t *testing.T) {
	for _, scheme := range []string{"iser", "iscsi", "nvme+tcp", "nvme+rdma"} {
		t.Run(scheme, func(t *testing.T) {
			t.Parallel()
			target := e2e.StartTarget(t, "64MiB")
			way := loopback.NewProxy(t, target.Addr)
			x := attachProgram(t, strings.Replace(target.URL(scheme), target.Addr, way.Addr, 1), patient...)
			l := startLoad(t, "unix", x.rec.Socket, 0, 16)
			pid, logins := x.rec.PID, way.Taken()
			for i := range 10 {
				before := l.done.Load()
				await.True(t, "the load goes on", func() bool { return l.done.Load() > before+50 })
				up := x.upgrade()
				if up.Old != pid || up.New == pid || up.New == 0 || len(up.Closed) != 0 || !slices.Contains(up.Carried, "1 NBD connection") || !slices.Contains(up.Carried, "the session to the target") {
					t.Fatalf("upgrade %d of process %d: %+v", i, pid, up)
				}
				pid = up.New
			}
			before := l.done.Load()
			await.True(t, "the load goes on", func() bool { return l.done.Load() > before+50 })
			await.True(t, "the volume is open", func() bool { return x.listed().State == "connected" })
			if r := x.listed(); r.PID != pid || r.Taken.IsZero() || r.Socket != x.rec.Socket || r.Size != 64<<20 {
				t.Errorf("%+v", r)
			}
			if n := way.Taken(); n != logins {
				t.Errorf("%d connections were made to the target; there were %d before the upgrades", n-logins, logins)
			}
			x.end(l)
			t.Logf("%d requests, the longest pauses: %v", l.done.Load(), l.pauses(10))
			if out := x.run("--detach", x.url); !strings.Contains(out, "is detached") {
				t.Error(out)
			}
			if left, _ := os.ReadDir(x.dir); len(left) != 1 { // the log
				t.Errorf("left behind: %v", left)
			}
		})
	}
}

// The sessions of several paths, or several over one path, go over as well: the target sees no
// connection, and the load goes on over all of them.
func TestUpgradeSeveralSessions(t *testing.T) {
	for name, tt := range map[string]struct {
		schemes []string // of the paths, each through a way of its own
		options []string
		carried string
	}{
		"iSCSI":        {[]string{"iser", "iscsi"}, nil, "the sessions of 2 of 2 paths to the target"},
		"NVMe":         {[]string{"nvme+tcp", "nvme+rdma"}, nil, "the sessions of 2 of 2 paths to the target"},
		"two sessions": {[]string{"iscsi"}, []string{"--nr-sessions=2"}, "2 sessions to the target"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			target := e2e.StartTarget(t, "16MiB")
			var urls []string
			var ways []*loopback.Proxy
			for _, scheme := range tt.schemes {
				way := loopback.NewProxy(t, target.Addr)
				ways = append(ways, way)
				urls = append(urls, strings.Replace(target.URL(scheme), target.Addr, way.Addr, 1))
			}
			x := attachProgram(t, strings.Join(urls, ","), slices.Concat(patient, tt.options, []string{"--path-check=1m"})...)
			l := startLoad(t, "unix", x.rec.Socket, 0, 8)
			await.True(t, "every path is there", func() bool { return x.listed().State == "connected" })
			var logins []int
			for _, way := range ways {
				logins = append(logins, way.Taken())
			}
			for range 3 {
				if up := x.upgrade(); len(up.Closed) != 0 || !slices.Contains(up.Carried, tt.carried) {
					t.Fatalf("%+v", up)
				}
				did, moved := l.done.Load(), ways[len(ways)-1].Moved()
				await.True(t, "the load goes on, over the last path too", func() bool {
					return l.done.Load() > did+50 && ways[len(ways)-1].Moved() > moved+64<<10
				})
			}
			for i, way := range ways {
				if n := way.Taken(); n != logins[i] {
					t.Errorf("path %d: %d connections were made to the target; there were %d before the upgrades", i, n-logins[i], logins[i])
				}
			}
			x.end(l)
		})
	}
}

// The paths that a target has told of (--all-portals) go over, and the target is not asked again.
func TestUpgradeAllPortals(t *testing.T) {
	target := e2e.StartTarget(t, "16MiB", "--listen", loopback.FreeAddr(t))
	x := attachProgram(t, target.URL("iscsi"), append([]string{"--all-portals", "--path-check=1m"}, patient...)...)
	l := startLoad(t, "unix", x.rec.Socket, 0, 8)
	await.True(t, "both paths are there", func() bool { return len(target.Sessions()) == 2 && x.listed().State == "connected" })
	before := target.Sessions()
	for range 2 {
		if up := x.upgrade(); len(up.Closed) != 0 || !slices.Contains(up.Carried, "the sessions of 2 of 2 paths to the target") {
			t.Fatalf("%+v", up)
		}
		did := l.done.Load()
		await.True(t, "the load goes on", func() bool { return l.done.Load() > did+50 })
	}
	if after := target.Sessions(); !slices.Equal(after, before) {
		t.Errorf("the target has the sessions %q; it had %q", after, before)
	}
	x.end(l)
}

// A path that is down while the process is replaced logs in when it is there again; nobody
// waits for it.
func TestUpgradePathDown(t *testing.T) {
	target := e2e.StartTarget(t, "16MiB")
	up, down := loopback.NewProxy(t, target.Addr), loopback.NewProxy(t, target.Addr)
	url := target.URL("iser")
	x := attachProgram(t, strings.Replace(url, target.Addr, up.Addr, 1)+","+strings.Replace(url, target.Addr, down.Addr, 1), append([]string{"--path-check=3s", "--path-fence=none"}, patient...)...)
	l := startLoad(t, "unix", x.rec.Socket, 0, 8)
	before := up.Taken()
	down.Deaf(t)
	down.Cut()
	await.True(t, "the path is lost", func() bool { return strings.Contains(x.listed().Reason, down.Addr) })
	got := x.upgrade()
	if !slices.Contains(got.Carried, "the sessions of 1 of 2 paths to the target") || len(got.Closed) != 1 || !strings.Contains(got.Closed[0], down.Addr) {
		t.Errorf("%+v", got)
	}
	did := l.done.Load()
	await.True(t, "the load goes on", func() bool { return l.done.Load() > did+50 })
	taken := down.Taken()
	down.Hear()
	await.True(t, "the path logs in", func() bool { return down.Taken() > taken })
	moved := down.Moved()
	await.True(t, "it is used", func() bool { return down.Moved() > moved+256<<10 })
	if n := up.Taken(); n != before {
		t.Errorf("the path that was up has made %d connections", n-before)
	}
	x.end(l)
}

// upgrade replaces the process of the attachment.
func (x *attached) upgrade() (up Upgraded) {
	x.t.Helper()
	if err := json.Unmarshal([]byte(x.run("--upgrade", "--patience=1m", "--json", x.url)), &up); err != nil {
		x.t.Fatal(err)
	}
	return up
}

// end ends a load, which must have seen no error.
func (x *attached) end(l *load) {
	x.t.Helper()
	if err := l.end(); err != nil {
		log, _ := os.ReadFile(filepath.Join(x.dir, "log"))
		x.t.Fatalf("%v\n%s", err, log)
	}
}

// The new process is the same initiator: a reservation of the old one's session holds, and is
// not in its way. Without the name that goes over, its writes would be refused.
func TestUpgradeKeepsReservation(t *testing.T) {
	target := e2e.StartTarget(t, "16MiB")
	const isid = "--isid=80a1b2c30000"
	x := attachProgram(t, target.URL("iscsi"), isid)
	reserve := func(args ...string) {
		t.Helper()
		if out, err := exec.Command(x.bin, append([]string{"reserve"}, args...)...).CombinedOutput(); err != nil {
			t.Fatalf("%q: %v\n%s", args, err, out)
		}
	}
	// Over a path of its own, which has the nexus of the attachment only while that is away.
	x.run("--detach", x.url)
	reserve("register", isid, "--new-key=0x1234", x.url)
	reserve("acquire", isid, "--key=0x1234", "--type=exclusive-access", x.url)
	x.run(isid, "--daemon", "--device=none", "--log", filepath.Join(x.dir, "log"), x.url)
	l := startLoad(t, "unix", x.rec.Socket, 0, 4)
	for range 2 {
		x.run("--upgrade", x.url)
		before := l.done.Load()
		await.True(t, "the load goes on", func() bool { return l.done.Load() > before+50 })
	}
	if err := l.end(); err != nil {
		t.Error(err)
	}
}

// While the target is away an attachment can be upgraded as well: what waits goes over as
// requests, and is carried out when the target is back. Over NVMe, whose lost controller
// nobody ends for the next one, that is refused, and the running process goes on.
func TestUpgradeWhileTheTargetIsAway(t *testing.T) {
	for _, scheme := range []string{"iser", "nvme+tcp"} {
		t.Run(scheme, func(t *testing.T) {
			t.Parallel()
			target := e2e.StartTarget(t, "16MiB")
			x := attachProgram(t, target.URL(scheme), "--noop-interval=1s")
			l := startLoad(t, "unix", x.rec.Socket, 0, 8)
			await.True(t, "the load has begun", func() bool { return l.done.Load() > 50 })
			target.Kill()
			await.True(t, "the target is missed, and all wait for it", func() bool { return x.listed().State != "connected" && l.waits() == 8 })
			// How many of them the process has taken from the socket when it is asked is its own affair.
			some := regexp.MustCompile(`\b[1-8] requests(, to be done once more| have not ended)`)
			out, err := x.try("--upgrade", x.url)
			switch {
			case scheme == "iser" && (err != nil || !some.MatchString(out)):
				t.Errorf("%v\n%s", err, out)
			case scheme != "iser" && (err == nil || !some.MatchString(out) || x.listed().PID != x.rec.PID):
				t.Errorf("%v\n%s", err, out)
			}
			before := l.done.Load()
			target.Start()
			await.True(t, "the load goes on", func() bool { return l.done.Load() > before+50 })
			if err := l.end(); err != nil {
				log, _ := os.ReadFile(filepath.Join(x.dir, "log"))
				t.Errorf("%v\n%s", err, log)
			}
		})
	}
}

// A program that does not start, ends, or does not want what is offered leaves the running
// process as it is, and the error says why. So do SIGUSR2 and --takeover what --upgrade does.
func TestUpgradeRefused(t *testing.T) {
	target := e2e.StartTarget(t, "16MiB")
	x := attachProgram(t, target.URL("iscsi"))
	l := startLoad(t, "unix", x.rec.Socket, 0, 4)
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"--upgrade", "--binary", "./nowhere", x.url}, filepath.Join(here, "nowhere") + ": no such file"}, // not in the folder of the process
		{[]string{"--upgrade", "--binary", "/nowhere/iser-initiator", x.url}, "starting the new process"},
		{[]string{"--upgrade", "--binary", "/bin/false", x.url}, "ended before it could take over"},
		{[]string{"--upgrade", "iscsi://127.0.0.1/iqn.2026-11.x:other/0"}, "is not attached"},
		{[]string{"--takeover", "iscsi://127.0.0.1/iqn.2026-11.x:other/0"}, "no process that could be asked"},
		{[]string{"--takeover", "--device=none", "--export-name=other", x.url}, "--export-name of the running attachment"},
		{[]string{"--takeover", "--device=none", "--read-only", x.url}, "--read-only of the running attachment"},
		{[]string{"--takeover", "--device=none", "--tcp=127.0.0.1:0", x.url}, "--tcp of the running attachment"},
		{[]string{"--takeover", "--device=/dev/nbd7", x.url}, "--device of the running attachment"},
		{[]string{"--takeover", "--device=none", "--socket=/nowhere/s", x.url}, "--socket of the running attachment"},
		{[]string{"--binary=/bin/true", x.url}, "--binary goes with --upgrade"},
		{[]string{"--log=/nowhere/log", x.url}, "--log goes with --daemon"},
	} {
		if out, err := x.try(tt.args...); err == nil || !strings.Contains(out, tt.want) {
			t.Errorf("%q: %v\n%s", tt.args, err, out)
		}
		if r := x.listed(); r.PID != x.rec.PID {
			t.Fatalf("%q: process %d of %d", tt.args, r.PID, x.rec.PID)
		}
	}
	if err := syscall.Kill(x.rec.PID, syscall.SIGUSR2); err != nil {
		t.Fatal(err)
	}
	await.True(t, "another process serves", func() bool { return x.listed().PID != x.rec.PID })
	before := l.done.Load()
	await.True(t, "the load goes on", func() bool { return l.done.Load() > before+50 })
	if err := l.end(); err != nil {
		t.Error(err)
	}
}

// A process that cannot say that it serves takes nothing over, if that can be known before; found afterwards,
// it is told of, and what is in use goes on.
func TestUpgradeThatCannotBeTold(t *testing.T) {
	target := e2e.StartTarget(t, "16MiB")
	pidfile := filepath.Join(t.TempDir(), "pid")
	t.Setenv("NOTIFY_SOCKET", filepath.Join(t.TempDir(), "nobody")) // the first process, in the background, does not use it
	x := attachProgram(t, target.URL("iscsi"), "--pidfile", pidfile)
	l := startLoad(t, "unix", x.rec.Socket, 0, 4)
	goesOn := func() {
		t.Helper()
		before := l.done.Load()
		await.True(t, "the load goes on", func() bool { return l.done.Load() > before+50 })
	}
	if b, err := os.ReadFile(pidfile); err != nil || string(b) != fmt.Sprintln(x.rec.PID) {
		t.Errorf("%q, %v", b, err)
	}
	if err := errors.Join(os.Rename(pidfile, pidfile+".was"), os.Mkdir(pidfile, 0o700)); err != nil {
		t.Fatal(err)
	}
	if out, err := x.try("--upgrade", x.url); err == nil || !strings.Contains(out, "ended before it could take over") || x.listed().PID != x.rec.PID {
		t.Errorf("%v\n%s", err, out)
	}
	goesOn()
	// It can be opened, and nothing can be written to it.
	if err := errors.Join(os.Remove(pidfile), os.Symlink("/dev/full", pidfile)); err != nil {
		t.Fatal(err)
	}
	up := x.upgrade()
	goesOn()
	if r := x.listed(); r.PID != up.New {
		t.Errorf("process %d serves, %d has taken over", r.PID, up.New)
	}
	x.end(l)
	x.run("--detach", x.url)
	log, err := os.ReadFile(filepath.Join(x.dir, "log"))
	for _, want := range []string{"--pidfile: open " + pidfile, "--pidfile: write " + pidfile, "nobody"} {
		if err != nil || !strings.Contains(string(log), want) {
			t.Errorf("%v, the log does not tell %q:\n%s", err, want, log)
		}
	}
	if _, err := os.Lstat(pidfile); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it is left behind: %v", err)
	}
}

// The service manager is told of the new main process by the old one, whom it listens to, and
// by the new one that it is ready.
func TestUpgradeTellsSystemd(t *testing.T) {
	sock := filepath.Join(t.TempDir(), "notify")
	manager, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: sock})
	if err != nil {
		t.Fatal(err)
	}
	defer manager.Close()
	t.Setenv("NOTIFY_SOCKET", sock)
	manager.SetReadDeadline(time.Now().Add(60 * time.Second))
	said := func() string {
		t.Helper()
		b := make([]byte, 100)
		n, err := manager.Read(b)
		if err != nil {
			t.Fatal(err)
		}
		return string(b[:n])
	}
	target := e2e.StartTarget(t, "16MiB")
	x := &attached{t: t, bin: e2e.Binary(t, "iser-initiator"), dir: t.TempDir(), url: target.URL("iscsi")}
	said() // the target's
	first := exec.Command(x.bin, "attach", "--device=none", "--run-dir", x.dir, x.url)
	if err := first.Start(); err != nil {
		t.Fatal(err)
	}
	if s := said(); s != "READY=1" {
		t.Error(s)
	}
	var up Upgraded
	out := x.run("--upgrade", "--json", x.url)
	if err := json.Unmarshal([]byte(out), &up); err != nil || up.Closed == nil {
		t.Fatal(err, out)
	}
	words := []string{said(), said()}
	slices.Sort(words)
	if want := []string{fmt.Sprintf("MAINPID=%d", up.New), "READY=1"}; !slices.Equal(words, want) {
		t.Errorf("%q, want %q", words, want)
	}
	if err := first.Wait(); err != nil {
		t.Errorf("the old process: %v", err)
	}
	x.run("--detach", x.url)
}

// shortListener is out of descriptors once.
type shortListener struct {
	*net.UnixListener
	failed atomic.Bool
}

func (l *shortListener) Accept() (net.Conn, error) {
	if l.failed.CompareAndSwap(false, true) {
		return nil, &net.OpError{Op: "accept", Net: "unix", Err: os.NewSyscallError("accept4", syscall.EMFILE)}
	}
	return l.UnixListener.Accept()
}

// The control socket is served again after there was no descriptor for a connection.
func TestControlOutOfDescriptors(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ctl")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	a := new(Attachment)
	a.giving.init(a)
	a.giving.serve(&shortListener{UnixListener: l})
	defer func() { _ = a.undo() }()
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Write([]byte("nonsense")); err != nil {
		t.Fatal(err)
	}
	_ = c.SetReadDeadline(time.Now().Add(time.Minute))
	if _, err := c.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("it is not answered: %v", err)
	}
}
