package terminal

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"testing"

	"softiser/internal/leaktest"
	"softiser/internal/terminal/ptytest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// A view stays within the terminal.
func TestFrame(t *testing.T) {
	text := []byte(strings.Repeat("a line that is longer than twenty columns are\n", 9))
	for _, c := range []struct{ columns, rows, lines int }{{80, 8, 7}, {20, 3, 2}, {200, 50, 9}, {80, 0, 9}} {
		s := string(frame(text, c.columns, c.rows))
		lines := strings.Split(strings.TrimSuffix(strings.TrimPrefix(s, "\x1b[H"), "\x1b[J"), "\x1b[K\r\n")
		if len(lines) != c.lines+1 || lines[c.lines] != "" {
			t.Errorf("%v: %q", c, lines)
		}
		for _, l := range lines {
			if len([]rune(l)) >= c.columns || strings.ContainsRune(l, '\x1b') {
				t.Errorf("%v: %q", c, l)
			}
		}
	}
}

// A screen is drawn again when the terminal has another size, and is gone, with all that it has
// changed, when it is closed.
func TestScreen(t *testing.T) {
	tty, person, err := ptytest.Open(t)
	if err != nil {
		t.Skip("no pseudo-terminals here: ", err)
	}
	if OpenScreen(tty, tty) != nil {
		t.Error("a terminal that does not know its size has a screen")
	}
	if OpenScreen(tty, new(bytes.Buffer)) != nil {
		t.Error("a buffer has a screen")
	}
	ptytest.Resize(t, tty, 40, 10)
	t.Setenv("TERM", "dumb")
	if OpenScreen(tty, tty) != nil {
		t.Error("a terminal without escape sequences has a screen")
	}
	t.Setenv("TERM", "xterm")
	s := OpenScreen(tty, tty)
	if err := s.Show(func(columns int) []byte { return fmt.Appendf(nil, "%d columns", columns) }); err != nil {
		t.Fatal(err)
	}
	if got := ptytest.Expect(t, person, "40 columns\x1b[K\r\r\n\x1b[J"); !strings.HasPrefix(got, enterScreen+"\x1b[H") {
		t.Errorf("%q", got)
	}
	ptytest.Resize(t, tty, 60, 10)
	if err := syscall.Kill(syscall.Getpid(), syscall.SIGWINCH); err != nil {
		t.Fatal(err)
	}
	ptytest.Expect(t, person, "60 columns\x1b[K\r\r\n\x1b[J")
	s.Close()
	s.Close()
	if err := s.Show(func(int) []byte { return []byte("too late") }); err != nil {
		t.Error(err)
	}
	if _, err := tty.WriteString("the end"); err != nil {
		t.Fatal(err)
	}
	if got := ptytest.Expect(t, person, "the end"); got != leaveScreen+"the end" {
		t.Errorf("%q", got)
	}
}

const viewEnv = "TERMINAL_TEST_VIEW"

// viewer starts a process that has a screen on a new terminal; person is who looks at that.
func viewer(t *testing.T) (c *exec.Cmd, person *os.File) {
	t.Helper()
	tty, person, err := ptytest.Open(t)
	if err != nil {
		t.Skip("no pseudo-terminals here: ", err)
	}
	ptytest.Resize(t, tty, 40, 10)
	c = exec.Command(os.Args[0], "-test.run=^TestView$")
	c.Env = append(os.Environ(), viewEnv+"=1")
	c.Stdout = tty
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Process.Kill()
		c.Wait()
	})
	ptytest.Expect(t, person, view)
	return c, person
}

// view is how TestView draws.
const view = "a view\x1b[K\r\r\n\x1b[J"

// TestView is the process of a viewer.
func TestView(t *testing.T) {
	if os.Getenv(viewEnv) == "" {
		t.Skip("it is run by other tests")
	}
	s := OpenScreen(os.Stdout, os.Stdout)
	if s == nil {
		t.Fatal("no screen")
	}
	if err := s.Show(func(int) []byte { return []byte("a view") }); err != nil {
		t.Fatal(err)
	}
	select {} // until it is killed
}

// A signal that ends the process at once does so when the terminal is what it was before.
func TestHangup(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGHUP, syscall.SIGQUIT} {
		if signal.Ignored(sig) { // by nohup, and so by the process
			continue
		}
		c, person := viewer(t)
		if err := c.Process.Signal(sig); err != nil {
			t.Fatal(err)
		}
		if got := ptytest.Expect(t, person, leaveScreen); got != leaveScreen {
			t.Errorf("%v: %q", sig, got)
		}
		err := c.Wait()
		if st := c.ProcessState.Sys().(syscall.WaitStatus); sig == syscall.SIGHUP && (!st.Signaled() || st.Signal() != sig) || err == nil {
			t.Errorf("%v: %v", sig, err)
		}
	}
}

// A process that is stopped leaves the terminal as it was, and draws again when it goes on.
func TestStopped(t *testing.T) {
	c, person := viewer(t)
	if err := c.Process.Signal(syscall.SIGTSTP); err != nil {
		t.Fatal(err)
	}
	if got := ptytest.Expect(t, person, leaveScreen); got != leaveScreen {
		t.Errorf("stopped: %q", got)
	}
	var st syscall.WaitStatus
	if _, err := syscall.Wait4(c.Process.Pid, &st, syscall.WUNTRACED, nil); err != nil || !st.Stopped() {
		t.Fatalf("%v, %#x", err, st)
	}
	if err := c.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if got := ptytest.Expect(t, person, view); got != enterScreen+"\x1b[H"+view {
		t.Errorf("going on: %q", got)
	}
}

func TestSparkline(t *testing.T) {
	for _, c := range []struct {
		values  []float64
		columns int
		want    string
	}{
		{[]float64{0, 1, 4, 8}, 80, " ▂▅█"},
		{[]float64{0.1, 7.9, 9}, 80, "▁██"},
		{[]float64{8, 8, 4, 2}, 2, "▅▃"},
		{[]float64{1}, 0, ""},
		{nil, 10, ""},
	} {
		if got := Sparkline(c.values, 8, c.columns); got != c.want {
			t.Errorf("%v in %d columns: %q, want %q", c.values, c.columns, got, c.want)
		}
	}
	if got := Sparkline([]float64{0, 0}, 0, 9); got != "  " {
		t.Errorf("nothing at all: %q", got)
	}
}
