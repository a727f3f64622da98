package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"regexp"
	"sync"
	"time"

	"softiser/interop/internal/poll"
)

// watch reads the nodes' logs as they are written: pacemaker's own times are whole seconds.
type watch struct {
	stop  chan struct{}
	wg    sync.WaitGroup
	mu    sync.Mutex
	lines []logLine
}

type logLine struct {
	at         time.Time
	node, text string
}

func newWatch(names []string, path func(string) string) (*watch, error) {
	w := &watch{stop: make(chan struct{})}
	for _, n := range names {
		// It is there before pacemaker opens it, which then appends.
		f, err := os.OpenFile(path(n), os.O_CREATE|os.O_RDONLY, 0o666)
		if err != nil {
			w.close()
			return nil, err
		}
		w.wg.Go(func() { w.follow(f, n) })
	}
	return w, nil
}

func (w *watch) close() {
	close(w.stop)
	w.wg.Wait()
}

// follow reads a node's log as it grows and adds each whole line, until the file is closed.
func (w *watch) follow(f *os.File, node string) {
	defer f.Close()
	buf := make([]byte, 64<<10)
	var rest []byte
	for {
		n, err := f.Read(buf)
		rest = append(rest, buf[:n]...)
		for {
			line, more, ok := bytes.Cut(rest, []byte("\n"))
			if !ok {
				break
			}
			w.add(node, string(line))
			rest = more
		}
		if err == io.EOF {
			select {
			case <-w.stop:
				return
			case <-time.After(5 * time.Millisecond):
			}
		} else if err != nil {
			return
		}
	}
}

func (w *watch) add(node, text string) {
	w.mu.Lock()
	w.lines = append(w.lines, logLine{time.Now(), node, text})
	w.mu.Unlock()
}

// started is what the cluster's manager writes when the last resource is there.
var started = regexp.MustCompile(`Result of start operation for address on (n\d+): ok`)

// steps are the lines that tell where the cluster's time goes.
var steps = regexp.MustCompile(`^\w+ n\d+: |Result of .* operation|Requesting fencing|was terminated|Operation '|is unclean|Node .* state is now|Actions: |Calculated transition|quorum (lost|acquired)|Initiating .* operation`)

// servedAgain waits for the start of the address after a moment, on a node that may
// have it, and returns when that was.
func (w *watch) servedAgain(ctx context.Context, since time.Time, on func(name string) bool) (at time.Time, name string, err error) {
	err = poll.Until(ctx, patience, "the address is started again", func() (bool, error) {
		w.mu.Lock()
		defer w.mu.Unlock()
		for _, l := range w.lines {
			if m := started.FindStringSubmatch(l.text); m != nil && l.at.After(since) && on(m[1]) {
				at, name = l.at, m[1]
				return true, nil
			}
		}
		return false, nil
	})
	return at, name, err
}

// since returns the lines after a moment that match.
func (w *watch) since(at time.Time, match *regexp.Regexp) (out []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, l := range w.lines {
		if l.at.After(at) && match.MatchString(l.text) {
			out = append(out, fmt.Sprintf("%+.3f %s %s", l.at.Sub(at).Seconds(), l.node, l.text))
		}
	}
	return out
}
