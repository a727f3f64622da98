package main

import (
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"softiser/internal/await"
	"softiser/internal/loopback"
	"softiser/target/admin"
)

// activated starts serve as a service manager does, with sockets from descriptor 3 on.
func activated(t *testing.T, sockets []*os.File, names string, args ...string) (out *output, wait func() int, end func()) {
	t.Helper()
	c := program(t, append([]string{"serve"}, args...)...)
	c.Args = append([]string{"sh", "-c", `LISTEN_PID=$$ exec "$0" "$@"`}, append([]string{c.Path}, c.Args[1:]...)...)
	c.Path = "/bin/sh"
	c.Env = append(c.Env, "LISTEN_FDS="+string(rune('0'+len(sockets))), "LISTEN_FDNAMES="+names)
	c.ExtraFiles = sockets
	out = &output{}
	c.Stdout, c.Stderr = out, out
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	return out, func() int { return exitOf(t, c) }, func() { c.Process.Signal(syscall.SIGTERM) } //nolint:errcheck // its end is waited for
}

// listening opens a socket as a manager does, and a second descriptor of it.
func listening(t *testing.T, network, addr string) (*os.File, string) {
	t.Helper()
	ln, err := net.Listen(network, addr)
	if err != nil {
		t.Fatal(err)
	}
	if u, ok := ln.(*net.UnixListener); ok {
		u.SetUnlinkOnClose(false)
	}
	defer ln.Close()
	f, err := ln.(interface{ File() (*os.File, error) }).File()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f, ln.Addr().String()
}

// Portal, admin socket and metrics are sockets that were open before the process: who has
// come earlier is served, and the sockets are there when it has ended.
func TestSocketActivation(t *testing.T) {
	dir := t.TempDir()
	socket := filepath.Join(dir, "s")
	portal, addr := listening(t, "tcp", "127.0.0.1:0")
	adminFile, _ := listening(t, "unix", socket)
	metrics, metricsAddr := listening(t, "tcp", "127.0.0.1:0")
	early, err := net.Dial("tcp", metricsAddr) // nobody serves it yet
	if err != nil {
		t.Fatal(err)
	}
	defer early.Close()
	if _, err := early.Write([]byte("GET /readyz HTTP/1.0\r\n\r\n")); err != nil {
		t.Fatal(err)
	}
	out, wait, end := activated(t, []*os.File{portal, adminFile, metrics}, "portal:admin:metrics",
		"--listen", addr, "--socket", socket, "--metrics", "127.0.0.1:1", "--export", "ram=memory,size=1MiB", "--drain", "10ms")
	await.True(t, "it serves", func() bool { return strings.Contains(out.String(), "serves on") })
	b := make([]byte, 15)
	if _, err := early.Read(b); err != nil || string(b) != "HTTP/1.0 200 OK" {
		t.Errorf("who came early: %q, %v\n%s", b, err, out)
	}
	if code, said := command(t, "status", "--socket", socket); code != 0 || !strings.Contains(said, addr) {
		t.Errorf("status ends with %d\n%s", code, said)
	}
	end()
	if code := wait(); code != 0 {
		t.Errorf("ends with %d\n%s", code, out)
	}
	if _, err := os.Stat(socket); err != nil {
		t.Errorf("the manager's socket has gone: %v", err)
	}
	c, err := net.Dial("tcp", addr) // the manager would start the next one
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
}

// A socket that nothing of the configuration is for would leave peers without an answer.
func TestSocketsOfNoUse(t *testing.T) {
	tcp, addr := listening(t, "tcp", "127.0.0.1:0")
	unix, _ := listening(t, "unix", filepath.Join(t.TempDir(), "s"))
	file, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for want, f := range map[string]*os.File{addr + " is no portal": tcp, "is not admin.socket": unix, "ListenStream=": file} {
		out, wait, _ := activated(t, []*os.File{f}, "x", "--listen", "127.0.0.1:0", "--export", "ram=memory,size=1MiB")
		if code := wait(); code == 0 || !strings.Contains(out.String(), want) || !strings.Contains(out.String(), "socket 3 (x)") {
			t.Errorf("ends with %d, without %q\n%s", code, want, out)
		}
	}
}

// The name of an admin socket that the manager has opened stays also when the process ends that has
// taken the place of the one that was given it.
func TestSocketActivationUpgraded(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	adminFile, _ := listening(t, "unix", socket)
	out, wait, _ := activated(t, []*os.File{adminFile}, "admin",
		"--listen", loopback.FreeAddr(t), "--socket", socket, "--export", "ram=memory,size=1MiB", "--drain", "10ms")
	await.True(t, "it serves", func() bool { return strings.Contains(out.String(), "serves on") })
	code, said := command(t, "upgrade", "--socket", socket, "--json")
	var u admin.Upgraded
	if err := json.Unmarshal([]byte(said), &u); code != 0 || err != nil {
		t.Fatalf("upgrade ends with %d (%v): %s\n%s", code, err, said, out)
	}
	if err := syscall.Kill(u.New, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code := wait(); code != 0 { // of the old process, whose output the new one has until it ends
		t.Errorf("ends with %d\n%s", code, out)
	}
	await.True(t, "the new process ends", func() bool { return gone(u.New) })
	if _, err := os.Stat(socket); err != nil {
		t.Errorf("the manager's socket has gone: %v", err)
	}
}
