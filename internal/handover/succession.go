package handover

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Succession has other processes take the place of this one: one that it starts itself, and such
// as come. They take turns. R is what is told of a handover.
type Succession[R any] struct {
	turn     chan struct{}   // full while a handover runs, and when there is to be none any more
	patience time.Duration   // of a caller that waits for a turn
	starting chan struct{}   // full while Start runs
	reports  chan report[R]  // of the handover that Start waits for
	serving  atomic.Int32    // calls of Serve
	ended    <-chan struct{} // closed when there is to be none any more
	end      func()
}

// report is how a handover has ended.
type report[R any] struct {
	told R
	over func() // called when whoever waits has been told
	err  error
}

// NewSuccession makes one whose first turn is free.
func NewSuccession[R any]() *Succession[R] {
	ended := make(chan struct{})
	s := &Succession[R]{turn: make(chan struct{}, 1), patience: turnPatience, starting: make(chan struct{}, 1), reports: make(chan report[R]), ended: ended}
	s.end = sync.OnceFunc(func() {
		s.turn <- struct{}{}
		close(ended)
	})
	return s
}

// ErrBusy is the answer to a caller that gets no turn.
var ErrBusy = errors.New("another handover is under way, or this process is ending")

const (
	turnPatience   = 5 * time.Second // for the end of a handover that has come to nothing
	reportPatience = 5 * time.Second // for whoever is to be told of one
)

// End waits for a handover that is under way, and has no other one begin.
func (s *Succession[R]) End() { s.end() }

// Serve hands over to the process at the other end of c by give, and tells whoever waits in Start.
// If given is true, that has been told, and this process ends without touching anything that is
// not its own any more: the turn is not given back.
func (s *Succession[R]) Serve(c *net.UnixConn, give func() (told R, given bool, err error)) (given bool, err error) {
	s.serving.Add(1)
	defer s.serving.Add(-1)
	var told R
	err = ErrBusy
	select {
	case s.turn <- struct{}{}:
		if told, given, err = give(); !given {
			<-s.turn
		}
	case <-s.ended:
		Refuse(c, err)
	case <-time.After(s.patience):
		Refuse(c, err)
	}
	s.report(told, given, err)
	return given, err
}

// report tells the Start that waits, if there is one, and waits until its caller has passed on
// that this process is to end.
func (s *Succession[R]) report(told R, given bool, err error) {
	if len(s.starting) == 0 {
		return
	}
	over := make(chan struct{})
	patience := time.NewTimer(reportPatience)
	defer patience.Stop()
	select {
	case s.reports <- report[R]{told, sync.OnceFunc(func() { close(over) }), err}:
	case <-patience.C:
		return
	}
	if given {
		select {
		case <-over:
		case <-patience.C:
		}
	}
}

// Program is what is started to take this process's place.
type Program struct {
	Binary string // "": that of this process, as it is now under its name
	Args   []string
	// Told is what says why it ends, for messages: "the log tells".
	Told string
}

// BinaryFromHere is the name that a program given to this process has for another one, which may be in another folder.
// A name without a folder is looked for in the other one's PATH.
func BinaryFromHere(binary string) (string, error) {
	if !strings.Contains(binary, "/") {
		return binary, nil
	}
	return filepath.Abs(binary)
}

// Start starts a process that takes this one's place, and waits, as long as ctx allows, for what
// comes of it. Without an error this process ends when over has been called.
func (s *Succession[R]) Start(ctx context.Context, p Program) (told R, over func(), err error) {
	if p.Binary == "" {
		if p.Binary, err = os.Executable(); err != nil {
			return told, nil, err
		}
	}
	select {
	case s.starting <- struct{}{}:
		defer func() { <-s.starting }()
	default:
		return told, nil, ErrBusy
	}
	c := exec.Command(p.Binary, p.Args...)
	c.Stdout, c.Stderr = os.Stdout, os.Stderr
	// The watchdog of the service manager is that of the main process, which the new one becomes.
	c.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "WATCHDOG_PID=") })
	if err := c.Start(); err != nil {
		return told, nil, fmt.Errorf("starting the new process: %w", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- c.Wait() }()
	r := s.outcome(ctx, c.Process, ended, p.Told)
	if r.err != nil {
		return told, nil, fmt.Errorf("this process goes on: %w", r.err)
	}
	return r.told, r.over, nil
}

// errNoError is the end of a process without one.
var errNoError = errors.New("exit status 0")

// outcome waits for what comes of a new process.
func (s *Succession[R]) outcome(ctx context.Context, p *os.Process, ended <-chan error, says string) report[R] {
	var why error
	for {
		select {
		case r := <-s.reports:
			if r.err == nil {
				return r
			}
			why = r.err // the new process ends
		case err := <-ended:
			if why == nil && s.serving.Load() > 0 { // it may have been told why, and this one not yet
				select {
				case r := <-s.reports:
					if r.err == nil {
						return r
					}
					why = r.err
				case <-s.ended:
				case <-ctx.Done():
				}
			}
			if why == nil {
				why = fmt.Errorf("the new one has ended before it could take over (%w); %s why", cmp.Or(err, errNoError), says)
			}
			return report[R]{err: why}
		case <-s.ended:
			_ = p.Kill()
			<-ended
			return report[R]{err: ErrBusy}
		case <-ctx.Done():
			select {
			case s.turn <- struct{}{}: // nothing is the new one's, and nothing will be
			case <-s.ended:
				continue
			case r := <-s.reports:
				if r.err == nil {
					return r
				}
				continue
			}
			_ = p.Kill()
			<-ended
			<-s.turn
			return report[R]{err: fmt.Errorf("the new one has not taken over in time: %w", ctx.Err())}
		}
	}
}
