package handover

import (
	"errors"
	"net"
	"os"
	"sync/atomic"
	"syscall"
	"time"
)

// Pause keeps whoever accepts connections from a listener from doing so for a while. Those
// who connect wait in the queue of the socket. The zero value is ready.
type Pause struct{ held atomic.Pointer[chan struct{}] }

// Hold begins: accepting ends with a time-out error, after which Wait is to be called.
func (p *Pause) Hold(ln interface{ SetDeadline(time.Time) error }) {
	ch := make(chan struct{})
	p.held.Store(&ch)
	_ = ln.SetDeadline(time.Unix(1, 0))
}

// Release ends it.
func (p *Pause) Release(ln interface{ SetDeadline(time.Time) error }) {
	if ch := p.held.Load(); ch != nil {
		_ = ln.SetDeadline(time.Time{})
		p.held.Store(nil)
		close(*ch)
	}
}

// Wait waits for the end of the pause, and reports whether there was one.
func (p *Pause) Wait() bool {
	ch := p.held.Load()
	if ch != nil {
		<-*ch
	}
	return ch != nil
}

// Listener is a listener that can be held, for those who accept and know of no pause.
type Listener struct {
	pausable
	pause Pause
}

// pausable is a listener of package net, over TCP or Unix sockets.
type pausable interface {
	net.Listener
	syscall.Conn
	SetDeadline(time.Time) error
}

// Pausable makes a listener of ln, which is a *net.TCPListener or a *net.UnixListener.
func Pausable(ln net.Listener) *Listener { return &Listener{pausable: ln.(pausable)} }

// Accept implements net.Listener.
func (l *Listener) Accept() (net.Conn, error) {
	for {
		c, err := l.pausable.Accept()
		if err == nil || !errors.Is(err, os.ErrDeadlineExceeded) {
			return c, err
		}
		l.pause.Wait() // it may be over by now: nobody else sets deadlines
	}
}

// Close implements net.Listener.
func (l *Listener) Close() error {
	err := l.pausable.Close()
	l.Release()
	return err
}

// Hold stops Accept.
func (l *Listener) Hold() { l.pause.Hold(l.pausable) }

// Release ends what Hold has begun.
func (l *Listener) Release() { l.pause.Release(l.pausable) }

// Owned has Close remove the name of a Unix socket, as it does of one that this process has
// made, not of one that it was given.
func (l *Listener) Owned() {
	if u, ok := l.pausable.(*net.UnixListener); ok {
		u.SetUnlinkOnClose(true)
	}
}

// Dup duplicates the descriptor of the socket.
func (l *Listener) Dup() (int, error) { return Dup(l.pausable) }
