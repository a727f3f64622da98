package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"softiser/interop/internal/guest"
	"softiser/interop/internal/ports"
	"softiser/interop/internal/tap"
)

// Env is what a case works with: a guest, our programs on the host, a folder.
type Env struct {
	h     *harness
	w     *worker
	dir   string
	ctx   context.Context
	procs []*Process
	mu    sync.Mutex     // guards nodes
	nodes []*guest.Guest // beside the worker's guest
	netns string         // where programs are started from now on, "" for the host's own
	net   *tap.Network   // where the case's programs run; nil: where we do
	raw   bool           // frames of RoCE's link pass the harness
}

// MiB is how much a load moves: whole, or a part of it in the short form, where an emulated
// processor would take a minute.
func (e *Env) MiB(whole, short int) int {
	if e.h.short {
		return short
	}
	return whole
}

// Guest returns the worker's guest and boots it when there is none.
func (e *Env) Guest() (*guest.Guest, error) {
	if e.w.guest != nil {
		return e.w.guest, nil
	}
	return e.Boot(guest.Options{})
}

// Boot starts a guest with special options in place of the worker's guest.
func (e *Env) Boot(o guest.Options) (*guest.Guest, error) {
	e.w.drop()
	// The services a guest may offer to the host: LIO or tgt, rping, ucmatose, perftest.
	o.Forward = map[int]int{}
	e.w.ports = map[int]int{}
	for _, port := range []int{3260, 3261, 7174, 7471, 18515} {
		host := ports.Free()
		o.Forward[host], e.w.ports[port] = port, host
	}
	if n, err := e.w.net.get(); err == nil && len(o.Links) == 0 {
		o.Links = []guest.Link{e.link(n)}
	}
	g, err := e.boot(o)
	if err != nil {
		return nil, err
	}
	e.w.guest = g
	return g, nil
}

// Node starts a guest beside those that are there. It ends with the case.
func (e *Env) Node(o guest.Options) (*guest.Guest, error) {
	g, err := e.boot(o)
	if err == nil {
		e.mu.Lock()
		e.nodes = append(e.nodes, g)
		e.mu.Unlock()
	}
	return g, err
}

// boot starts a guest of the case's kind in a folder of its own.
func (e *Env) boot(o guest.Options) (*guest.Guest, error) {
	// An emulated machine now and then hangs before its kernel says a word; a
	// boot takes seconds, so that is soon clear.
	for range 3 {
		dir, err := os.MkdirTemp(e.h.out, "guest-")
		if err != nil {
			return nil, err
		}
		o.Name, o.Dir, o.Share = filepath.Base(dir), dir, e.h.bin
		ctx, cancel := context.WithTimeoutCause(e.ctx, bootLimit, fmt.Errorf("it took more than %v", bootLimit))
		g, err := e.bootOnce(ctx, o)
		cancel()
		if err == nil {
			return g, nil
		}
		fmt.Fprintf(os.Stderr, "boot %s: %v\n", o.Name, err)
		if e.ctx.Err() != nil {
			return nil, err
		}
	}
	return nil, fmt.Errorf("three times no guest has come up; the consoles are in %s", e.h.out)
}

// bootOnce boots a guest whose clock is right: on a busy machine a kernel now and then takes
// the frequency of its emulated counter for a fraction of what it is. Every time-out in it is
// over too soon then, twenty times and more.
func (e *Env) bootOnce(ctx context.Context, o guest.Options) (*guest.Guest, error) {
	began := time.Now()
	g, err := e.h.images[e.w.kind].Boot(ctx, o)
	if err != nil {
		return nil, err
	}
	out, err := g.Run(ctx, "cut -d. -f1 /proc/uptime")
	if err != nil {
		g.Kill()
		return nil, err
	}
	took := time.Since(began)
	if up, _ := strconv.Atoi(strings.TrimSpace(out)); time.Duration(up)*time.Second > 2*took+5*time.Second {
		g.Kill()
		return nil, fmt.Errorf("its clock says that it is up for %d s, after %.0f s", up, took.Seconds())
	}
	return g, nil
}

const bootLimit = 3 * time.Minute // a few seconds, on a machine that does nothing else

// Port is where on the host's 127.0.0.1 a port of the guest can be reached.
func (e *Env) Port(guest int) int { return e.w.ports[guest] }

// In runs a script in the worker's guest; each %-verb of args is formatted in.
func (e *Env) In(script string, args ...any) (string, error) {
	g, err := e.Guest()
	if err != nil {
		return "", err
	}
	return g.Run(e.ctx, fmt.Sprintf(script, args...))
}

// Target starts iser-target with a configuration (YAML without portals) on a
// free port of the loopback and waits until it listens.
func (e *Env) Target(config string) (*Process, error) { return e.TargetOn(ports.Free(), config) }

// TargetOn is Target on a port of the case's choice.
func (e *Env) TargetOn(port int, config string) (*Process, error) {
	file := filepath.Join(e.dir, "target.yaml")
	text := fmt.Sprintf("portals:\n  - listen: 127.0.0.1:%d\n    advertise: 10.0.2.2:%d\n%s", port, port, config)
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		return nil, err
	}
	p, err := e.Start("iser-target", "serve", "--config", file)
	if err != nil {
		return nil, err
	}
	p.Port = port
	return p, p.until(e.ctx, (*Process).accepts)
}

// Start runs one of our programs in the background.
func (e *Env) Start(name string, args ...string) (*Process, error) {
	p := &Process{done: make(chan struct{}), log: filepath.Join(e.dir, fmt.Sprintf("%s.%d.log", name, len(e.procs)))}
	f, err := os.Create(p.log)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	command := e.command(name, args)
	p.cmd = exec.Command(command[0], command[1:]...)
	p.cmd.Stdout, p.cmd.Stderr, p.cmd.Dir = f, f, e.dir
	p.cmd.Env = append(os.Environ(), "RUNTIME_DIRECTORY="+e.dir)
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := e.place(p.cmd.Start); err != nil {
		return nil, err
	}
	p.proc = p.cmd.Process
	go func() { p.err = p.cmd.Wait(); close(p.done) }()
	e.procs = append(e.procs, p)
	return p, nil
}

// command is that of one of our programs.
func (e *Env) command(name string, args []string) []string {
	command := append([]string{filepath.Join(e.h.bin, name)}, args...)
	if e.netns != "" {
		command = append([]string{"ip", "netns", "exec", e.netns}, command...)
	}
	return command
}

// StartServer is Start of a program that serves one visitor on a port of the loopback.
// It returns when the program listens, without a connection, which would be the visitor.
func (e *Env) StartServer(port int, name string, args ...string) (*Process, error) {
	p, err := e.Start(name, append(args, "-p", strconv.Itoa(port))...)
	if err != nil {
		return nil, err
	}
	p.Port = port
	return p, p.until(e.ctx, e.bound)
}

// Host runs one of our programs to its end and returns what it printed.
func (e *Env) Host(name string, args ...string) (string, error) {
	command := e.command(name, args)
	cmd := exec.CommandContext(e.ctx, command[0], command[1:]...)
	cmd.Dir = e.dir
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 5 * time.Second
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := e.place(cmd.Start)
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		return out.String(), fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, out.String())
	}
	return out.String(), nil
}

func (e *Env) close() {
	for _, g := range e.nodes {
		g.Kill()
	}
	for _, p := range e.procs {
		p.Kill()
	}
}

// evidence is the end of what our programs said, for a failure's message.
func (e *Env) evidence() string {
	var b strings.Builder
	for _, p := range e.procs {
		text, _ := os.ReadFile(p.log)
		lines := strings.Split(strings.TrimRight(string(text), "\n"), "\n")
		fmt.Fprintf(&b, "\n%s:\n%s", filepath.Base(p.log), strings.Join(lines[max(0, len(lines)-12):], "\n"))
	}
	return b.String()
}

// saveKernelLogs keeps what the guests' kernels have said, as far as they still
// answer.
func (e *Env) saveKernelLogs() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if g := e.w.guest; g != nil {
		e.saveKernelLog(ctx, g, "dmesg.log")
	}
	for i, g := range e.nodes {
		e.saveKernelLog(ctx, g, fmt.Sprintf("dmesg.%d.log", i))
	}
}

func (e *Env) saveKernelLog(ctx context.Context, g *guest.Guest, name string) {
	if log, err := g.Run(ctx, "dmesg"); err == nil {
		_ = os.WriteFile(filepath.Join(e.dir, name), []byte(log), 0o644)
	}
}
