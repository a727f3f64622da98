package attach

import (
	"bytes"
	"encoding/json"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"softiser/initiator/internal/e2e"
	"softiser/internal/await"
	"softiser/internal/loopback"
)

// written is how many bytes of a sparse file are allocated.
func written(t *testing.T, path string) int64 {
	var st syscall.Stat_t
	if err := syscall.Stat(path, &st); err != nil {
		t.Fatal(err)
	}
	return st.Blocks * 512
}

// The target is killed while fio writes and verifies through the attached
// device; it comes back, and fio notices nothing.
func TestTargetKilledUnderLoad(t *testing.T) {
	if out, err := exec.Command("fio", "--enghelp=nbd").CombinedOutput(); err != nil || strings.Contains(string(out), "not loadable") {
		t.Skipf("fio with the nbd engine is not installed (%v)", err)
	}
	initiatorBin := e2e.Binary(t, "iser-initiator")
	for _, scheme := range []string{"iser", "iscsi", "nvme+tcp", "nvme+rdma"} {
		t.Run(scheme, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			target := e2e.StartTarget(t, "64MiB")
			url := target.URL(scheme)
			run := func(args ...string) string {
				t.Helper()
				out, err := exec.Command(initiatorBin, append(args, "--run-dir", dir)...).CombinedOutput()
				if err != nil {
					t.Fatalf("%q: %v\n%s", args, err, out)
				}
				return string(out)
			}
			var rec Record
			if err := json.Unmarshal([]byte(run("attach", "--daemon", "--json", "--device=none", "--noop-interval=1s", "--log", filepath.Join(dir, "log"), url)), &rec); err != nil {
				t.Fatal(err)
			}
			defer exec.Command(initiatorBin, "attach", "--detach", "--run-dir", dir, url).Run()
			if rec.PID == os.Getpid() || rec.Size != 64<<20 {
				t.Fatalf("%+v", rec)
			}
			var again Record
			if err := json.Unmarshal([]byte(run("attach", "--daemon", "--json", "--device=none", url)), &again); err != nil || !again.Already || again.PID != rec.PID {
				t.Errorf("attached twice: %+v, %v", again, err)
			}

			fio := exec.Command("fio", "--name=v", "--verify_state_save=0", "--ioengine=nbd", "--uri="+rec.URI, "--rw=randwrite", "--bs=4k", "--iodepth=16",
				"--size=32m", "--rate_iops=3000", "--verify=crc32c", "--verify_fatal=1")
			var out bytes.Buffer
			fio.Stdout, fio.Stderr = &out, &out
			if err := fio.Start(); err != nil {
				t.Fatal(err)
			}
			// Into its writes, which take 2.7 s at this rate.
			await.True(t, "fio has begun to write", func() bool { return written(t, target.Img) >= 2<<20 })
			target.Kill()
			time.Sleep(300 * time.Millisecond) // an outage that the load notices
			target.Start()
			if err := fio.Wait(); err != nil || !strings.Contains(out.String(), "err= 0") {
				log, _ := os.ReadFile(filepath.Join(dir, "log"))
				t.Fatalf("fio: %v\n%s\n%s", err, out.String(), log)
			}
			if s := run("attach", "--detach", url); !strings.Contains(s, "is detached") {
				t.Errorf("detach: %s", s)
			}
			if s := run("attach", "--list"); !strings.HasPrefix(s, "nothing is attached") {
				t.Errorf("still listed: %s", s)
			}
			if err := syscall.Kill(rec.PID, 0); err == nil {
				// The process may be a zombie of this test's init; it holds nothing.
				if _, err := os.Stat(rec.Socket); err == nil {
					t.Errorf("process %d still serves", rec.PID)
				}
			}
		})
	}
}

// A target that is away for longer than the replacement time-out fails requests,
// is shown as away, and serves again when it is back, in the same attachment.
func TestTargetAwayForLong(t *testing.T) {
	t.Run("iser", func(t *testing.T) {
		t.Parallel()
		awayForLong(t, "iser", "down", "replacement time-out", "--replacement-timeout=1s", "--noop-interval=1s")
	})
	for _, scheme := range []string{"nvme+tcp", "nvme+rdma"} {
		t.Run(scheme, func(t *testing.T) {
			t.Parallel()
			awayForLong(t, scheme, "no path", "nvm", "--ctrl-loss-tmo=1", "--keep-alive-tmo=1", "--reconnect-delay=1")
		})
	}
}

// awayForLong attaches a volume with options; when its target is away that shows as
// state, for a reason.
func awayForLong(t *testing.T, scheme, away, reason string, options ...string) {
	bin, dir := e2e.Binary(t, "iser-initiator"), t.TempDir()
	target := e2e.StartTarget(t, "16MiB")
	url := target.URL(scheme)
	run := func(args ...string) (string, error) {
		out, err := exec.Command(bin, append(append([]string{"attach"}, args...), "--run-dir", dir)...).CombinedOutput()
		return string(out), err
	}
	attach := func() (rec Record) {
		t.Helper()
		out, err := run(append(options, "--daemon", "--json", "--device=none", url)...)
		if err != nil || json.Unmarshal([]byte(out), &rec) != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return rec
	}
	rec := attach()
	defer run("--detach", "--force", "--timeout=1s", url)
	state := func(want string) {
		t.Helper()
		await.True(t, "the attachment is "+want, func() bool {
			var live []Record
			out, err := run("--list", "--json")
			if err != nil || json.Unmarshal([]byte(out), &live) != nil || len(live) != 1 || live[0].PID != rec.PID {
				t.Fatalf("%v\n%s", err, out)
			}
			return live[0].State == want && (want == "connected") == (live[0].Reason == "")
		})
	}
	for range 2 {
		state("connected")
		target.Kill()
		state(away)
		if out, err := run("--list"); err != nil || !strings.Contains(out, away+" for ") || !strings.Contains(out, reason) {
			t.Errorf("%v\n%s", err, out)
		}
		if out, err := exec.Command("qemu-io", "-f", "raw", rec.URI, "-c", "read 0 4k").CombinedOutput(); err == nil && !strings.Contains(string(out), "failed") {
			t.Errorf("a read while the target is away: %s", out)
		}
		target.Start()
	}
	state("connected")
	if out, err := run("--detach", url); err != nil {
		t.Errorf("%v\n%s", err, out)
	}

	// One that does not end by itself is ended, and leaves nothing.
	rec = attach()
	if err := syscall.Kill(rec.PID, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if out, err := run("--detach", "--force", "--timeout=1s", url); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	if out, err := run("--list"); err != nil || !strings.HasPrefix(out, "nothing is attached") {
		t.Errorf("%v, still listed: %s", err, out)
	}
	if left, _ := os.ReadDir(dir); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

// An attach that cannot connect says so in the foreground and in the
// background alike, and leaves nothing.
func TestDaemonReportsFailure(t *testing.T) {
	initiatorBin := e2e.Binary(t, "iser-initiator")
	dir := t.TempDir()
	nobody := loopback.FreeAddr(t)
	for _, daemon := range []string{"--daemon=true", "--daemon=false"} {
		out, err := exec.Command(initiatorBin, "attach", daemon, "--run-dir", dir, "--login-timeout=2s", "iser://"+nobody+"/iqn.2026-11.x:y/0").CombinedOutput()
		if err == nil || !strings.Contains(string(out), "refused; nothing listens there") {
			t.Errorf("%s: %v: %s", daemon, err, out)
		}
	}
	if files, _ := os.ReadDir(dir); len(files) != 0 {
		t.Errorf("left behind: %v", files)
	}
}

// What clients of NBD ask for reaches a namespace: reads, writes, FUA, flushes, discards,
// zeroes, and what is allocated.
func TestNamespaceByNBD(t *testing.T) {
	bin := e2e.Binary(t, "iser-initiator")
	for _, tool := range []string{"qemu-io", "nbdcopy", "nbdinfo"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("%s is not installed (apt-get install qemu-utils libnbd-bin)", tool)
		}
	}
	target := e2e.StartTarget(t, "16MiB")
	for _, scheme := range []string{"nvme+tcp", "nvme+rdma"} {
		t.Run(scheme, func(t *testing.T) {
			dir := t.TempDir()
			url := target.URL(scheme)
			run := func(name string, args ...string) string {
				t.Helper()
				out, err := exec.Command(name, args...).CombinedOutput()
				if err != nil {
					t.Fatalf("%s %q: %v\n%s", name, args, err, out)
				}
				return string(out)
			}
			var rec Record
			if err := json.Unmarshal([]byte(run(bin, "attach", "--daemon", "--json", "--device=none", "--nr-queues=2", "--run-dir", dir, url)), &rec); err != nil {
				t.Fatal(err)
			}
			defer exec.Command(bin, "attach", "--detach", "--run-dir", dir, url).Run()
			if rec.Size != 16<<20 || rec.URL != url || rec.State != "connected" {
				t.Errorf("%+v", rec)
			}
			out := run("qemu-io", "-f", "raw", rec.URI,
				"-c", "write -P 0x5a 64k 128k", "-c", "write -f -P 0x11 4k 4k", "-c", "flush", "-c", "read -P 0x5a 64k 128k", "-c", "read -P 0x11 4k 4k",
				"-c", "write -z 64k 64k", "-c", "read -P 0 64k 64k", "-c", "discard 128k 64k", "-c", "read -P 0 128k 64k",
				"-c", "aio_write -P 7 1M 4M", "-c", "aio_flush", "-c", "read -P 7 1M 4M", "-c", "write -P 9 1023k 1k", "-c", "read -P 9 1023k 1k")
			if strings.Contains(out, "failed") || strings.Contains(out, "error") {
				t.Errorf("qemu-io:\n%s", out)
			}
			copied := filepath.Join(dir, "copied")
			run("nbdcopy", rec.URI, copied)
			a, aerr := os.ReadFile(copied)
			b, berr := os.ReadFile(target.Img)
			if aerr != nil || berr != nil || !bytes.Equal(a, b) {
				t.Errorf("nbdcopy reads other data than the volume has: %v %v", aerr, berr)
			}
			if out := run("nbdinfo", "--map", rec.URI); !strings.Contains(out, "data") {
				t.Errorf("nbdinfo --map:\n%s", out)
			}
			if out := run(bin, "attach", "--list", "--run-dir", dir); !strings.Contains(out, url) || !strings.Contains(out, "connected") {
				t.Errorf("--list:\n%s", out)
			}
			if out := run(bin, "attach", "--detach", "--run-dir", dir, url); !strings.Contains(out, "is detached") {
				t.Errorf("--detach: %s", out)
			}
			if left, _ := os.ReadDir(dir); len(left) != 1 { // copied
				t.Errorf("left behind: %v", left)
			}
		})
	}
}

// Who interrupts an attach in the background before it is ready ends the process there, too.
func TestDaemonInterrupted(t *testing.T) {
	bin, dir := e2e.Binary(t, "iser-initiator"), t.TempDir()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP} {
		cmd := exec.Command(bin, "attach", "--daemon", "--device=none", "--run-dir", dir, "--login-timeout=10s", "iscsi://"+silent.Addr().String()+"/iqn.2026-11.x:y/0")
		var said bytes.Buffer
		cmd.Stderr = &said
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		c, err := silent.Accept() // the login of the process in the background
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Process.Signal(sig); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Wait(); err == nil || !strings.Contains(said.String(), "interrupted") {
			t.Errorf("%v: %v: %s", sig, err, &said)
		}
		if files, _ := os.ReadDir(dir); len(files) != 0 {
			t.Errorf("%v: left behind: %v", sig, files)
		}
		c.Close()
	}
}
