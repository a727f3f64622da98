package main

import (
	"fmt"
	"net"
	"os"

	"softiser/config"
	"softiser/internal/handover"
	"softiser/target"
	"softiser/target/admin"
)

// listeners are what a start needs of the host. They are taken before any volume is
// touched, so that a port that somebody else has leaves no new file behind.
type listeners struct {
	admin, metrics *handover.Listener
	kept           bool // the name of the admin socket is the service manager's, and stays
}

// open takes what the service manager has opened, and opens the rest.
func (l *listeners) open(srv *target.Server, cfg *config.Config) (err error) {
	defer func() {
		if err != nil {
			l.close()
		}
	}()
	if err := l.activate(srv, cfg); err != nil {
		return err
	}
	if err := srv.Listen(); err != nil {
		return err
	}
	c := &cfg.Admin
	if c.Socket != "" && l.admin == nil {
		ln, err := admin.Listen(c.Socket)
		if err != nil && c.Socket == os.Getenv(socketEnv) { // which people set for the commands that ask a target
			return fmt.Errorf("%w; the environment variable %s names it", err, socketEnv)
		}
		if err != nil {
			return err
		}
		l.admin = handover.Pausable(ln)
	}
	if c.Metrics != "" && l.metrics == nil {
		if l.metrics, err = listenMetrics(c.Metrics); err != nil {
			return err
		}
	}
	return nil
}

func listenMetrics(addr string) (*handover.Listener, error) {
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("metrics: %w; admin.metrics or --metrics names the address", err)
	}
	return handover.Pausable(ln), nil
}

func (l *listeners) each(f func(*handover.Listener)) {
	for _, ln := range []*handover.Listener{l.admin, l.metrics} {
		if ln != nil {
			f(ln)
		}
	}
}

// hold stops accepting on the sockets, and release ends that.
func (l *listeners) hold() { l.each((*handover.Listener).Hold) }

func (l *listeners) release() { l.each((*handover.Listener).Release) }

// close gives up what has not been given to a service; those close their own.
func (l *listeners) close() {
	l.each(func(ln *handover.Listener) { ln.Close() })
}
