package iscsi

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"softiser/target/portal"
)

// Drain asks every initiator to log out, and waits until they have done so or ctx is
// done. Nobody is waited for whose way here is gone: before it stops a target, a cluster
// moves its address away, and not a byte arrives any more. Then the connections that are left are closed, and their tasks end when storage
// lets go of them.
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
		for _, c := range x.conns.list() {
			if portal.Here(c.local.Addr()) && c.out.askLogout(within) {
				asked++
			} else {
				c.close(errShutdown)
			}
		}
	}
	s.log.Info("shutting down", zap.Int("connections_asked_to_log_out", asked))

	cut := s.waitGone(ctx)
	for _, x := range s.sessionList(nil) { // including those without a connection, which error recovery level 2 keeps
		x.shut(errShutdown)
	}
	return cut
}

// Close ends the use of the volumes, which are flushed, then what is left: connections
// whose receiver storage has held, sessions, the RDMA device. No volume waits for another.
// If ctx ends while volumes do not answer the error is portal.ErrVolumesHeld and names
// them; the rest goes on, and Close may be called again to wait for it.
func (s *Frontend) Close(ctx context.Context) error {
	s.mu.Lock()
	nodes := s.targets.all()
	s.mu.Unlock()
	overs, errs := make([]bool, len(nodes)), make([]error, len(nodes))
	var wg sync.WaitGroup
	for i, n := range nodes {
		wg.Go(func() {
			if overs[i], errs[i] = n.end(ctx); !overs[i] {
				errs[i] = fmt.Errorf("target %s: %w: %w", n.cfg.Name, portal.ErrVolumesHeld, errs[i])
			}
		})
	}
	wg.Wait()
	if slices.Contains(overs, false) {
		return errors.Join(errs...)
	}
	s.closing.Do(func() {
		for c := s.anyConn(); c != nil; c = s.anyConn() {
			<-c.ended
		}
		for _, x := range s.sessionList(nil) {
			<-x.done
		}
		s.refusals.stop()
		s.closeErr = errors.Join(append(errs, s.wires.Close())...)
	})
	return s.closeErr
}

// waitGone waits until all connections are gone, or ctx is done; then it closes them, and
// what it returns is ctx's error. Commands of theirs may still be with storage.
func (s *Frontend) waitGone(ctx context.Context) (cut error) {
	for {
		c := s.anyConn()
		if c == nil {
			return nil
		}
		select {
		case <-c.ended:
			continue
		case <-ctx.Done():
		}
		s.mu.Lock()
		var all []*conn
		for c := range s.conns {
			all = append(all, c)
		}
		s.mu.Unlock()
		for _, c := range all {
			c.out.sessionDropped() // sent only as far as the socket takes it, because the time is over
			c.close(errShutdown)
		}
		return ctx.Err()
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
