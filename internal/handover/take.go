package handover

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// Taken is what the new process has been offered. It may look, and touch nothing before
// Accept has returned nil.
type Taken struct {
	State []byte
	files []int // -1: taken
	conn  *net.UnixConn
	old   int // pidfd of the old process; -1: unknown
}

// Take asks the old process at the other end of c, which belongs to it from here on, for what
// it has. newest is the version of the state that this process knows best; it reads the one
// before it as well. patience bounds how long the old process may take to come to rest.
func Take(c *net.UnixConn, program string, newest int, patience time.Duration) (_ *Taken, err error) {
	t := &Taken{conn: c, old: -1}
	defer func() {
		if err != nil {
			t.Close()
		}
	}()
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		return nil, err
	}
	b, err := json.Marshal(hello{Program: program, Oldest: newest - 1, Newest: newest})
	if err != nil {
		return nil, err
	}
	if err := send(c, frame{kind: kindHello, payload: b}); err != nil {
		return nil, err
	}
	for {
		f, err := receive(c)
		if err != nil {
			return nil, err
		}
		if f.kind == kindState {
			t.State = f.payload
			if len(f.files) > 0 {
				t.old = f.files[0]
			}
			return t, nil
		}
		t.files = append(t.files, f.files...)
		if err := f.is(kindFiles); err != nil {
			return nil, err
		}
		if len(t.files) > maxFiles {
			return nil, fmt.Errorf("handover: more than %d descriptors", maxFiles)
		}
	}
}

// File returns the descriptor with an index that State names, which is the caller's from here
// on, and is given out once.
func (t *Taken) File(i int) (int, error) {
	if i < 0 || i >= len(t.files) || t.files[i] < 0 {
		return -1, fmt.Errorf("handover: there is no descriptor %d", i)
	}
	fd := t.files[i]
	t.files[i] = -1
	return fd, nil
}

// Files is how many descriptors have come.
func (t *Taken) Files() int { return len(t.files) }

// Refuse tells the old process that it has to go on, and why.
func (t *Taken) Refuse(why error) { _ = refuse(t.conn, why) }

// Accept says that this process is ready and waits for the word that everything is its own.
// With an error nothing is.
func (t *Taken) Accept() error {
	if err := t.conn.SetDeadline(time.Time{}); err != nil {
		return err
	}
	if err := send(t.conn, frame{kind: kindReady}); err != nil {
		return err
	}
	f, err := receive(t.conn)
	if err != nil {
		return fmt.Errorf("the old process has not handed over: %w", err)
	}
	defer closeAll(f.files)
	return f.is(kindYours)
}

// Gone waits until the old process has ended, and with it whatever it had not handed over:
// locks, ports. Preconditions: Accept.
func (t *Taken) Gone(patience time.Duration) error {
	if t.old < 0 { // the end of the connection has to do
		if err := t.conn.SetDeadline(time.Now().Add(patience)); err != nil {
			return err
		}
		if _, err := t.conn.Read(make([]byte, 1)); err != io.EOF {
			return fmt.Errorf("handover: the old process has not ended: %w", err)
		}
		return nil
	}
	for deadline := time.Now().Add(patience); ; {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(t.old), Events: unix.POLLIN}}, int(max(time.Until(deadline).Milliseconds(), 0)))
		switch {
		case err == unix.EINTR:
		case err != nil:
			return fmt.Errorf("handover: waiting for the old process: %w", err)
		case n == 0:
			return fmt.Errorf("handover: the old process has not ended within %v", patience)
		default:
			return nil
		}
	}
}

// Close gives back what has not been taken.
func (t *Taken) Close() {
	for i, fd := range t.files {
		if fd >= 0 {
			_ = unix.Close(fd)
			t.files[i] = -1
		}
	}
	if t.old >= 0 {
		_ = unix.Close(t.old)
		t.old = -1
	}
	_ = t.conn.Close()
}
