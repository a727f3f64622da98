// Package proc starts the programs that are measured, pins them, and reads what
// they have consumed from /proc.
package proc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Placement says where the two sides run.
type Placement uint8

// Placements.
const (
	Pinned Placement = iota // server on core 0, client on core 1
	Free                    // the scheduler decides
)

func (p Placement) String() string { return [...]string{"pinned", "free"}[p] }

// Side is one end of a measurement.
type Side uint8

// Sides.
const (
	Server Side = iota
	Client
)

// wrap prefixes argv with what pins it.
func (p Placement) wrap(s Side, argv []string) []string {
	if p == Free {
		return argv
	}
	return append([]string{"taskset", "-c", strconv.Itoa(int(s))}, argv...)
}

// Command is the program's command line as a shell takes it.
func (s Spec) Command() string {
	words := slices.Concat(s.Env, s.Place.wrap(s.Side, s.Argv))
	for i, w := range words {
		if strings.ContainsAny(w, " ,'\"?*;&|<>$") && !strings.ContainsRune(w, '\'') {
			words[i] = "'" + w + "'"
		}
	}
	return strings.Join(words, " ")
}

// Spec is a program to run.
type Spec struct {
	Argv  []string
	Env   []string // added to the environment
	Place Placement
	Side  Side
	Log   string // file for its output; empty: discarded
}

// Process is a running server.
type Process struct {
	Spec Spec
	cmd  *exec.Cmd
	log  *os.File
	done chan struct{}
	err  error
}

// Start runs s in the background, in a process group of its own.
func Start(s Spec) (*Process, error) {
	argv := s.Place.wrap(s.Side, s.Argv)
	p := &Process{Spec: s, cmd: exec.Command(argv[0], argv[1:]...), done: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), s.Env...)
	// Should the harness be killed, its servers die with it, also those that
	// ignore SIGTERM (tgtd).
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if s.Log != "" {
		f, err := os.Create(s.Log)
		if err != nil {
			return nil, err
		}
		p.log, p.cmd.Stdout, p.cmd.Stderr = f, f, f
	}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", s.Argv[0], err)
	}
	go func() { p.err = p.cmd.Wait(); close(p.done) }()
	return p, nil
}

// PID is the server's process id (taskset replaces itself by the program).
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Stop ends the server: SIGTERM, and SIGKILL after killAfter.
func (p *Process) Stop() {
	if gone, _ := p.Exited(); !gone {
		syscall.Kill(-p.PID(), syscall.SIGTERM)
	}
	select {
	case <-p.done:
	case <-time.After(killAfter):
		syscall.Kill(-p.PID(), syscall.SIGKILL)
		<-p.done
	}
	if p.log != nil {
		p.log.Close()
	}
}

// Interrupt asks a program that counts to print and end, and waits for it.
func (p *Process) Interrupt() {
	p.cmd.Process.Signal(os.Interrupt)
	select {
	case <-p.done:
	case <-time.After(killAfter):
	}
}

// CPU returns the user and system time that the process has used, also after
// it has ended.
func (p *Process) CPU() (time.Duration, error) {
	if gone, _ := p.Exited(); gone {
		return p.cmd.ProcessState.UserTime() + p.cmd.ProcessState.SystemTime(), nil
	}
	t, err := CPU(p.PID())
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ESRCH) { // it has just ended
		<-p.done
		return p.CPU()
	}
	return t, err
}

// Exited reports whether the server has ended, and how.
func (p *Process) Exited() (bool, error) {
	select {
	case <-p.done:
		return true, p.err
	default:
		return false, nil
	}
}

// WaitListen waits until addr ("127.0.0.1:port" or a socket's path) accepts.
func (p *Process) WaitListen(addr string) error {
	network := "tcp"
	if strings.HasPrefix(addr, "/") {
		network = "unix"
	}
	return p.Wait("listen on "+addr, func() error {
		c, err := net.Dial(network, addr)
		if err == nil {
			c.Close()
		}
		return err
	})
}

// patience is how long a program may take until it is there. Some touch a gigabyte first, and memory
// that a hypervisor has taken back while it was free comes page by page: 15 s were too short for it.
const patience = time.Minute

// Wait tries until there is no error. what is what the program is to do, for
// the message when it does not.
func (p *Process) Wait(what string, try func() error) error {
	for end := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		if try() == nil {
			return nil
		}
		if gone, err := p.Exited(); gone {
			return fmt.Errorf("%s ended: %v%s", filepath.Base(p.Spec.Argv[0]), err, p.tail())
		}
		if time.Now().After(end) {
			return fmt.Errorf("%s does not %s%s", filepath.Base(p.Spec.Argv[0]), what, p.tail())
		}
	}
}

// tail is the end of the log, for messages.
func (p *Process) tail() string {
	b, _ := os.ReadFile(p.Spec.Log)
	if len(b) > 400 {
		b = b[len(b)-400:]
	}
	if len(b) == 0 {
		return ""
	}
	return ": " + strings.TrimSpace(string(b))
}

// Output is what a client left.
type Output struct {
	Stdout []byte
	CPU    time.Duration // user and system time of the client
	Wall   time.Duration
}

// killAfter is what a program has to end by itself after SIGTERM.
const killAfter = 5 * time.Second

// Run runs a client to its end.
func Run(ctx context.Context, s Spec) (*Output, error) {
	argv := s.Place.wrap(s.Side, s.Argv)
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), s.Env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { // what it has started as well
		time.AfterFunc(killAfter, func() { syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) })
		return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM)
	}
	cmd.WaitDelay = killAfter + time.Second
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	began := time.Now()
	err := cmd.Run()
	o := &Output{Stdout: out.Bytes(), Wall: time.Since(began)}
	if st := cmd.ProcessState; st != nil {
		o.CPU = st.UserTime() + st.SystemTime()
	}
	if err != nil {
		msg := strings.TrimSpace(errOut.String())
		if msg == "" {
			msg = strings.TrimSpace(out.String())
		}
		if len(msg) > 400 {
			msg = msg[len(msg)-400:]
		}
		return o, fmt.Errorf("%s: %w: %s", strings.Join(s.Argv, " "), err, msg)
	}
	return o, nil
}

// Quick runs a program that sets something up; it has killAfter.
func Quick(argv ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), killAfter)
	defer cancel()
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd.CombinedOutput()
}

// CPU returns the user and system time that a process and its threads have
// used.
func CPU(pid int) (time.Duration, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	// The name may contain anything; the fields begin behind its bracket.
	i := bytes.LastIndexByte(b, ')')
	f := strings.Fields(string(b[i+1:]))
	if i < 0 || len(f) < 13 {
		return 0, errors.New("malformed /proc/PID/stat")
	}
	user, err1 := strconv.ParseInt(f[11], 10, 64)
	sys, err2 := strconv.ParseInt(f[12], 10, 64)
	const tick = time.Second / 100 // USER_HZ
	return time.Duration(user+sys) * tick, errors.Join(err1, err2)
}

// Status reads a field of /proc/PID/status in bytes, for example "VmRSS".
func Status(pid int, field string) (int64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(line, field+":"); ok {
			n, err := strconv.ParseInt(strings.Fields(v)[0], 10, 64)
			return n << 10, err
		}
	}
	return 0, fmt.Errorf("/proc/%d/status has no %s", pid, field)
}

// Have returns the program's path, looking into sbin as well.
func Have(name string) (string, bool) {
	if strings.Contains(name, "/") {
		_, err := os.Stat(name)
		return name, err == nil
	}
	if p, err := exec.LookPath(name); err == nil {
		return p, true
	}
	for _, dir := range []string{"/usr/sbin", "/sbin"} {
		if p := filepath.Join(dir, name); fileExists(p) {
			return p, true
		}
	}
	return "", false
}

func fileExists(p string) bool { _, err := os.Stat(p); return err == nil }

var ports sync.Mutex

// FreePort returns a TCP port on loopback that nobody uses now.
func FreePort() int {
	ports.Lock()
	defer ports.Unlock()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}
