package iscsi

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const descriptorsChild = "SOFTISER_TEST_DESCRIPTORS"

// A process of few descriptors serves logins while silent connections want them all, and
// even when none is left.
func TestNoDescriptorsLeft(t *testing.T) {
	if os.Getenv(descriptorsChild) != "" {
		serveWithFewDescriptors(t)
		return
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // should it hang
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^TestNoDescriptorsLeft$")
	cmd.Env = append(os.Environ(), descriptorsChild+"=1")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReader(out)
	line := func() string {
		t.Helper()
		l, err := lines.ReadString('\n')
		if err != nil {
			t.Fatalf("the server's process: %v", err)
		}
		return strings.TrimSpace(l)
	}
	tell := func(what string) {
		t.Helper()
		if _, err := io.WriteString(in, what+"\n"); err != nil {
			t.Fatal(err)
		}
		if got := line(); got != what {
			t.Fatalf("the server's process says %q after %q", got, what)
		}
	}
	defer func() {
		in.Close()
		rest, _ := io.ReadAll(lines)
		if err := cmd.Wait(); err != nil {
			t.Errorf("the server's process: %v\n%s", err, rest)
		}
	}()
	s := &server{t: t, addr: line()}
	login := func(i int) *rawInitiator {
		t.Helper()
		r := s.dial()
		r.isid[5] = byte(i)
		r.mustLogin(testIQN)
		return r
	}
	// Three times as many as there are descriptors, each from an address of its own.
	var silent []net.Conn
	for i := range 3 * fewDescriptors {
		silent = append(silent, s.dialFrom(netip.AddrFrom4([4]byte{127, 3, byte(i >> 8), byte(i)})))
	}
	for i := range 5 {
		login(i).ready()
	}
	tell("exhaust")
	last := login(9) // a silent one gives way
	for _, nc := range silent {
		nc.Close()
	}
	tell("no more pending")
	// Nobody can give way: who comes is turned away at once.
	nc, err := net.Dial("tcp", s.addr)
	if err == nil {
		nc.SetReadDeadline(time.Now().Add(ioTime))
		_, err = nc.Read(make([]byte, 1))
		nc.Close()
	}
	if !errors.Is(err, syscall.ECONNRESET) { // before or after connect has returned
		t.Errorf("with no descriptor left, a connection ends with %v", err)
	}
	last.nop(nil) // who is there is served
	tell("give back")
	login(10).ready()
}

const fewDescriptors = 200

// serveWithFewDescriptors is the other process: it does what it is told on its standard
// input.
func serveWithFewDescriptors(t *testing.T) {
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: fewDescriptors, Max: fewDescriptors}); err != nil {
		t.Fatal(err)
	}
	nulls := opened(isNull)
	s := serve(t, func(c *serverConfig, _ *Target) { c.Timeouts.FirstBytes, c.Timeouts.Login = time.Hour, time.Hour })
	os.Stdout.WriteString(s.addr + "\n")
	var taken []int
	take := func() {
		for {
			fd, err := syscall.Open(os.DevNull, syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
			if err != nil {
				return
			}
			taken = append(taken, fd)
		}
	}
	defer func() {
		for _, fd := range taken {
			syscall.Close(fd)
		}
	}()
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		switch in.Text() {
		case "exhaust":
			take()
		case "no more pending":
			eventually(t, "those that have gone have given their descriptors back, the last one to the portal", func() bool {
				return opened(isSocket) == 1+6 && opened(isNull) == nulls+len(taken)+1
			})
			take()
		case "give back":
			for _, fd := range taken {
				syscall.Close(fd)
			}
			taken = nil
		}
		os.Stdout.WriteString(in.Text() + "\n")
	}
}

// opened counts the descriptors of the process that are of some kind, without one of its own.
func opened(is func(*syscall.Stat_t) bool) (n int) {
	for fd := range fewDescriptors {
		var st syscall.Stat_t
		if syscall.Fstat(fd, &st) == nil && is(&st) {
			n++
		}
	}
	return n
}

func isSocket(st *syscall.Stat_t) bool { return st.Mode&syscall.S_IFMT == syscall.S_IFSOCK }

// isNull is true of /dev/null (null(4)), which the portal's spare descriptor is of.
func isNull(st *syscall.Stat_t) bool {
	return st.Mode&syscall.S_IFMT == syscall.S_IFCHR && st.Rdev == unix.Mkdev(1, 3)
}
