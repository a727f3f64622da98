package terminal

import (
	"bytes"
	"io"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"
)

// The other screen of a terminal without a cursor, and back.
const (
	enterScreen = "\x1b[?1049h\x1b[?25l\x1b[H"
	leaveScreen = "\x1b[?25h\x1b[?1049l"
)

// hangupPatience is how long a terminal may take to be given back by a process that is to end: one that has been stopped (Ctrl-S)
// takes nothing.
const hangupPatience = time.Second

// Screen is a view that has a terminal for itself until it is closed; then the terminal is what
// it was before. It follows the terminal's size, and gives the terminal back while the process is
// stopped (Ctrl-Z), and before SIGHUP or SIGQUIT ends it.
type Screen struct {
	out, tty io.Writer
	resized  chan os.Signal
	stopped  chan os.Signal // the process is asked to stop
	hungUp   chan os.Signal // the process is to end at once
	quit     chan struct{}
	idle     sync.WaitGroup // of the goroutines that follow signals

	mu     sync.Mutex // guards what follows, and is held while a frame is drawn and written
	closed bool
	draw   func(columns int) []byte // what is shown
}

// OpenScreen takes the terminal that tty is; nil if it is none, a dumb one, or does not know its
// size. What is drawn goes to out, which ends in tty.
func OpenScreen(out, tty io.Writer) *Screen {
	if Columns(tty) == 0 || Dumb() {
		return nil
	}
	s := &Screen{out: out, tty: tty, resized: make(chan os.Signal, 1), stopped: make(chan os.Signal, 1), hungUp: make(chan os.Signal, 1), quit: make(chan struct{})}
	signal.Notify(s.resized, syscall.SIGWINCH)
	signal.Notify(s.stopped, syscall.SIGTSTP)
	for _, sig := range []os.Signal{syscall.SIGHUP, syscall.SIGQUIT} {
		if !signal.Ignored(sig) { // by nohup
			signal.Notify(s.hungUp, sig)
		}
	}
	_, _ = io.WriteString(out, enterScreen) // what cannot be written now cannot be shown either, which tells
	s.idle.Go(s.follow)
	s.idle.Go(func() { // beside a frame that the terminal does not take
		select {
		case <-s.quit:
		case sig := <-s.hungUp:
			s.hangUp(sig)
		}
	})
	return s
}

// hangUp gives the terminal back, and ends the process as a signal would have done that was caught for that.
func (s *Screen) hangUp(sig os.Signal) {
	left := make(chan struct{})
	go func() {
		s.mu.Lock() // for good: nothing is drawn any more
		if !s.closed {
			_, _ = io.WriteString(s.out, leaveScreen)
		}
		close(left)
	}()
	select {
	case <-left:
	case <-time.After(hangupPatience):
	}
	signal.Reset(sig)
	_ = syscall.Kill(syscall.Getpid(), sig.(syscall.Signal)) // which this process may do
	select {}
}

// follow draws again what is shown when the terminal has another size, and stops the process.
func (s *Screen) follow() {
	for {
		select {
		case <-s.quit:
			return
		case <-s.resized:
			s.mu.Lock()
			_ = s.drawLocked() // the next Show tells
			s.mu.Unlock()
		case <-s.stopped:
			s.mu.Lock()
			s.stopLocked()
			s.mu.Unlock()
		}
	}
}

// stopLocked stops the process, with the terminal as it was before, and draws again when it goes on.
func (s *Screen) stopLocked() {
	if s.closed {
		return
	}
	_, _ = io.WriteString(s.out, leaveScreen)
	goesOn := make(chan os.Signal, 1)
	signal.Notify(goesOn, syscall.SIGCONT)
	defer signal.Stop(goesOn)
	// Not SIGTSTP, which is caught here, and does nothing to a process that no shell looks after.
	if syscall.Kill(syscall.Getpid(), syscall.SIGSTOP) == nil {
		<-goesOn // this thread may be the last one to stop
	}
	_, _ = io.WriteString(s.out, enterScreen)
	_ = s.drawLocked() // the next Show tells
}

// Show replaces what is shown by what draw returns for a terminal of so many columns, now and,
// on another goroutine, whenever its size changes. On a closed screen it does nothing.
func (s *Screen) Show(draw func(columns int) []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.draw = draw
	return s.drawLocked()
}

func (s *Screen) drawLocked() error {
	if s.closed || s.draw == nil {
		return nil
	}
	columns, rows := Size(s.tty)
	_, err := s.out.Write(frame(s.draw(columns), columns, rows))
	return err
}

// Close gives the terminal back. It may be called again.
func (s *Screen) Close() {
	s.mu.Lock()
	closed := s.closed
	s.closed = true
	if !closed {
		_, _ = io.WriteString(s.out, leaveScreen)
		close(s.quit)
	}
	s.mu.Unlock()
	signal.Stop(s.resized)
	signal.Stop(s.stopped)
	signal.Stop(s.hungUp)
	s.idle.Wait()
	select {
	case sig := <-s.hungUp: // meanwhile
		s.hangUp(sig)
	default:
	}
}

// frame is what replaces the content of a terminal: as many lines, and as much of each, as
// there is room for. With rows 0, which is unknown, all of them.
func frame(text []byte, columns, rows int) []byte {
	var b bytes.Buffer
	b.WriteString("\x1b[H")
	for i, line := range strings.Split(strings.TrimSuffix(string(text), "\n"), "\n") {
		if rows > 0 && i == rows-1 {
			break
		}
		b.WriteString(Fit(columns, line))
		b.WriteString("\x1b[K\r\n")
	}
	b.WriteString("\x1b[J")
	return b.Bytes()
}
