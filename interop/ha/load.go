package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"softiser/interop/internal/poll"
)

// wires are the schemes of all that the target speaks; each has a range of the volume.
var wires = []string{"iser", "iscsi", "nvme+tcp", "nvme+rdma"}

const (
	loadSize  = 2 << 20 // written over in four seconds: what comes late is old
	journalAt = 64 << 20
	blockSize = 4096
	// interrupted is what bench ends with after a signal when nothing has failed.
	interrupted = 128
)

// patient are the options of an initiator that holds I/O for as long as it takes.
var patient = []string{"--replacement-timeout=-1s", "--ctrl-loss-tmo=-1", "--command-timeout=-1s", "--reconnect-delay=1", "--login-timeout=5s"}

// urlOf is the volume over a wire.
func urlOf(scheme string) string {
	if strings.HasPrefix(scheme, "nvme") {
		return scheme + "://" + portal + "/" + nqn + "/1"
	}
	return scheme + "://" + portal + "/" + iqn + "/0"
}

// load is a run of iser-initiator bench over one wire. Its ledger of what was acknowledged
// is mapped, and so outlives the process.
type load struct {
	wire, ledger, report, log string
	bin                       string
	at                        int
	cmd                       *exec.Cmd
	done                      chan struct{}
	err                       error // valid when done is closed
}

func newLoad(c *cluster, i int) *load {
	base := filepath.Join(c.dir, strings.ReplaceAll(wires[i], "+", "-"))
	return &load{wire: wires[i], ledger: base + ".ledger", report: base + ".json", log: base + ".log", bin: c.bin, at: i * loadSize}
}

func (l *load) args(more ...string) []string {
	args := append([]string{"bench", urlOf(l.wire), "--rw=randwrite", "--bs=4k", "--offset=" + strconv.Itoa(l.at), "--size=" + strconv.Itoa(loadSize),
		"--seed=" + strconv.Itoa(l.at+1), "--verify=crc32c", "--verify-state=" + l.ledger, "--initiator-name=iqn.2026-11.softiser:load" + strconv.Itoa(l.at)}, patient...)
	return append(args, more...)
}

// start begins to write, at a rate that leaves the processor to the cluster.
func (l *load) start() error {
	f, err := os.Create(l.log)
	if err != nil {
		return err
	}
	defer f.Close()
	l.cmd = exec.Command(filepath.Join(l.bin, "iser-initiator"), l.args("--iodepth=4", "--rate-iops=150", "--fsync=16", "--do-verify=0", "--time-based", "--runtime=24h", "--output-format=json", "--output="+l.report, "--verbose")...)
	l.cmd.Stdout, l.cmd.Stderr, l.cmd.SysProcAttr = f, f, &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := l.cmd.Start(); err != nil {
		return err
	}
	done := make(chan struct{})
	l.done = done
	go func() { l.err = l.cmd.Wait(); close(done) }()
	return nil
}

func (l *load) kill() {
	if l.cmd != nil {
		l.cmd.Process.Kill()
		<-l.done
	}
}

// writes waits until the load has written for a moment: its ledger has changed a few times.
func (l *load) writes(ctx context.Context) error {
	var last []byte
	changes := 0
	err := poll.Until(ctx, patience, l.wire+" writes", func() (bool, error) {
		select {
		case <-l.done:
			return false, fmt.Errorf("the load over %s has ended: %w\n%s", l.wire, l.err, tail(l.log))
		default:
		}
		b, err := os.ReadFile(l.ledger)
		if err == nil && !bytes.Equal(b, last) {
			last = b
			changes++
		}
		return changes > 5, nil
	})
	if err != nil {
		err = fmt.Errorf("%w\n%s", err, tail(l.log))
	}
	return err
}

// stop ends the load, which must not have failed, and returns how long its longest write
// took.
func (l *load) stop(ctx context.Context) (longest time.Duration, err error) {
	l.cmd.Process.Signal(os.Interrupt)
	select {
	case <-l.done:
	case <-ctx.Done():
		l.kill()
		return 0, ctx.Err()
	case <-time.After(patience):
		l.kill()
		return 0, fmt.Errorf("the load over %s does not end\n%s", l.wire, tail(l.log))
	}
	if l.cmd.ProcessState.ExitCode() != interrupted {
		return 0, fmt.Errorf("the load over %s has failed: %w\n%s", l.wire, l.err, tail(l.log))
	}
	b, err := os.ReadFile(l.report)
	if err != nil {
		return 0, err
	}
	var report struct {
		Jobs []struct {
			Write struct {
				Clat struct {
					Max int64 `json:"max"`
				} `json:"clat_ns"`
			} `json:"write"`
		} `json:"jobs"`
	}
	if err := json.Unmarshal(b, &report); err != nil || len(report.Jobs) != 1 {
		return 0, fmt.Errorf("%s: %w", l.report, errors.Join(err, fmt.Errorf("%d jobs", len(report.Jobs))))
	}
	return time.Duration(report.Jobs[0].Write.Clat.Max), nil
}

// verify reads back everything that the ledger knows of.
func (l *load) verify(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(l.bin, "iser-initiator"), l.args("--iodepth=16", "--verify-only")...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("acknowledged writes over %s: %w\n%s", l.wire, err, lastLines(string(out)))
	}
	return nil
}

func tail(path string) string {
	b, _ := os.ReadFile(path)
	return lastLines(string(b))
}

func lastLines(s string) string {
	lines := strings.Split(strings.TrimRight(s, "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-12):], "\n")
}
