// Package e2e runs the two programs for tests: built once per test process,
// with a target that can be killed and started again on its port.
package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"softiser/internal/loopback"
)

var build = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "softiser-e2e-")
	if err != nil {
		return "", err
	}
	cmd := exec.Command("go", "build", "-o", dir+"/", "softiser/cmd/iser-target", "softiser/cmd/iser-initiator")
	if out, err := cmd.CombinedOutput(); err != nil {
		os.RemoveAll(dir)
		return "", fmt.Errorf("go build: %w: %s", err, out)
	}
	built = dir
	return dir, nil
})

var built string

// Clean removes the programs; for TestMain.
func Clean() {
	if built != "" {
		os.RemoveAll(built)
	}
}

// Binary returns the path of iser-target or iser-initiator.
func Binary(t testing.TB, name string) string {
	t.Helper()
	if testing.Short() {
		t.Skip("builds and runs the programs")
	}
	dir, err := build()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, name)
}

// Target is an iser-target that exports one file as "disk".
type Target struct {
	Addr string
	Img  string

	Socket string // for its administration

	t    testing.TB
	bin  string
	size string
	more []string
	cmd  *exec.Cmd
	pid  int // of the process that serves, which an upgrade has started; 0: cmd's
}

// StartTarget starts a target with a file of size, for example "64MiB", and with more options. The
// test's end kills it.
func StartTarget(t testing.TB, size string, more ...string) *Target {
	t.Helper()
	dir := t.TempDir()
	p := &Target{
		t: t, bin: Binary(t, "iser-target"), Addr: loopback.FreeAddr(t), Img: filepath.Join(dir, "disk.img"), Socket: filepath.Join(dir, "s"),
		size: size, more: more,
	}
	p.Start()
	t.Cleanup(p.Kill)
	return p
}

// URL is the volume's address; scheme is iser, iscsi, nvme+tcp or nvme+rdma.
func (p *Target) URL(scheme string) string {
	if strings.HasPrefix(scheme, "nvme") {
		return scheme + "://" + p.Addr + "/nqn.2026-11.softiser:disk/1"
	}
	return scheme + "://" + p.Addr + "/iqn.2026-11.softiser:disk/0"
}

// Start starts the target and waits until it listens.
func (p *Target) Start() {
	p.t.Helper()
	p.cmd = exec.Command(p.bin, append([]string{"serve", "--listen", p.Addr, "--socket", p.Socket, "--export", "disk=" + p.Img + ",size=" + p.size, "--log-level", "error"}, p.more...)...)
	// Where it remembers over a crash that its cache was kept.
	p.cmd.Env = append(os.Environ(), "RUNTIME_DIRECTORY="+filepath.Dir(p.Img))
	var out bytes.Buffer
	p.cmd.Stderr = &out
	if err := p.cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	for end := time.Now().Add(60 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		if c, err := net.Dial("tcp", p.Addr); err == nil {
			c.Close()
			return
		}
		if time.Now().After(end) {
			p.Kill()
			p.t.Fatalf("the target does not listen: %s", out.String())
		}
	}
}

// Admin runs a command over the target's socket and returns what it prints.
func (p *Target) Admin(args ...string) []byte {
	p.t.Helper()
	out, err := exec.Command(p.bin, append(args, "--socket", p.Socket)...).CombinedOutput()
	if err != nil {
		p.t.Fatalf("iser-target %q: %v\n%s", args, err, out)
	}
	return out
}

// Sessions returns what the target has of each session, or controller, and its connections.
func (p *Target) Sessions() (all []string) {
	p.t.Helper()
	var st struct {
		Sessions []struct {
			TSIH       int    `json:"tsih"`
			Connection string `json:"connection"`
			Remote     string `json:"remote"`
		} `json:"sessions"`
	}
	if err := json.Unmarshal(p.Admin("status", "--json"), &st); err != nil {
		p.t.Fatal(err)
	}
	for _, s := range st.Sessions {
		all = append(all, fmt.Sprintf("%d %s %s", s.TSIH, s.Connection, s.Remote))
	}
	slices.Sort(all)
	return all
}

// Upgrade replaces the process that serves by another one. It reports whether everybody was at rest in
// time, and so nobody was cut off: on a starved machine somebody may be.
func (p *Target) Upgrade() (clean bool) {
	p.t.Helper()
	var u struct {
		New    int      `json:"new_pid"`
		Closed []string `json:"closed"`
	}
	if err := json.Unmarshal(p.Admin("upgrade", "--json"), &u); err != nil || u.New == 0 {
		p.t.Fatalf("%v: %+v", err, u)
	}
	p.pid = u.New
	for _, what := range u.Closed {
		p.t.Log("closed by the upgrade:", what)
	}
	return len(u.Closed) == 0
}

// Kill ends the target as kill -9 does.
func (p *Target) Kill() {
	if p.pid != 0 {
		syscall.Kill(p.pid, syscall.SIGKILL)
		p.pid = 0
	}
	if p.cmd != nil {
		p.cmd.Process.Kill()
		p.cmd.Wait()
		p.cmd = nil
	}
}
