package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"softiser/interop/internal/frames"
	"softiser/interop/internal/guest"
	"softiser/interop/internal/tap"
)

// private is a worker's network of RoCE: its guests have an interface of it, beside the
// one of QEMU's user-mode network.
type private struct {
	net *tap.Network
	err error // why there is none
}

// get makes the network when it is asked for first.
func (p *private) get() (*tap.Network, error) {
	if p.net == nil && p.err == nil {
		p.net, p.err = tap.New()
	}
	return p.net, p.err
}

func (p *private) close() {
	if p.net != nil {
		p.net.Close()
	}
}

// RoCE moves a case into the worker's network: the programs that it starts from now on
// run there. mtu is for both ends of the link. The case is skipped where no such network
// can be made.
func (e *Env) RoCE(mtu int) error {
	n, err := e.w.net.get()
	if err != nil {
		return skipped{fmt.Errorf("no tap in a network namespace here: %w", err)}
	}
	if err := n.SetMTU(mtu); err != nil {
		return err
	}
	if e.w.guest != nil && e.raw != (e.w.wire != nil) {
		e.w.drop() // the guest was booted with the other kind of link
	}
	e.net = n
	// siw before it, as in a guest that cases of siw had before: programs that take the first
	// device there is do not get on with ours then.
	_, err = e.In("siw_up && rxe_up %d || die rxe", mtu)
	return err
}

// link is the guest's interface of RoCE: the tap's other end, or, over raw frames, the end of a
// wire between the two.
func (e *Env) link(n *tap.Network) guest.Link {
	if !e.raw {
		return guest.Link{Open: n.File}
	}
	return guest.Link{Frames: true, Open: func() (*os.File, error) {
		e.w.cut()
		f, err := n.File()
		if err != nil {
			return nil, err
		}
		w, end, err := frames.New(f)
		if err == nil {
			e.w.wire = w
		}
		return end, err
	}}
}

// cut ends the wire to the guest, if there is one.
func (w *worker) cut() {
	if w.wire != nil {
		w.wire.Close()
		w.wire = nil
	}
}

// place starts a program where the case's programs run.
func (e *Env) place(start func() error) error {
	if e.net == nil {
		return start()
	}
	return e.net.Do(start)
}

// bound reports whether a server that was just started can be visited: it listens on its
// port of TCP, or has the one that all of RoCE is on. It has a service of that a moment
// later, which is long before a guest has begun a program.
func (e *Env) bound(p *Process) (bool, error) {
	if e.net == nil {
		return listens("/proc", p.Port)
	}
	proc := fmt.Sprintf("/proc/%d", p.proc.Pid)
	if tcp, err := listens(proc, p.Port); tcp || err != nil {
		return tcp, err
	}
	const port = ":12B7" // 4791
	for _, table := range []string{"/net/udp", "/net/udp6"} {
		b, err := os.ReadFile(proc + table)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return false, err
		}
		for line := range strings.Lines(string(b)) {
			if f := strings.Fields(line); len(f) > 1 && strings.HasSuffix(f[1], port) {
				return true, nil
			}
		}
	}
	return false, nil
}

// TargetRoCE starts iser-target with a configuration (YAML without portals) on a service
// of RoCE.
func (e *Env) TargetRoCE(port int, config string) (*Process, error) {
	file := filepath.Join(e.dir, "target.yaml")
	text := fmt.Sprintf("portals:\n  - listen: roce://%s:%d\n%s", tap.Host4, port, config)
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		return nil, err
	}
	p, err := e.Start("iser-target", "serve", "--config", file)
	if err != nil {
		return nil, err
	}
	p.Port = port
	return p, p.until(e.ctx, e.bound)
}
