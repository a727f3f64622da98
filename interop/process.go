package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Process is one of our programs, running on the host.
type Process struct {
	Port int
	cmd  *exec.Cmd
	proc *os.Process // that of cmd, or the last one that has taken its place
	log  string
	done chan struct{}
	err  error
}

// until waits for a program that was just started to be ready.
func (p *Process) until(ctx context.Context, ready func(*Process) (bool, error)) error {
	for {
		if ok, err := ready(p); ok || err != nil {
			return err
		}
		select {
		case <-p.done:
			b, _ := os.ReadFile(p.log)
			return fmt.Errorf("it ended: %v\n%s", p.err, b)
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// accepts reports whether the program's port takes connections.
func (p *Process) accepts() (bool, error) {
	c, err := net.Dial("tcp", "127.0.0.1:"+strconv.Itoa(p.Port))
	if err != nil {
		return false, nil
	}
	c.Close()
	select {
	case <-p.done: // somebody else's listener
		return false, nil
	default:
		return true, nil
	}
}

// listens reports whether somebody listens on a port, in the network that a folder of
// /proc shows.
func listens(proc string, port int) (bool, error) {
	for _, table := range []string{"/net/tcp", "/net/tcp6"} {
		b, err := os.ReadFile(proc + table)
		if errors.Is(err, os.ErrNotExist) {
			continue // no IPv6 here
		}
		if err != nil {
			return false, err
		}
		for line := range strings.Lines(string(b)) {
			const listen = "0A"
			f := strings.Fields(line) // number, local address, remote address, state, …
			if len(f) > 3 && f[3] == listen && strings.HasSuffix(f[1], fmt.Sprintf(":%04X", port)) {
				return true, nil
			}
		}
	}
	return false, nil
}

// Kill ends the program as kill -9 does.
func (p *Process) Kill() {
	p.proc.Kill()
	<-p.done
}

// Stop ends the program with SIGTERM and reports how it ended.
func (p *Process) Stop() error {
	p.proc.Signal(syscall.SIGTERM)
	select {
	case <-p.done:
		return p.err
	case <-time.After(time.Minute):
		p.Kill()
		return errors.New("it did not end within a minute of SIGTERM")
	}
}

// adopts makes this program the parent of processes whose parents end, so that it learns of
// their end.
var adopts = sync.OnceValue(func() error { return unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) })

// succeeded makes p the process pid, which the one that it has been has started in its place.
func (p *Process) succeeded(ctx context.Context, pid int) error {
	next, err := os.FindProcess(pid)
	if err != nil {
		return err
	}
	select {
	case <-p.done:
	case <-ctx.Done():
		return errors.Join(context.Cause(ctx), next.Kill())
	}
	p.proc, p.done = next, make(chan struct{})
	go func() {
		defer close(p.done)
		st, err := next.Wait()
		if p.err = err; err == nil && !st.Success() {
			p.err = errors.New(st.String())
		}
	}()
	return nil
}
