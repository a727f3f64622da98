package frames

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Wire is between a tap and a guest until Close.
type Wire struct {
	tap, stream *os.File
	wg          sync.WaitGroup

	mu    sync.Mutex // guards what follows
	dice  [2]*dice   // nil: nothing happens
	count [2]Counts
	wrong error
}

// Directions.
const (
	toGuest = iota
	fromGuest
)

// maxFrame is the longest frame, bytes.
const maxFrame = 64 << 10

// New makes a Wire between a tap, which it closes in the end, and what it returns: the end for
// QEMU, the caller's.
func New(tap *os.File) (*Wire, *os.File, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		tap.Close()
		return nil, nil, fmt.Errorf("a wire: %w", err)
	}
	guest := os.NewFile(uintptr(pair[1]), "guest's end of a wire")
	w := &Wire{}
	w.stream, err = polled(os.NewFile(uintptr(pair[0]), "wire"))
	if err == nil {
		if w.tap, err = polled(tap); err == nil {
			w.wg.Go(w.down)
			w.wg.Go(w.up)
			return w, guest, nil
		}
		w.stream.Close()
	}
	tap.Close()
	guest.Close()
	return nil, nil, err
}

// polled is a file whose reads end with Close and take deadlines. It takes f's place.
func polled(f *os.File) (*os.File, error) {
	defer f.Close()
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.Name(), err)
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("%s: %w", f.Name(), err)
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}

// Fault has things happen to packets from now on, by a seed, and begins to count anew.
func (w *Wire) Fault(f Faults, seed uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, before := range w.dice {
		w.dice[i], w.count[i] = newDice(f, seed, uint64(i)), Counts{}
		if before != nil {
			w.dice[i].held = before.held
		}
	}
}

// Counts are those of the packets from our side, and of those from the guest; the error is the
// first thing that was wrong with one of them.
func (w *Wire) Counts() (ours, guest Counts, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.count[toGuest], w.count[fromGuest], w.wrong
}

// Close ends the wire; the guest has no carrier from then on.
func (w *Wire) Close() {
	w.tap.Close()
	w.stream.Close()
	w.wg.Wait()
}

// down carries frames from the tap to the guest.
func (w *Wire) down() {
	send := func(f []byte) error {
		b := binary.BigEndian.AppendUint32(make([]byte, 0, 4+len(f)), uint32(len(f)))
		_, err := w.stream.Write(append(b, f...))
		return err
	}
	w.carry(toGuest, w.tap, w.tap.Read, send)
}

// up carries frames from the guest to the tap.
func (w *Wire) up() {
	r := &stream{f: w.stream}
	w.carry(fromGuest, w.stream, r.read, func(f []byte) error {
		_, err := w.tap.Write(f)
		if errors.Is(err, unix.EIO) || errors.Is(err, unix.EINVAL) { // the interface is down, or the frame no frame
			return nil
		}
		return err
	})
}

// stream cuts what QEMU sends into frames. A deadline that passes in the middle of one loses
// nothing.
type stream struct {
	f   *os.File
	buf []byte
}

func (s *stream) read(frame []byte) (int, error) {
	for {
		if len(s.buf) >= 4 {
			n := binary.BigEndian.Uint32(s.buf)
			if n > maxFrame {
				return 0, fmt.Errorf("a frame of %d bytes", n)
			}
			if end := 4 + int(n); len(s.buf) >= end {
				copy(frame, s.buf[4:end])
				s.buf = append(s.buf[:0], s.buf[end:]...)
				return int(n), nil
			}
		}
		var more [maxFrame]byte
		n, err := s.f.Read(more[:])
		s.buf = append(s.buf, more[:n]...)
		if err != nil {
			return 0, err
		}
	}
}

// carry moves frames in one direction until an end is closed. Those that are held go on when
// nothing has come for a moment.
func (w *Wire) carry(direction int, in *os.File, read func([]byte) (int, error), send func([]byte) error) {
	b := make([]byte, maxFrame)
	for {
		_ = in.SetReadDeadline(time.Now().Add(idle))
		n, err := read(b)
		var out [][]byte
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			out = w.idle(direction)
		case errors.Is(err, unix.EIO): // the interface is down
			time.Sleep(idle)
		case errors.Is(err, os.ErrClosed), errors.Is(err, io.EOF), errors.Is(err, unix.ECONNRESET):
			return
		case err != nil:
			w.fail(err)
			return
		default:
			out = w.pass(direction, b[:n])
		}
		for _, f := range out {
			if err := send(f); err != nil {
				return
			}
		}
	}
}

func (w *Wire) fail(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.wrong == nil {
		w.wrong = err
	}
}

func (w *Wire) idle(direction int) [][]byte {
	w.mu.Lock()
	defer w.mu.Unlock()
	if d := w.dice[direction]; d != nil {
		return d.due(mostLate + 1)
	}
	return nil
}

// pass checks a frame that has come, and says which go on now.
func (w *Wire) pass(direction int, frame []byte) [][]byte {
	p, ok := parse(frame)
	if !ok {
		return [][]byte{frame}
	}
	err := p.check(direction == toGuest)
	w.mu.Lock()
	defer w.mu.Unlock()
	c := &w.count[direction]
	c.Seen++
	if p.v4 && p.id() != 0 {
		c.Joined++
	}
	if err != nil && w.wrong == nil {
		w.wrong = fmt.Errorf("a packet to %s: %w: %x", [2]string{"the guest", "us"}[direction], err, frame[etherLen:min(len(frame), 120)])
	}
	d := w.dice[direction]
	if err != nil || d == nil {
		return [][]byte{frame}
	}
	return d.throw(frame, p.body, c)
}
