package guest

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// The image is big and its build needs root; the test runs where one exists.
func TestGuestRunsScripts(t *testing.T) {
	if testing.Short() {
		t.Skip("boots a guest")
	}
	if _, err := exec.LookPath("qemu-system-x86_64"); err != nil || os.Geteuid() != 0 {
		t.Skip(ErrNoQEMU)
	}
	im, err := Prepare(Plain, CacheDir(), func(s string) { t.Log(s) })
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute) // without the build, if there is one
	defer cancel()
	g, err := im.Boot(ctx, Options{Name: "t", Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer g.Kill()
	slow, err := g.Start("sleep 1; echo slow")
	if err != nil {
		t.Fatal(err)
	}
	out, err := g.Run(ctx, "siw_up && rdma link show && uname -r")
	if err != nil || !strings.Contains(out, "siw_eth0") || !strings.Contains(out, im.Kernel) {
		t.Fatalf("%v\n%s", err, out)
	}
	if out, err := slow.Wait(ctx); err != nil || out != "slow\n" {
		t.Errorf("%v, %q", err, out)
	}
	if _, err := g.Run(ctx, "echo why; exit 3"); err == nil || !strings.Contains(err.Error(), "status 3") || !strings.Contains(err.Error(), "why") {
		t.Errorf("a failing script: %v", err)
	}
	if log := g.Halt(); !strings.Contains(log, "Linux version") {
		t.Errorf("kernel log: %q", log)
	}
}

// An rping that has verified everything may end as rdma-core 44's does; one that has not, or
// another program, fails.
func TestLimited(t *testing.T) {
	const passed = "client DISCONNECT EVENT...\nping data: rdma-ping-0: ABC"
	for _, c := range []struct {
		program, says string
		status        string
		want          bool
	}{
		{"rping", passed, "0", true},
		{"rping", passed + "\nrdma_get_cm_event: Bad file descriptor", "255", true},
		{"rping", "wait for RDMA_READ_ADV state 10\n" + passed + "\nrdma_get_cm_event: Bad file descriptor", "255", false},
		{"rping", "data mismatch!\n" + passed + "\nrdma_get_cm_event: Bad file descriptor", "255", false},
		{"rping", "ping data: rdma-ping-0: ABC\nrdma_get_cm_event: Bad file descriptor", "255", false},
		{"rping", passed, "1", false},
		{"udaddy", passed + "\nrdma_get_cm_event: Bad file descriptor", "255", false},
	} {
		dir := t.TempDir()
		script := "#!/bin/sh\ncat <<'E'\n" + c.says + "\nE\nexit " + c.status + "\n"
		if err := os.WriteFile(dir+"/"+c.program, []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), "bash", "-c", ". files/lib.sh; limited 60 "+c.program+" -c")
		cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"))
		out, err := cmd.CombinedOutput()
		if (err == nil) != c.want || string(out) != c.says+"\n" {
			t.Errorf("%s says %q and exits with %s: %v, %q", c.program, c.says, c.status, err, out)
		}
	}
}
