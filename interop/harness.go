package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"softiser/interop/internal/frames"
	"softiser/interop/internal/guest"
)

// harness runs cases on a few guests at a time.
type harness struct {
	images map[guest.Kind]*guest.Image
	out    string // folder of logs, captures and tables
	bin    string // folder of the programs
	keep   bool   // logs of cases that have passed stay, too
	short  bool   // loads of what takes longest are smaller
}

// prepare finds the programs and makes the folder for what comes out of the cases; again keeps what
// earlier runs have left there.
func (h *harness) prepare(again bool) (err error) {
	for _, p := range []*string{&h.out, &h.bin} {
		if *p, err = filepath.Abs(*p); err != nil {
			return err
		}
	}
	for _, name := range []string{"iser-target", "iser-initiator"} {
		if _, err := os.Stat(filepath.Join(h.bin, name)); err != nil {
			return fmt.Errorf("%w; run make build first", err)
		}
	}
	if !again {
		if err := os.RemoveAll(h.out); err != nil {
			return err
		}
	}
	return os.MkdirAll(h.out, 0o755)
}

// defaultLimit is long because the guests are emulated and share two cores.
const defaultLimit = 5 * time.Minute

// runAll runs the cases on n workers, each with a guest that it keeps from
// case to case. Each result is passed on as it comes, one at a time; a case that
// an interrupt has cut short has none.
func (h *harness) runAll(ctx context.Context, todo []Case, n int, done func(Result)) {
	next := make(chan Case)
	var mu sync.Mutex
	var wg sync.WaitGroup
	for range min(n, len(todo)) {
		wg.Go(func() {
			w := &worker{h: h}
			defer w.net.close()
			defer w.drop()
			for c := range next {
				r := w.run(ctx, c)
				if ctx.Err() == nil {
					mu.Lock()
					done(r)
					mu.Unlock()
				}
			}
		})
	}
	for _, c := range todo {
		select {
		case next <- c:
		case <-ctx.Done():
		}
	}
	close(next)
	wg.Wait()
}

func progress(r Result) {
	mark := "ok  "
	switch {
	case r.Err != nil:
		mark = "FAIL"
	case r.Skipped:
		mark = "skip"
	}
	fmt.Fprintf(os.Stderr, "%s %-44s %5.1fs %s\n", mark, r.Name, r.Took.Seconds(), r.Seen)
	if r.Err != nil {
		fmt.Fprintln(os.Stderr, indent(r.Err.Error()))
	}
}

func indent(s string) string { return "     " + strings.ReplaceAll(s, "\n", "\n     ") }

// dir is where a case keeps its logs.
func (h *harness) dir(c Case) string {
	return filepath.Join(h.out, strings.ReplaceAll(c.Name, "/", "-"))
}

// worker owns one guest at a time.
type worker struct {
	h     *harness
	guest *guest.Guest
	kind  guest.Kind   // of guest
	ports map[int]int  // port of the guest → port on the host's loopback
	net   private      // the network of RoCE, where there is one
	wire  *frames.Wire // between it and the guest, for cases over raw frames; nil: nothing is
}

func (w *worker) drop() {
	if w.guest != nil {
		w.guest.Kill()
		w.guest = nil
	}
	w.cut()
}

// run runs a case, once: what comes about only on a second try is not there.
func (w *worker) run(ctx context.Context, c Case) Result {
	limit := c.Limit
	if limit == 0 {
		limit = defaultLimit
	}
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("the case took more than %v", limit))
	defer cancel()
	began := time.Now()
	dir := w.h.dir(c)
	r := Result{Case: c}
	r.Seen, r.Err = w.attempt(ctx, c, dir)
	r.Took = time.Since(began)
	var skip skipped
	if errors.As(r.Err, &skip) {
		r.Skipped, r.Seen, r.Err = true, "skipped: "+skip.why.Error(), nil
		os.RemoveAll(dir)
	} else if r.Err != nil {
		r.Seen = "failed"
		w.drop() // whatever state it left the guest in must not meet the next case
	} else if !w.h.keep {
		os.RemoveAll(dir)
	}
	return r
}

func (w *worker) attempt(ctx context.Context, c Case, dir string) (seen string, err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	if c.Fresh || w.kind != c.kind() {
		w.drop()
	}
	if c.Fresh {
		defer w.drop()
	}
	w.kind = c.kind()
	e := &Env{h: w.h, w: w, dir: dir, ctx: ctx}
	defer func() {
		if err != nil && !errors.As(err, new(skipped)) {
			err = fmt.Errorf("%w%s", err, e.evidence())
			e.saveKernelLogs()
		}
		e.close()
	}()
	return c.Run(ctx, e)
}
