package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"softiser/initiator"
	"softiser/internal/await"
	"softiser/internal/loopback"
)

// frozen mounts a file system of its own and returns its folder. While it is frozen what
// writes to it, or syncs it, waits: storage that stalls in a real kernel.
func frozen(t *testing.T) (dir string, freeze, thaw func()) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("mounting a file system to freeze it needs root")
	}
	for _, tool := range []string{"mkfs.ext4", "mount", "umount", "fsfreeze"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("%s is not there", tool)
		}
	}
	img := filepath.Join(t.TempDir(), "fs.img")
	dir = t.TempDir()
	if err := os.WriteFile(img, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(img, 64<<20); err != nil {
		t.Fatal(err)
	}
	run := func(args ...string) error { return exec.Command(args[0], args[1:]...).Run() }
	if err := run("mkfs.ext4", "-q", img); err != nil {
		t.Fatal(err)
	}
	if err := run("mount", "-o", "loop", img, dir); err != nil {
		t.Skipf("no loop device can be mounted: %v", err)
	}
	if err := run("fsfreeze", "-f", dir); err != nil {
		run("umount", dir) //nolint:errcheck // the test is skipped
		t.Skipf("the file system cannot be frozen: %v", err)
	}
	is := true
	thaw = func() {
		if is {
			is = false
			if err := run("fsfreeze", "-u", dir); err != nil {
				t.Error(err)
			}
		}
	}
	freeze = func() {
		is = true
		if err := run("fsfreeze", "-f", dir); err != nil {
			t.Error(err)
		}
	}
	thaw()
	t.Cleanup(func() {
		thaw()
		if err := run("umount", dir); err != nil {
			t.Error(err)
		}
	})
	return dir, freeze, thaw
}

// A target whose storage does not answer ends after SIGTERM in the time that it was
// given, says which volume it was, and fails. What it had acknowledged is there.
func TestSIGTERMDuringAStall(t *testing.T) {
	t.Run("with a worker", func(t *testing.T) { stallAndSIGTERM(t, 64<<10) })
	t.Run("with the receiver", func(t *testing.T) { stallAndSIGTERM(t, 4096) }) // the page is there
}

func stallAndSIGTERM(t *testing.T, off int64) {
	dir, freeze, thaw := frozen(t)
	defer thaw()
	path, addr := filepath.Join(dir, "v.img"), loopback.FreeAddr(t)
	c := program(t, "serve", "--listen", addr, "--drain", "10ms", "--storage-timeout", "1s",
		"--export", "sick="+path+",size=8MiB", "--export", "well=memory,size=1MiB")
	banner, log := startProgram(t, c)
	l := attach(t, addr, "iqn.2026-11.softiser:sick")
	want := []byte(strings.Repeat("acknowledged and flushed........", 128))
	if _, err := l.WriteAt(want, 4096); err != nil {
		t.Fatal(err)
	}
	if err := l.Flush(); err != nil {
		t.Fatal(err)
	}
	freeze() // which flushes, so it takes a WRITE
	var stalled sync.WaitGroup
	stalled.Go(func() { l.WriteAt(want, off) }) //nolint:errcheck // its target goes away
	await.True(t, "the WRITE is with storage", func() bool { return inStorage(t, c.Process.Pid) })
	other := attach(t, addr, "iqn.2026-11.softiser:well")
	if _, err := other.WriteAt(want, 0); err != nil {
		t.Errorf("a volume beside the one that stalls: %v", err)
	}
	other.Close()
	if err := c.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	await.True(t, "the target says that it gives up", func() bool {
		return strings.Contains(log.String(), "does not answer") && strings.Contains(log.String(), "sick")
	})
	if strings.Contains(log.String(), "volume well does not answer") {
		t.Errorf("it names another volume:\n%s", log)
	}
	thaw() // a thread that is in the kernel ends no sooner
	l.Close()
	stalled.Wait()
	<-banner
	if code := exitOf(t, c); code != exitFailure {
		t.Errorf("exit %d:\n%s", code, log)
	}
	got := make([]byte, len(want))
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.ReadAt(got, 4096); err != nil || string(got) != string(want) {
		t.Errorf("what was acknowledged is not there: %v", err)
	}
}

// A target that is asked to end while it opens a volume that does not answer does so.
func TestSIGTERMWhileOpening(t *testing.T) {
	dir, freeze, thaw := frozen(t)
	defer thaw()
	freeze()
	c := program(t, "serve", "--listen", loopback.FreeAddr(t), "--drain", "10ms", "--storage-timeout", "10ms",
		"--export", "sick="+filepath.Join(dir, "v.img")+",size=8MiB")
	var log output
	c.Stderr = &log
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	await.True(t, "the target opens the volume", func() bool {
		return strings.Contains(log.String(), "target added") && inStorage(t, c.Process.Pid)
	})
	if err := c.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	await.True(t, "the target says that it gives up", func() bool {
		return strings.Contains(log.String(), "opening volume sick")
	})
	thaw()
	if code := exitOf(t, c); code != exitFailure {
		t.Errorf("exit %d:\n%s", code, &log)
	}
}

// TestSIGTERMWhileAnotherNodeHasTheGroup: a target that waits for another node ends at once, and well.
func TestSIGTERMWhileAnotherNodeHasTheGroup(t *testing.T) {
	dir := t.TempDir()
	lock, err := os.Create(filepath.Join(dir, "g1.lock"))
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "c.yaml")
	text := `
portals: [{listen: "` + loopback.FreeAddr(t) + `"}]
volumes: [{name: disk0, type: file, path: ` + filepath.Join(dir, "disk0.img") + `, size: 1MiB, wwid: 6000000000000000000000000000da7a, serial: S1, write_through: true}]
targets: [{iqn: iqn.2026-11.test:a, luns: [{lun: 0, volume: disk0}]}]
ha: {node: b, store: ` + dir + `, groups: [{name: g1, volumes: [disk0], fencing: node, start: active}]}
`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c := program(t, "serve", "--config", file, "--drain", "10ms", "--storage-timeout", "10ms")
	var log output
	c.Stderr = &log
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	await.True(t, "the target says whom it waits for", func() bool { return strings.Contains(log.String(), "the lock of group g1") })
	if err := c.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code := exitOf(t, c); code != 0 {
		t.Errorf("exit %d:\n%s", code, &log)
	}
}

// What is not in a group that waits for another node is served meanwhile, systemd and the admin socket included;
// whoever has given a descriptor is told when the group is active.
func TestServesWhileAnotherNodeHasTheGroup(t *testing.T) {
	dir := t.TempDir()
	lock, err := os.Create(filepath.Join(dir, "g1.lock"))
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if err := errors.Join(syscall.Flock(int(lock.Fd()), syscall.LOCK_EX), os.WriteFile(filepath.Join(dir, "disk0.img"), make([]byte, 1<<20), 0o600)); err != nil {
		t.Fatal(err)
	}
	file, addr, socket := filepath.Join(dir, "c.yaml"), loopback.FreeAddr(t), filepath.Join(dir, "s")
	text := `
portals: [{listen: "` + addr + `"}]
volumes:
  - {name: disk0, type: file, path: ` + filepath.Join(dir, "disk0.img") + `, size: 1MiB, wwid: 6000000000000000000000000000da7a, serial: S1, write_through: true}
  - {name: m, type: memory, size: 1MiB}
targets:
  - {iqn: iqn.2026-11.test:a, luns: [{lun: 0, volume: disk0}]}
  - {iqn: iqn.2026-11.test:m, luns: [{lun: 0, volume: m}]}
ha: {node: b, store: ` + dir + `, groups: [{name: g1, volumes: [disk0], fencing: node, start: active}]}
`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	manager, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: filepath.Join(dir, "notify"), Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer manager.Close()
	ready, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer ready.Close()
	c := program(t, "serve", "--config", file, "--socket", socket, "--ready-fd", "3", "--drain", "10ms")
	c.ExtraFiles, c.Env = []*os.File{w}, append(c.Env, "NOTIFY_SOCKET="+manager.LocalAddr().String())
	_, log := startProgram(t, c)
	w.Close()
	b := make([]byte, 256)
	if n, err := manager.Read(b); err != nil || !strings.Contains(string(b[:n]), "READY=1") {
		t.Errorf("systemd was told %q, %v", b[:n], err)
	}
	await.True(t, "the group says whom it waits for", func() bool { // the start does not wait for that for long
		g := statusOf(t, socket).Groups[0]
		return g.State == "standby" && strings.Contains(g.Error, "group g1 waits for another node")
	})
	l := attach(t, addr, "iqn.2026-11.test:m")
	if _, err := l.WriteAt(make([]byte, 4096), 0); err != nil {
		t.Error(err)
	}
	l.Close()
	raw, err := ready.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var n int
	var none error
	if err := raw.Read(func(fd uintptr) bool { n, none = syscall.Read(int(fd), b); return true }); err != nil {
		t.Fatal(err)
	}
	if !errors.Is(none, syscall.EAGAIN) {
		t.Errorf("the group waits, and the descriptor has %q, %v", b[:max(n, 0)], none)
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_UN); err != nil {
		t.Fatal(err)
	}
	if n, err := ready.Read(b); n != 1 || err != nil {
		t.Errorf("the descriptor has %q, %v\n%s", b[:n], err, log)
	}
	if g := statusOf(t, socket).Groups[0]; g.State != "active" {
		t.Errorf("%+v", g)
	}
}

// Nothing but a signal ends a command whose configuration does not come. The first one asks it
// to end, and one that is given again ends it.
func TestSignalsWhileReadingTheConfiguration(t *testing.T) {
	fifo := filepath.Join(t.TempDir(), "config.yaml")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	c := program(t, "check", "--config", fifo)
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = c.Wait() // a signal
	}()
	await.True(t, "the command ends", func() bool {
		_ = c.Process.Signal(syscall.SIGTERM) // again and again; it may have ended
		select {
		case <-ended:
			return true
		default:
			return false
		}
	})
}

// An address that the machine does not have is told as that.
func TestPortalOfAnotherMachine(t *testing.T) {
	const addr = "192.0.2.1:0" // for documentation
	if ln, err := net.Listen("tcp", addr); err == nil {
		ln.Close()
		t.Skip("this machine binds addresses that it does not have")
	}
	if code, out := command(t, "serve", "--listen", addr, "--export", "d=memory,size=1MiB"); code != exitFailure || !strings.Contains(out, "no interface of this machine has the address") {
		t.Errorf("exit %d, %s", code, out)
	}
}

// Status, and whatever else does not need the volume, is answered while a volume is
// being opened that does not answer.
func TestStatusDuringAStalledOpening(t *testing.T) {
	dir, freeze, thaw := frozen(t)
	defer thaw()
	addr, socket := loopback.FreeAddr(t), filepath.Join(t.TempDir(), "s")
	c := program(t, "serve", "--listen", addr, "--socket", socket, "--export", "well=memory,size=1MiB")
	banner, log := startProgram(t, c)
	freeze()
	added := make(chan int, 1)
	go func() {
		code, _ := command(t, "lun", "--socket", socket, "add", "iqn.2026-11.softiser:well", "1", "sick="+filepath.Join(dir, "v.img")+",size=8MiB")
		added <- code
	}()
	await.True(t, "the target opens the volume", func() bool { return inStorage(t, c.Process.Pid) })
	if st := statusOf(t, socket); len(st.Targets) != 1 || len(st.Targets[0].LUNs) != 1 {
		t.Errorf("%+v", st.Targets)
	}
	l := attach(t, addr, "iqn.2026-11.softiser:well")
	if _, err := l.WriteAt(make([]byte, 4096), 0); err != nil {
		t.Error(err)
	}
	l.Close()
	thaw()
	if code := <-added; code != 0 {
		t.Errorf("lun add after the stall: exit %d", code)
	}
	if st := statusOf(t, socket); len(st.Targets[0].LUNs) != 2 {
		t.Errorf("%+v", st.Targets)
	}
	if err := c.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	<-banner
	if code := exitOf(t, c); code != 0 {
		t.Errorf("exit %d:\n%s", code, log)
	}
}

// startProgram starts a target and waits until it serves; rest is closed when its
// standard output has ended.
func startProgram(t *testing.T, c *exec.Cmd) (rest <-chan struct{}, log *output) {
	t.Helper()
	stdout, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	log = &output{}
	c.Stderr = log
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	r := bufio.NewReader(stdout)
	if _, err := r.ReadString('\n'); err != nil {
		t.Fatalf("no banner: %v\n%s", err, log)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		io.Copy(io.Discard, r) //nolint:errcheck // until it ends
	}()
	return ended, log
}

// attach opens LUN 0 of a target over TCP.
func attach(t *testing.T, addr, iqn string) *initiator.LUN {
	t.Helper()
	cfg, err := initiator.ParseURL("iscsi://" + addr + "/" + iqn + "/0")
	if err != nil {
		t.Fatal(err)
	}
	l, err := initiator.Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// inStorage reports whether a thread of a process waits for storage.
func inStorage(t *testing.T, pid int) bool {
	t.Helper()
	stats, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range stats {
		b, err := os.ReadFile(name) // the thread may have ended
		if _, rest, ok := strings.Cut(string(b), ") "); err == nil && ok && rest[0] == 'D' {
			return true
		}
	}
	return false
}
