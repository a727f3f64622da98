package leaktest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"softiser/internal/await"
)

// playEnv makes this test binary one whose tests have left a process behind, of which it is no parent.
const playEnv = "SOFTISER_LEAKTEST_PLAY"

func init() {
	if os.Getenv(playEnv) == "" {
		return
	}
	var c check
	Processes()(&c)
	fmt.Println(c.mark)
	if err := exec.Command("sh", "-c", "setsid sleep 3600 </dev/null >/dev/null 2>&1 &").Run(); err != nil {
		panic(err)
	}
	time.Sleep(time.Hour) // it is killed before; without a timer the runtime might call it a deadlock
}

// TestProcesses: what the tests of a binary have started ends with that also if it is killed, and is
// found before.
func TestProcesses(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := exec.Command(exe)
	c.Env = append(os.Environ(), playEnv+"=1")
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	c.ExtraFiles = []*os.File{w}
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	defer c.Wait()
	defer c.Process.Kill()
	var mark string
	if _, err := fmt.Fscan(out, &mark); err != nil {
		t.Fatal(err)
	}
	await.True(t, "the process is there, and those that have started it are not", func() bool {
		all := processes(mark)
		return strings.Count(all, "\n") == 1 && strings.HasSuffix(all, ": sleep 3600 \n")
	})
	for _, pid := range marked(guardEnv + "=" + mark) {
		for _, fd := range descriptors(t, pid) {
			if fd == descriptors(t, os.Getpid())[w.Fd()] {
				t.Errorf("the guard keeps a descriptor that the tests were started with: %s", fd)
			}
		}
	}
	if err := c.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	await.True(t, "the process ends with the one that was killed", func() bool { return len(marked(mark)) == 0 })
}

// descriptors are the open files of a process, by number.
func descriptors(t *testing.T, pid int) map[uintptr]string {
	t.Helper()
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	all, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	fds := map[uintptr]string{}
	for _, e := range all {
		n, err := strconv.ParseUint(e.Name(), 10, 31)
		if err != nil {
			t.Fatal(err)
		}
		fds[uintptr(n)], _ = os.Readlink(filepath.Join(dir, e.Name())) // what reads the folder has ended
	}
	return fds
}
