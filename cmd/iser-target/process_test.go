package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"softiser/internal/await"
	"softiser/internal/loopback"
)

// asProgram, set, makes this test binary the program itself, with its arguments: for
// what only a process of its own has, signals and standard output above all.
const asProgram = "SOFTISER_TEST_TARGET"

func init() {
	// A process that gets little of the processor is not one that does not answer.
	for _, p := range []*time.Duration{&restPatience, &freezePatience, &changePatience, &startPatience, &readyPatience, &answerPatience} {
		*p = await.Deadline
	}
	if os.Getenv(asProgram) != "" {
		main()
	}
}

// program is a command of the program as a process of its own, which ends with the test.
func program(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := exec.Command(exe, args...)
	c.Env = append(os.Environ(), asProgram+"=1", "GORACE=atexit_sleep_ms=0")
	t.Cleanup(func() {
		if c.Process != nil && c.ProcessState == nil {
			c.Process.Kill() //nolint:errcheck // it may have ended
			c.Wait()         //nolint:errcheck // it has been killed
		}
	})
	return c
}

// exitOf waits for a process and returns its exit code, -1 for a signal.
func exitOf(t *testing.T, c *exec.Cmd) int {
	t.Helper()
	err := c.Wait()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return c.ProcessState.ExitCode()
}

// A target outlives whoever reads its log.
func TestLogReaderGoes(t *testing.T) {
	addr, socket := loopback.FreeAddr(t), filepath.Join(t.TempDir(), "s")
	c := program(t, "serve", "--listen", addr, "--socket", socket, "--log-level", "debug", "--export", "d=memory,size=1MiB")
	stdout, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	stderr, err := c.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := bufio.NewReader(stdout).ReadString('\n'); err != nil {
		t.Fatal("no banner:", err)
	}
	stdout.Close()
	stderr.Close()
	for range 3 { // each of them is a line in the log
		nc, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		io.WriteString(nc, "GET / HTTP/1.0\r\n\r\n"+strings.Repeat("x", 64))
		io.Copy(io.Discard, nc) // until it is closed
		nc.Close()
	}
	await.True(t, "the garbage is counted", func() bool { return statusOf(t, socket).Portals[0].Garbage == 3 })
	if err := c.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code := exitOf(t, c); code != 0 {
		t.Errorf("serve ended with %d", code)
	}
}

// Two signals at once are one: the drain goes on.
func TestTwoQuickSignals(t *testing.T) {
	addr := loopback.FreeAddr(t)
	c := program(t, "serve", "--listen", addr, "--drain", "500ms", "--export", "d=memory,size=1MiB")
	stdout, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var log output
	c.Stderr = &log
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := bufio.NewReader(stdout).ReadString('\n'); err != nil {
		t.Fatalf("no banner: %v\n%s", err, &log)
	}
	deaf := deafInitiator(t, addr, "iqn.2026-11.softiser:d")
	defer deaf.Close()
	for _, s := range []os.Signal{syscall.SIGINT, syscall.SIGTERM} { // two of a kind could become one in the kernel
		if err := c.Process.Signal(s); err != nil {
			t.Fatal(err)
		}
	}
	io.Copy(io.Discard, stdout) //nolint:errcheck // until it ends
	if code := exitOf(t, c); code != 0 || strings.Contains(log.String(), "another signal") || !strings.Contains(log.String(), "stopped") {
		t.Errorf("exit %d; the drain was skipped:\n%s", code, &log)
	}
}

// deafInitiator logs in and neither reads nor sends anything afterwards, so that a drain
// waits for it.
func deafInitiator(t *testing.T, addr, target string) net.Conn {
	t.Helper()
	nc, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	text := strings.Join([]string{"InitiatorName=iqn.2026-11.test:deaf", "SessionType=Normal", "AuthMethod=None", "TargetName=" + target, ""}, "\x00")
	for _, flags := range []byte{0x81, 0x87} { // security to operational, operational to full feature phase
		h := make([]byte, 48)
		h[0], h[1] = 0x43, flags
		if flags == 0x87 {
			text = "MaxConnections=1\x00"
		}
		binary.BigEndian.PutUint32(h[4:], uint32(len(text))) // the top byte is TotalAHSLength
		h[8], h[13] = 0x40, 1                                // ISID: EN format
		binary.BigEndian.PutUint32(h[24:], 1)                // CmdSN
		pdu := append(h, text...)
		pdu = append(pdu, make([]byte, -len(text)&3)...)
		if _, err := nc.Write(pdu); err != nil {
			t.Fatal(err)
		}
		answer := make([]byte, 48)
		if _, err := io.ReadFull(nc, answer); err != nil {
			t.Fatal(err)
		}
		n := int(binary.BigEndian.Uint32(answer[4:]) & 0xffffff)
		if _, err := io.CopyN(io.Discard, nc, int64((n+3)&^3)); err != nil || answer[36] != 0 {
			t.Fatalf("login status %02x%02x, %v", answer[36], answer[37], err)
		}
	}
	return nc
}

// A signal a second after the first one is meant.
func TestInsistingSignal(t *testing.T) {
	for _, c := range []struct {
		name string
		at   []time.Duration // of signals, after the one that began the drain
		want bool
	}{
		{"none", nil, false},
		{"twins", []time.Duration{0, 0, time.Millisecond, 900 * time.Millisecond}, false},
		{"insisting", []time.Duration{0, 1100 * time.Millisecond}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				first, begin := context.WithCancel(t.Context())
				ended, end := context.WithTimeout(t.Context(), 10*time.Second)
				defer end()
				signals := make(chan os.Signal, 8)
				got := make(chan bool, 1)
				go func() { got <- insisted(first, ended, signals) }()
				signals <- os.Interrupt
				begin()
				var passed time.Duration
				for _, at := range c.at {
					time.Sleep(at - passed)
					passed = at
					signals <- os.Interrupt
				}
				if r := <-got; r != c.want {
					t.Errorf("%v, want %v", r, c.want)
				}
			})
		})
	}
}

// A report that could not be written has not been made.
func TestOutputCannotBeWritten(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip("no /dev/full: ", err)
	}
	defer full.Close()
	b := newReloadBed(t)
	for _, args := range [][]string{
		{"status"}, {"status", "--json"}, {"session", "list", "--json"}, {"reload", "--dry-run"},
		{"check", "--config", b.f}, {"check", "--no-open", "--json", "--config", b.f},
		{"lvm", "--help"}, {"--help"}, {"--version"}, {"completion", "bash"},
	} {
		if args[0] != "completion" && args[0][0] != '-' {
			args = append(args, "--socket", b.sock)
		}
		var errs bytes.Buffer
		if code := run(t.Context(), args, full, &errs); code == 0 || !strings.Contains(errs.String(), "no space left on device") {
			t.Errorf("%v > /dev/full: exit %d, %s", args, code, &errs)
		}
	}
	c := program(t, "check", "--config", b.f, "--no-open")
	c.Stdout = full
	var errs bytes.Buffer
	c.Stderr = &errs
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	if code := exitOf(t, c); code != exitFailure || !strings.Contains(errs.String(), "standard output") {
		t.Errorf("as a process: exit %d, %s", code, &errs)
	}
}
