package iscsi

import (
	"context"
	"errors"
	"slices"
	"time"

	"go.uber.org/zap"
)

// Drain asks every initiator to log out, and waits until they have done so or ctx is
// done. Then the connections that are left are closed, and their tasks end.
func (s *Frontend) Drain(ctx context.Context) error {
	s.mu.Lock()
	s.drained.Store(true)
	s.mu.Unlock()
	s.endLife()
	within := s.cfg.Timeouts.Drain
	if d, ok := ctx.Deadline(); ok {
		within = time.Until(d)
	}
	asked := 0
	for _, x := range s.sessionList(nil) {
		for _, c := range x.connList() {
			if c.askLogout(within) {
				asked++
			} else {
				c.close(errShutdown)
			}
		}
	}
	s.log.Info("shutting down", zap.Int("connections_asked_to_log_out", asked))

	cut := s.waitGone(ctx)
	for _, x := range s.sessionList(nil) { // without a connection, at error recovery level 2
		x.shut(errShutdown)
		<-x.done
	}
	return cut
}

// Close closes the devices of all targets, whose volumes are flushed, and the RDMA device.
// No session and no connection is left by then.
func (s *Frontend) Close(ctx context.Context) error {
	var errs []error
	s.mu.Lock()
	nodes := slices.Concat(s.nodes, s.leaving)
	s.mu.Unlock()
	for _, n := range nodes {
		// No session is left, so nothing can hold a volume for long.
		errs = append(errs, n.flush(), n.device.Close(ctx), n.unregister())
	}
	if s.rdma != nil {
		errs = append(errs, s.rdma.Close())
	}
	s.refusals.stop()
	return errors.Join(errs...)
}

// waitGone waits until all connections are gone, and closes them when ctx is
// done; what it returns is ctx's error then.
func (s *Frontend) waitGone(ctx context.Context) (cut error) {
	done := ctx.Done()
	for {
		c := s.anyConn()
		if c == nil {
			return cut
		}
		ended := c.ended
		var over <-chan struct{}
		if c.sess != nil {
			over = c.sess.done
		}
		select {
		case <-ended:
			if over != nil {
				<-over
			}
		case <-done:
			cut, done = ctx.Err(), nil
			s.mu.Lock()
			var all []*conn
			for c := range s.conns {
				all = append(all, c)
			}
			s.mu.Unlock()
			for _, c := range all {
				c.sessionDropped() // as far as its socket takes it: nobody waits any more
				c.close(errShutdown)
			}
		}
	}
}

// anyConn returns a connection that is still there.
func (s *Frontend) anyConn() *conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		return c
	}
	return nil
}
