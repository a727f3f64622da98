package bench

import (
	"bytes"
	"io"
	"sync"

	"softiser/internal/terminal"
)

// maxEvents is how many of the last lines are kept until the terminal is given back.
const maxEvents = 1000

// liveView shows a run on a terminal that it has for itself. What happens to sessions meanwhile
// is written when the terminal is given back.
type liveView struct {
	stderr io.Writer
	screen *terminal.Screen
	viewer viewer

	mu     sync.Mutex // guards what follows
	closed bool
	events [][]byte // lines
}

// openLive takes the terminal that stderr is; where it is none any more, nothing is shown.
func openLive(stderr io.Writer) *liveView {
	l := &liveView{stderr: stderr, screen: terminal.OpenScreen(stderr, stderr)}
	l.show(func(int) []byte { return []byte("iser-initiator bench   opening sessions …") })
	return l
}

// tick shows a look. What cannot be shown stops no job.
func (l *liveView) tick(k *Look) {
	v := l.viewer.look(k)
	v.event = l.lastEvent()
	l.show(v.text)
}

func (l *liveView) show(draw func(columns int) []byte) {
	if l.screen != nil {
		_ = l.screen.Show(draw)
	}
}

// Write takes a line about a session.
func (l *liveView) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return l.stderr.Write(p)
	}
	if len(l.events) == maxEvents {
		l.events = l.events[1:]
	}
	l.events = append(l.events, bytes.Clone(p))
	return len(p), nil
}

func (l *liveView) lastEvent() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.events) == 0 {
		return ""
	}
	return string(bytes.TrimSpace(l.events[len(l.events)-1]))
}

// close gives the terminal back, and writes what it has kept. It may be called again, and
// without a view.
func (l *liveView) close() {
	if l == nil {
		return
	}
	if l.screen != nil {
		l.screen.Close()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	for _, e := range l.events {
		_, _ = l.stderr.Write(e)
	}
	l.events = nil
}
