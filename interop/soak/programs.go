package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"softiser/interop/internal/poll"
)

// patience is how long something may take that does happen, on the slowest machine. It
// ends a run that has failed; it never decides whether one passes.
const patience = 2 * time.Minute

// What the target exports its volume as: LUN 0 of iqn, namespace 1 of nqn.
const (
	iqn = "iqn.2026-11.softiser:disk"
	nqn = "nqn.2026-11.softiser:disk"
)

// wires are the schemes of all that the target speaks over TCP, allWires those over RoCE too.
var (
	wires    = []string{"iser", "iscsi", "nvme+tcp", "nvme+rdma"}
	allWires = append(wires[:len(wires):len(wires)], "iser+roce", "nvme+roce")
)

// urlOf is the volume of a target over a wire.
func urlOf(scheme, addr string) string {
	if strings.HasPrefix(scheme, "nvme") {
		return scheme + "://" + addr + "/" + nqn + "/1"
	}
	return scheme + "://" + addr + "/" + iqn + "/0"
}

// process is one of our programs.
type process struct {
	cmd  *exec.Cmd
	log  string
	done chan struct{}
	err  error // valid when done is closed
}

// start runs a program with its output in a file of the turn's folder.
func (r *run) start(name string, args ...string) (*process, error) {
	f, err := os.CreateTemp(r.dir, name+".*.log")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	p := &process{log: f.Name(), done: make(chan struct{}), cmd: exec.Command(filepath.Join(r.bin, name), args...)}
	p.cmd.Stdout, p.cmd.Stderr, p.cmd.Dir = f, f, r.dir
	// Nothing outlives the soak, however that ends.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() { p.err = p.cmd.Wait(); close(p.done) }()
	return p, nil
}

// kill ends the program as kill -9 does.
func (p *process) kill() {
	p.cmd.Process.Kill()
	<-p.done
}

// freeze stops the program for a while, as a machine that hangs does.
func (p *process) freeze(ctx context.Context, d time.Duration) error {
	if err := p.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
	return p.cmd.Process.Signal(syscall.SIGCONT)
}

// wait waits for the program's own end.
func (p *process) wait(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	select {
	case <-p.done:
		if p.err != nil {
			return fmt.Errorf("%s: %w\n%s", filepath.Base(p.cmd.Path), p.err, p.tail())
		}
		return nil
	case <-ctx.Done():
		p.kill()
		return fmt.Errorf("%s did not end in %v\n%s", filepath.Base(p.cmd.Path), patience, p.tail())
	}
}

func (p *process) tail() string {
	b, _ := os.ReadFile(p.log)
	lines := strings.Split(strings.TrimRight(string(b), "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-12):], "\n")
}

// targetProcess is an iser-target with one volume.
type targetProcess struct {
	*process
	addr, metrics string
	roce          string // the address of its portal for RoCE
}

// at is where it speaks a wire.
func (t *targetProcess) at(scheme string) string {
	if overRoCE(scheme) {
		return t.roce
	}
	return t.addr
}

func overRoCE(scheme string) bool { return strings.HasSuffix(scheme, "+roce") }

// roceAddr is an address of loopback whose port of RoCE nobody else has.
func roceAddr() netip.Addr {
	n := rand.Uint32N(1<<24 - 1<<16)
	return netip.AddrFrom4([4]byte{127, byte(n>>16) + 1, byte(n >> 8), byte(n) | 1})
}

var (
	servesOn  = regexp.MustCompile(`serves on \[([^ \]]+) ([^ \]]+)\]`)
	metricsOn = regexp.MustCompile(`"url": "([^"]+)"`)
)

// target starts one on ports of the system's choice and waits until it serves.
func (r *run) target(ctx context.Context, volume string) (*targetProcess, error) {
	return r.targetAt(ctx, roceAddr().String()+":0", volume)
}

// targetAt is target with the address of its portal for RoCE.
func (r *run) targetAt(ctx context.Context, roce, volume string) (*targetProcess, error) {
	p, err := r.start("iser-target", "serve", "--listen", "127.0.0.1:0", "--listen", "roce://"+roce, "--metrics", "127.0.0.1:0", "--export", "disk="+volume)
	if err != nil {
		return nil, err
	}
	t := &targetProcess{process: p}
	err = poll.Until(ctx, patience, "the target serves", func() (bool, error) {
		select {
		case <-p.done:
			return false, fmt.Errorf("it has ended: %v\n%s", p.err, p.tail())
		default:
		}
		b, err := os.ReadFile(p.log)
		if err != nil {
			return false, err
		}
		a, m := servesOn.FindSubmatch(b), metricsOn.FindSubmatch(b)
		if a == nil || m == nil {
			return false, nil
		}
		t.addr, t.roce, t.metrics = string(a[1]), string(a[2]), string(m[1])
		return true, nil
	})
	if err != nil {
		p.kill()
		return nil, err
	}
	return t, nil
}

// load is a run of iser-initiator bench with a ledger of what it has written, which is
// mapped and outlives the process.
type load struct {
	scheme, addr string
	ledger       string
	at           int // where its range begins
	size, block  int
	depth        int
	seed         uint64
}

func (l load) args(more ...string) []string {
	if overRoCE(l.scheme) {
		more = append(more, "--local-address="+roceAddr().String())
	}
	return append([]string{"bench", urlOf(l.scheme, l.addr), "--rw=randwrite", "--bs=" + strconv.Itoa(l.block), "--offset=" + strconv.Itoa(l.at), "--size=" + strconv.Itoa(l.size),
		"--iodepth=" + strconv.Itoa(l.depth), "--seed=" + strconv.FormatUint(l.seed, 10), "--verify=crc32c", "--verify-state=" + l.ledger}, more...)
}

// verify reads everything that the ledger knows of; more says what it is held to.
func (r *run) verify(ctx context.Context, l load, more ...string) error {
	p, err := r.start("iser-initiator", l.args(append(more, "--verify-only")...)...)
	if err != nil {
		return err
	}
	return p.wait(ctx)
}

// wrote waits until a load has written for a moment: its ledger has changed several times.
func (l load) wrote(ctx context.Context, p *process, times int) error {
	var last []byte
	changes := 0
	return poll.Until(ctx, patience, "the load writes\n"+p.log, func() (bool, error) {
		select {
		case <-p.done:
			return false, fmt.Errorf("the load has ended: %v\n%s", p.err, p.tail())
		default:
		}
		b, err := os.ReadFile(l.ledger)
		if err == nil && !bytes.Equal(b, last) {
			last = b
			changes++
		}
		return changes > times, nil
	})
}

// durable returns how many blocks hold something that has to outlive a power cut. The
// form of a ledger is initiator/bench's.
func (l load) durable() (n int, err error) {
	b, err := os.ReadFile(l.ledger)
	if err != nil {
		return 0, err
	}
	const header, entry = 64, 12
	for at := header; at+entry <= len(b); at += entry {
		if binary.LittleEndian.Uint32(b[at+8:]) != 0 {
			n++
		}
	}
	return n, nil
}
