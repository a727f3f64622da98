package filelock

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"softiser/internal/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

const holderEnv = "FILELOCK_TEST_HOLDER"

// Who has a file locked is named: this process, another one, and, where that has ended and left its open file to somebody, that one.
func TestHolder(t *testing.T) {
	if name := os.Getenv(holderEnv); name != "" {
		if err := unix.Flock(3, unix.LOCK_EX); err != nil {
			t.Fatal(err)
		}
		fmt.Println("locked")
		_, _ = os.Stdin.Read(make([]byte, 1)) // until the other end is closed
		return
	}
	name := filepath.Join(t.TempDir(), "file")
	open := func() *os.File {
		f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f
	}
	look, mine := open(), open()
	told := func(want string, own bool) {
		t.Helper()
		if got, is := Holder(look); got != want || is != own {
			t.Errorf("%q (own: %v), want %q", got, is, want)
		}
	}
	if err := unix.Flock(int(mine.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	told("this process", true)
	if err := unix.Flock(int(mine.Fd()), unix.LOCK_UN); err != nil {
		t.Fatal(err)
	}
	c := exec.Command(os.Args[0], "-test.run=^TestHolder$")
	c.Env, c.ExtraFiles = append(os.Environ(), holderEnv+"="+name), []*os.File{mine}
	in, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 6)); err != nil {
		t.Fatal(err)
	}
	comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", c.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	told(fmt.Sprintf("process %d (%s)", c.Process.Pid, comm[:len(comm)-1]), false)
	in.Close()
	var st unix.Siginfo
	if err := unix.Waitid(unix.P_PID, c.Process.Pid, &st, unix.WEXITED|unix.WNOWAIT, nil); err != nil {
		t.Fatal(err)
	}
	told(fmt.Sprintf("the process that has taken over from process %d", c.Process.Pid), false) // which is a zombie
	if err := c.Wait(); err != nil {
		t.Error(err)
	}
	told(fmt.Sprintf("the process that has taken over from process %d", c.Process.Pid), false)
}
