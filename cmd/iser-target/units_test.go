package main

import (
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"softiser/internal/await"
	"softiser/internal/loopback"
)

const units = "../../packaging/systemd"

// systemd itself finds little to say against the units: its exposure level is at most 3 of 10.
func TestUnitsAreHardened(t *testing.T) {
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("no systemd-analyze (Debian package systemd)")
	}
	level := regexp.MustCompile(`Overall exposure level for \S+ (\d+\.\d+)`)
	for _, unit := range []string{"iser-target.service", "iser-attach@.service"} {
		c := exec.CommandContext(t.Context(), analyze, "security", "--offline=true", "--no-pager", filepath.Join(units, unit))
		c.Env = append(os.Environ(), "LC_ALL=C")
		out, err := c.CombinedOutput()
		m := level.FindStringSubmatch(string(out))
		if m == nil {
			t.Skipf("systemd-analyze security: %v, %s", err, out) // one of before 250 reads no files
		}
		if x, err := strconv.ParseFloat(m[1], 64); err != nil || x > 3 {
			t.Errorf("%s: exposure level %s\n%s", unit, m[1], out)
		}
	}
}

// systemd finds no mistake in the units, nor in the drop-in for ublk, with which the level is the same.
func TestUnitsVerify(t *testing.T) {
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("no systemd-analyze (Debian package systemd)")
	}
	dir := t.TempDir()
	put := func(from, to string) {
		text, err := os.ReadFile(filepath.Join(units, from))
		if err != nil {
			t.Fatal(err)
		}
		// The programs are where the package puts them.
		text = regexp.MustCompile(`(?m)^(Exec\w+=)/usr/bin/iser-\w+`).ReplaceAll(text, []byte("${1}/bin/true"))
		to = filepath.Join(dir, to)
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(to, text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	names := []string{"iser-target.service", "iser-target.socket", "iser-attach@.service", "iser-attach@plain.service", "iser-attach@ublk.service"}
	var paths []string
	for _, name := range names {
		from, _, _ := strings.Cut(name, "@")
		if from != name {
			from += "@.service"
		}
		put(from, name)
		paths = append(paths, filepath.Join(dir, name))
	}
	put("iser-attach-ublk.conf", "iser-attach@ublk.service.d/ublk.conf")
	c := exec.CommandContext(t.Context(), analyze, append([]string{"verify", "--man=no", "--recursive-errors=no"}, paths...)...)
	c.Env = append(os.Environ(), "LC_ALL=C")
	out, err := c.CombinedOutput()
	if err != nil {
		t.Errorf("systemd-analyze verify: %v\n%s", err, out)
	}
	for line := range strings.Lines(string(out)) {
		if strings.Contains(line, dir) || strings.Contains(line, "iser-") {
			t.Errorf("systemd-analyze verify: %s", line)
		}
	}
}

// What the units start takes the options that they give.
func TestUnitsGiveKnownOptions(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(units, "iser-target.service"))
	if err != nil {
		t.Fatal(err)
	}
	lines := regexp.MustCompile(`(?m)^Exec\w+=/usr/bin/iser-target (.*)$`).FindAllStringSubmatch(string(text), -1)
	if len(lines) != 2 {
		t.Errorf("%d lines start iser-target", len(lines))
	}
	for _, l := range lines {
		args := strings.Fields(l[1])
		cmd, rest, err := newRoot().Find(args)
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.ParseFlags(rest); err != nil {
			t.Errorf("%s: %v", l[0], err)
		}
	}
}

// Either package alone has the folders that its units read, with rights that keep secrets (a machine that attaches
// volumes need not have the target), and the documents that its program refers to; that of the target has the cluster's agent.
func TestPackagesHaveTheirFolders(t *testing.T) {
	if _, err := exec.LookPath("dpkg-deb"); err != nil {
		t.Skip("no dpkg-deb (Debian package dpkg)")
	}
	repository, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	// The script packs what is beside it: the real files, and programs that say nothing.
	dir := t.TempDir()
	err = errors.Join(os.CopyFS(filepath.Join(dir, "packaging"), os.DirFS(filepath.Join(repository, "packaging"))),
		os.MkdirAll(filepath.Join(dir, "bin"), 0o755), os.MkdirAll(filepath.Join(dir, "build", "man"), 0o755))
	for _, name := range []string{"CHANGELOG.md", "config", "docs"} {
		err = errors.Join(err, os.Symlink(filepath.Join(repository, name), filepath.Join(dir, name)))
	}
	for _, name := range []string{"iser-target", "iser-initiator"} {
		err = errors.Join(err, os.WriteFile(filepath.Join(dir, "bin", name), []byte("#!/bin/sh\n"), 0o755),
			os.WriteFile(filepath.Join(dir, "build", "man", name+".1"), nil, 0o644))
	}
	if err != nil {
		t.Fatal(err)
	}
	c := exec.CommandContext(t.Context(), "bash", filepath.Join(dir, "packaging", "deb", "build"), "1", filepath.Join(dir, "out"))
	c.Env = append(os.Environ(), "SOURCE_DATE_EPOCH=0")
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for name, all := range map[string][]string{
		"iser-initiator": {`drwx------ root/root .* \./etc/softiser/attach/`, `-rw-r--r-- root/root .* \./usr/share/doc/iser-initiator/FIO\.md\.gz`},
		"iser-target": {`-rwxr-xr-x root/root .* \./usr/lib/ocf/resource\.d/softiser/target`, `-rw-r--r-- root/root .* \./usr/share/doc/iser-target/lvm\.md\.gz`,
			`-rw-r--r-- root/root .* \./usr/share/doc/iser-target/ha/README\.md\.gz`, `-rw-r--r-- root/root .* \./usr/share/doc/iser-target/CONFIGURATION\.md\.gz`},
	} {
		debs, err := filepath.Glob(filepath.Join(dir, "out", name+"_*.deb"))
		if err != nil || len(debs) != 1 {
			t.Fatalf("%v, %v", debs, err)
		}
		list, err := exec.CommandContext(t.Context(), "dpkg-deb", "-c", debs[0]).Output()
		for _, want := range all {
			if err != nil || !regexp.MustCompile("(?m)^"+want+"$").Match(list) {
				t.Errorf("no %s (%v) in\n%s", want, err, list)
			}
		}
	}
}

// A package that is removed takes the sockets along: who comes to one that systemd still holds would start the
// service again.
func TestRemovalStopsTheSockets(t *testing.T) {
	dir := t.TempDir()
	text, err := os.ReadFile("../../packaging/deb/iser-target.prerm")
	if err != nil {
		t.Fatal(err)
	}
	script := strings.ReplaceAll(string(text), "/run/systemd/system", dir)
	asked := filepath.Join(dir, "asked")
	if err := os.WriteFile(filepath.Join(dir, "systemctl"), []byte("#!/bin/sh\necho \"$*\" >> "+asked+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, action := range []string{"upgrade", "remove"} { // in this order: the first asks for nothing
		c := exec.CommandContext(t.Context(), "sh", "-c", script, "prerm", action)
		c.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"))
		if out, err := c.CombinedOutput(); err != nil {
			t.Fatalf("prerm %s: %v\n%s", action, err, out)
		}
		got, _ := os.ReadFile(asked)
		if want := map[string]string{"upgrade": "", "remove": "stop iser-target.socket iser-target.service\n"}[action]; string(got) != want {
			t.Errorf("prerm %s asks systemctl for %q, not %q", action, got, want)
		}
	}
}

// A crash is no mistake in the configuration: what the watchdog ends, it starts again. Go's
// own exit status of a crash is 2, which is ours for those, so that the units have it end by the signal.
func TestCrashIsStartedAgain(t *testing.T) {
	for _, unit := range []string{"iser-target.service", "iser-attach@.service"} {
		text, err := os.ReadFile(filepath.Join(units, unit))
		if err != nil || !strings.Contains(string(text), "\nRestartPreventExitStatus=2\n") || !strings.Contains(string(text), "\nEnvironment=GOTRACEBACK=crash\n") {
			t.Errorf("%s: %v, or it does not tell crashes from mistakes", unit, err)
		}
	}
	addr := loopback.FreeAddr(t)
	c := program(t, "serve", "--listen", addr, "--log-level", "error", "--export", "a=memory,size=1MiB")
	c.Env = append(c.Env, "GOTRACEBACK=crash")
	c.Dir = t.TempDir() // of a core, where those are written
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	await.Listening(t, addr)
	if err := c.Process.Signal(syscall.SIGABRT); err != nil {
		t.Fatal(err)
	}
	if code := exitOf(t, c); code != -1 {
		t.Errorf("exit status %d", code)
	}
}

// The service manager is told when the target serves, that it is well, and that it ends.
func TestServiceManagerIsTold(t *testing.T) {
	name := filepath.Join(t.TempDir(), "notify")
	manager, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: name, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer manager.Close()
	t.Setenv("NOTIFY_SOCKET", name)
	t.Setenv("WATCHDOG_PID", "")
	t.Setenv("WATCHDOG_USEC", "50000")
	told := func() string {
		t.Helper()
		if err := manager.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 64)
		n, _, err := manager.ReadFrom(b)
		if err != nil {
			t.Fatal(err)
		}
		return string(b[:n])
	}
	_, stop := start(t, "--listen", loopback.FreeAddr(t), "--log-level", "error", "--export", "a=memory,size=1MiB")
	wait := func(want string) {
		t.Helper()
		for got := ""; got != want; {
			if got = told(); got != want && got != "WATCHDOG=1" { // which may come at any time
				t.Fatalf("told %q, want %s", got, want)
			}
		}
	}
	wait("READY=1")
	wait("WATCHDOG=1")
	stopped := make(chan int)
	go func() { stopped <- stop() }()
	wait("STOPPING=1")
	if code := <-stopped; code != 0 {
		t.Errorf("exit %d", code)
	}
}
