package attach

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"softiser/initiator/internal/e2e"
	"softiser/internal/await"
	"softiser/internal/handover/handovertest"
	"softiser/internal/loopback"
)

// fio is a run of fio over an NBD socket, which writes, reads back and compares until it is told
// to end. It never connects again.
type fio struct {
	t   *testing.T
	cmd *exec.Cmd
	out strings.Builder
	res string // its report
}

func startFio(t *testing.T, socket string) *fio {
	t.Helper()
	path, err := exec.LookPath("fio")
	if err != nil {
		t.Skip("fio is not installed")
	}
	if out, err := exec.Command(path, "--enghelp=nbd").CombinedOutput(); err != nil || !strings.Contains(string(out), "uri") {
		t.Skipf("this fio has no engine for NBD: %s", out)
	}
	dir := t.TempDir()
	f := &fio{t: t, res: filepath.Join(dir, "report")}
	f.cmd = exec.CommandContext(t.Context(), path, "--name=verify", "--ioengine=nbd", "--uri=nbd+unix:///?socket="+socket,
		"--rw=randwrite", "--bs=16k", "--size=16M", "--iodepth=16", "--verify=crc32c", "--verify_backlog=64", "--verify_fatal=1",
		"--time_based", "--runtime=3600", "--output-format=json", "--output="+f.res)
	f.cmd.Dir, f.cmd.Stdout, f.cmd.Stderr = dir, &f.out, &f.out
	if err := f.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if f.cmd.ProcessState == nil {
			f.cmd.Process.Kill()
			f.cmd.Wait()
		}
	})
	return f
}

// end ends it, and checks that it has verified and has met no error.
func (f *fio) end() {
	f.t.Helper()
	f.cmd.Process.Signal(os.Interrupt)
	f.cmd.Wait() // not 0 after a signal; the report tells
	text, err := os.ReadFile(f.res)
	if err != nil {
		f.t.Fatalf("%v\n%s", err, f.out.String())
	}
	var report struct {
		Jobs []struct {
			Error int `json:"error"`
			Read  struct {
				IOs int `json:"total_ios"`
			} `json:"read"`
			Write struct {
				IOs int `json:"total_ios"`
			} `json:"write"`
		} `json:"jobs"`
	}
	// What it says to people stands before the object.
	from := strings.IndexByte(string(text), '{')
	if from < 0 || json.Unmarshal(text[from:], &report) != nil || len(report.Jobs) != 1 {
		f.t.Fatalf("fio has reported:\n%s\n%s", text, f.out.String())
	}
	j := report.Jobs[0]
	if j.Error != 0 || j.Read.IOs == 0 || j.Write.IOs == 0 {
		f.t.Errorf("fio has ended with errno %d after %d writes and %d reads that verify:\n%s", j.Error, j.Write.IOs, j.Read.IOs, f.out.String())
	}
	f.t.Logf("fio has made %d writes, and verified %d reads", j.Write.IOs, j.Read.IOs)
}

// The target's process is replaced again and again under fio, which verifies over the NBD socket of an
// attachment: fio meets no error and never connects again, and the attachment makes no
// connection to the target.
func TestTargetUpgradedUnderFio(t *testing.T) {
	for _, scheme := range []string{"iser", "iscsi", "nvme+tcp"} {
		t.Run(scheme, func(t *testing.T) {
			t.Parallel()
			target := e2e.StartTarget(t, "16MiB")
			way := loopback.NewProxy(t, target.Addr)
			x := attachProgram(t, strings.Replace(target.URL(scheme), target.Addr, way.Addr, 1), patient...)
			f := startFio(t, x.rec.Socket)
			goesOn := func() {
				t.Helper()
				moved := way.Moved()
				await.True(t, "the load goes on", func() bool { return way.Moved() > moved+2<<20 })
			}
			goesOn()
			before, logins := target.Sessions(), way.Taken()
			clean := true
			for range handovertest.Upgrades(t, 3) {
				clean = target.Upgrade() && clean
				goesOn()
			}
			if after := target.Sessions(); clean && !slices.Equal(after, before) {
				t.Errorf("the target has the sessions %q; it had %q", after, before)
			}
			if n := way.Taken(); clean && n != logins {
				t.Errorf("%d connections were made to the target; there were %d before the upgrades", n-logins, logins)
			}
			f.end()
		})
	}
}
