package peers

import (
	"context"
	"fmt"
	"os"
	"time"

	"softiser/benchmarks/internal/proc"
	"softiser/benchmarks/internal/result"
)

// Beside runs a load of our generator until the returned function ends it. That one
// reports a load that has ended by itself.
func (e *Env) Beside(url string, l Load) (end func() error, err error) {
	return e.beside(append(e.benchArgs(url, l), "--runtime=10m")) // the last one counts
}

// beside runs a client in the background.
func (e *Env) beside(argv []string) (end func() error, err error) {
	spec := proc.Spec{Argv: argv, Place: e.Place, Side: proc.Client, Log: e.log("beside")}
	e.note(spec)
	p, err := proc.Start(spec)
	if err != nil {
		return nil, err
	}
	return func() error {
		gone, err := p.Exited()
		p.Stop()
		if gone {
			return fmt.Errorf("the load beside has ended: %v", err)
		}
		return nil
	}, nil
}

// BenchMemory is Bench with the most memory that both sides had of their own meanwhile, bytes:
// result.Bytes of the server, result.ClientMem of the client. Shared memory, which
// the volume is, does not count, and neither does what the server had before.
func (e *Env) BenchMemory(ctx context.Context, s *Server, url string, l Load) (result.Values, error) {
	return e.memory(ctx, s, e.benchArgs(url, l))
}

// FioMemory is the same for an NBD server under fio.
func (e *Env) FioMemory(ctx context.Context, s *Server, l Load) (result.Values, error) {
	return e.memory(ctx, s, e.fioArgs(s, l, "--time_based", fmt.Sprintf("--runtime=%dms", e.Dur.Milliseconds())))
}

// memory runs a client and looks at both sides while it does.
func (e *Env) memory(ctx context.Context, s *Server, argv []string) (result.Values, error) {
	before, err := resident(s.PIDs())
	if err != nil {
		return nil, err
	}
	spec := proc.Spec{Argv: argv, Place: e.Place, Side: proc.Client, Log: e.log("client")}
	e.note(spec)
	p, err := proc.Start(spec)
	if err != nil {
		return nil, err
	}
	defer p.Stop()
	peak := result.Values{}
	for {
		gone, err := p.Exited()
		if gone && err != nil {
			return nil, fmt.Errorf("%s: %w", argv[0], err)
		}
		if gone {
			break
		}
		if n, err := resident(s.PIDs()); err == nil {
			peak[result.Bytes] = max(peak[result.Bytes], n-before)
		}
		if n, err := resident([]int{p.PID()}); err == nil { // else it has just ended
			peak[result.ClientMem] = max(peak[result.ClientMem], n)
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
	out, err := os.ReadFile(spec.Log)
	if err != nil {
		return nil, err
	}
	v, _, err := parseFio(out)
	if err != nil {
		return nil, err
	}
	v[result.Bytes], v[result.ClientMem] = peak[result.Bytes], peak[result.ClientMem]
	return v, nil
}

// resident is the memory that processes have of their own, bytes.
func resident(pids []int) (sum float64, err error) {
	for _, pid := range pids {
		n, err := proc.Status(pid, "RssAnon")
		if err != nil {
			return 0, err
		}
		sum += float64(n)
	}
	return sum, nil
}
