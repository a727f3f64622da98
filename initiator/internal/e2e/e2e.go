// Package e2e runs the two programs for tests: built once per test process,
// with a target that can be killed and started again on its port.
package e2e

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
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

	t    testing.TB
	bin  string
	size string
	cmd  *exec.Cmd
}

// StartTarget starts a target with a file of size, for example "64MiB". The
// test's end kills it.
func StartTarget(t testing.TB, size string) *Target {
	t.Helper()
	p := &Target{t: t, bin: Binary(t, "iser-target"), Addr: loopback.FreeAddr(t), Img: filepath.Join(t.TempDir(), "disk.img"), size: size}
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
	p.cmd = exec.Command(p.bin, "serve", "--listen", p.Addr, "--export", "disk="+p.Img+",size="+p.size, "--log-level", "error")
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
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

// Kill ends the target as kill -9 does.
func (p *Target) Kill() {
	if p.cmd != nil {
		p.cmd.Process.Kill()
		p.cmd.Wait()
		p.cmd = nil
	}
}
