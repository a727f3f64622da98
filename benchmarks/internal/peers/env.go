// Package peers knows how to start each program that takes part, ours and
// theirs, each tuned as well as its documentation allows, and how to load it
// with the client that does it most justice.
package peers

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"softiser/benchmarks/internal/proc"
	"softiser/benchmarks/internal/result"
)

// VolumeSize is the size of the volume under test.
const VolumeSize = 1 << 30

// Env is the surroundings of one row.
type Env struct {
	Bin     string // directory of our binaries
	Scratch string // directory for sockets, logs and images
	Self    string // this program, for the helpers that it contains
	Dur     time.Duration
	Place   proc.Placement
	Note    func(command string) // told what is run
}

// Ours returns the path of one of our binaries.
func (e *Env) Ours(name string) string { return filepath.Join(e.Bin, name) }

func (e *Env) log(name string) string {
	return filepath.Join(e.Scratch, fmt.Sprintf("%s-%d.log", name, time.Now().UnixNano()))
}

// Unable says why a contender cannot take part on this machine.
type Unable struct{ Why string }

func (u *Unable) Error() string { return u.Why }

// Server is something that serves a volume.
type Server struct {
	Name    string
	URL     string
	Metrics string   // host:port of our target's metrics, when it has them
	Under   []string // what a client has to be started by to reach it
	procs   []*proc.Process
	clean   []func()
}

// Close stops the server's programs, newest first.
func (s *Server) Close() {
	for i := len(s.procs) - 1; i >= 0; i-- {
		s.procs[i].Stop()
	}
	for _, f := range s.clean {
		f()
	}
}

// PIDs are the processes whose CPU time is the server's.
func (s *Server) PIDs() (pids []int) {
	for _, p := range s.procs {
		pids = append(pids, p.PID())
	}
	return pids
}

func (s *Server) cpu() (sum time.Duration, err error) {
	for _, p := range s.procs {
		t, err := p.CPU()
		if err != nil {
			return 0, err
		}
		sum += t
	}
	return sum, nil
}

// start runs one of the server's programs and waits until it listens.
func (s *Server) start(e *Env, listen string, env []string, argv ...string) error {
	p, err := s.launch(e, env, argv)
	if err != nil {
		return err
	}
	return p.WaitListen(listen)
}

// launch is start without waiting.
func (s *Server) launch(e *Env, env, argv []string) (*proc.Process, error) {
	spec := proc.Spec{Argv: argv, Env: env, Place: e.Place, Side: proc.Server, Log: e.log(filepath.Base(argv[0]))}
	e.note(spec)
	p, err := proc.Start(spec)
	if err == nil {
		s.procs = append(s.procs, p)
	}
	return p, err
}

func (e *Env) note(s proc.Spec) {
	if e.Note != nil {
		e.Note(s.Command())
	}
}

// client runs a load against s and adds the CPU time of both sides per GiB.
// parse returns the figures and how many bytes were moved.
func (e *Env) client(ctx context.Context, s *Server, env []string, argv []string, parse func([]byte) (result.Values, float64, error)) (result.Values, error) {
	spec := proc.Spec{Argv: argv, Env: env, Place: e.Place, Side: proc.Client}
	e.note(spec)
	before, err := s.cpu()
	if err != nil {
		return nil, err
	}
	out, err := proc.Run(ctx, spec)
	if err != nil {
		return nil, err
	}
	after, err := s.cpu()
	if err != nil {
		return nil, err
	}
	v, bytes, err := parse(out.Stdout)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", argv[0], err)
	}
	if gib := bytes / (1 << 30); gib > 0 {
		v[result.CPUServer] = (after - before).Seconds() / gib
		v[result.CPUClient] = out.CPU.Seconds() / gib
		v[result.CPUBoth] = v[result.CPUServer] + v[result.CPUClient]
	}
	v[result.CPUShare] = (after - before).Seconds() / out.Wall.Seconds()
	return v, nil
}

// shm returns a path in memory for a peer's backing file.
func (s *Server) shm(name string) (string, error) {
	f, err := os.CreateTemp("/dev/shm", fmt.Sprintf("%s%d-%s-", prefix, os.Getpid(), name))
	if err != nil {
		return "", err
	}
	defer f.Close()
	s.clean = append(s.clean, func() { os.Remove(f.Name()) })
	return f.Name(), f.Truncate(VolumeSize)
}

// prefix begins the names of what a run makes outside its directory, before the
// harness's process id.
const prefix = "softiser-bench-"

// NewScratch makes a directory for a run, and removes what runs that were killed
// have left.
func NewScratch() (string, error) {
	for _, dir := range []string{os.TempDir(), "/dev/shm"} {
		left, _ := filepath.Glob(filepath.Join(dir, prefix+"*"))
		for _, path := range left {
			pid, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(path), prefix), "-")
			if _, err := strconv.Atoi(pid); err != nil {
				continue
			}
			// Of a process that nobody has waited for the command line is empty.
			if cmd, _ := os.ReadFile("/proc/" + pid + "/cmdline"); len(cmd) == 0 {
				release(path)
				os.RemoveAll(path)
			}
		}
	}
	return os.MkdirTemp("", fmt.Sprintf("%s%d-", prefix, os.Getpid()))
}
