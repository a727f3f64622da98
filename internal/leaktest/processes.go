package leaktest

import (
	"bytes"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A test binary that is killed, or ends by its -test.timeout, cleans nothing up. What its tests have started
// would go on for ever: a daemon, and the process that has taken another one's place, are no children of it
// that could be told to end with it. So it marks them, by a variable of the environment that they pass on,
// and starts a guard: this binary once more, which waits for its end and kills what is marked then.

const (
	markEnv  = "SOFTISER_TEST_RUN"
	guardEnv = "SOFTISER_TEST_GUARD"
)

// Processes has all processes that the tests start, and that those start in turn, end with the test binary,
// however that ends. Those that are there when the tests have ended are left behind. Only what passes its environment on
// is found.
func Processes() Option {
	return func(c *check) {
		mark := fmt.Sprintf("%s=%d.%d", markEnv, os.Getpid(), time.Now().UnixNano())
		end, err := startGuard(mark)
		if err != nil {
			fmt.Fprintln(os.Stderr, "leaktest: no guard of processes:", err)
			os.Exit(1)
		}
		os.Setenv(markEnv, strings.TrimPrefix(mark, markEnv+"="))
		c.mark, c.last = mark, end
	}
}

// startGuard starts the guard of what is marked; end has it do its work, for which nobody waits.
func startGuard(mark string) (end func(), err error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	guard := exec.Command(exe)
	// Without the mark of a test that has started this one, whose guard would kill this one's.
	env := slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, markEnv+"=") })
	guard.Env = append(env, guardEnv+"="+mark, "GORACE=atexit_sleep_ms=0")
	guard.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // what a terminal tells the tests is not for it
	// Who has started the tests with descriptors of its own may wait for their last copy to be closed, as the
	// fuzzing engine does with its workers'; the guard lives on. An older kernel does not know the call.
	_ = unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC)
	in, err := guard.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := guard.Start(); err != nil {
		return nil, err
	}
	return func() { in.Close() }, nil
}

// quietFor is how long the guard looks on when it finds nothing any more: a process that is about to become
// another program has no environment for a moment.
const quietFor = 5 * time.Second

// init is the guard, in the process that is one.
func init() {
	mark := os.Getenv(guardEnv)
	if mark == "" {
		return
	}
	signal.Ignore(os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	_, _ = io.Copy(io.Discard, os.Stdin) // until the other end has gone
	for quiet := time.Now(); time.Since(quiet) < quietFor; time.Sleep(100 * time.Millisecond) {
		for _, pid := range marked(mark) {
			quiet = time.Now()
			_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended
		}
	}
	os.Exit(0)
}

// marked returns the processes with a variable in the environment that they were started with.
func marked(mark string) (pids []int) {
	all, _ := os.ReadDir("/proc")
	for _, e := range all {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		env, err := os.ReadFile("/proc/" + e.Name() + "/environ") // empty: it has ended
		if err == nil && slices.ContainsFunc(bytes.Split(env, []byte{0}), func(v []byte) bool { return string(v) == mark }) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// processes names what has the mark.
func processes(mark string) string {
	var b strings.Builder
	for _, pid := range marked(mark) {
		line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		fmt.Fprintf(&b, "process %d: %s\n", pid, bytes.ReplaceAll(line, []byte{0}, []byte{' '}))
	}
	return b.String()
}
