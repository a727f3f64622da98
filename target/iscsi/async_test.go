package iscsi

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"softiser/internal/iscsi"
)

// expectDrop reads the announcement that all connections of the session are dropped,
// and then their end.
func (r *rawInitiator) expectDrop(wait uint16) {
	r.t.Helper()
	a := r.expect(iscsi.OpAsync).Async()
	p1, p2, p3 := a.Params()
	if a.Event() != iscsi.AsyncSessionDrop || p1 != 0 || p2 != wait || p3 != 0 || a.ITT() != iscsi.ReservedTag {
		r.t.Errorf("event %d with parameters %d %d %d, want 3 with 0 %d 0", a.Event(), p1, p2, p3, wait)
	}
	if p, err := r.tryRead(ioTime); err == nil {
		r.t.Errorf("%v behind the last message", p.Opcode())
	}
	r.nc.Close()
}

// An initiator whose session is ended by the target is told on each connection, and
// when it may come back (RFC 7143 §11.9.1).
func TestSessionDropIsAnnounced(t *testing.T) {
	for _, c := range []struct {
		name string
		do   func(s *server, r *rawInitiator) error
	}{
		{"kill", func(s *server, r *rawInitiator) error { return s.KillSession(r.tsih) }},
		{"removal of the target", func(s *server, _ *rawInitiator) error { return s.RemoveTarget(s.t.Context(), testIQN) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := serve(t, several(2))
			r := s.session("MaxConnections=2", "DefaultTime2Wait=4")
			b := s.another(r, 1)
			release := s.dev.hold()
			defer release()
			heldRead(r)
			eventually(t, "the read is at the volume", func() bool { return s.dev.held() == 1 })
			done := make(chan error, 1)
			go func() { done <- c.do(s, r) }()
			r.expectDrop(4) // and no answer to the READ
			b.expectDrop(4)
			release()
			if err := <-done; err != nil {
				t.Error(err)
			}
			eventually(t, "the session ends", func() bool { return len(s.Status().Sessions) == 0 })
		})
	}
}

// TARGET COLD RESET is answered, then every session is dropped.
func TestColdResetIsAnnounced(t *testing.T) {
	s := serve(t, nil)
	r, other := s.session(), s.second(50)
	if got := r.task(iscsi.TargetColdReset, 0, iscsi.ReservedTag, 0); got != iscsi.TaskComplete {
		t.Errorf("response %d", got)
	}
	r.expectDrop(2)
	other.expectDrop(2)
}

// Initiators that do not log out when they are asked to are told again.
func TestShutdownAnnounces(t *testing.T) {
	s := serve(t, nil)
	r := s.session()
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- s.Shutdown(ctx) }()
	a := r.expect(iscsi.OpAsync).Async()
	if _, _, sec := a.Params(); a.Event() != iscsi.AsyncLogout || sec != 1 {
		t.Errorf("event %d, parameter 3 %d", a.Event(), sec)
	}
	r.expectDrop(2)
	if err := <-done; !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Shutdown: %v", err)
	}
}

// A connection that is closed in an orderly way does not stay because its peer never
// reads.
func TestHangUpIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := quietServer(t)
		c, m := s.loopConn(t)
		m.stubborn = true
		if err := s.KillSession(c.sess.tsih); err != nil {
			t.Fatal(err)
		}
		if _, _, last := m.seen(c); last.Async().Event() != iscsi.AsyncSessionDrop {
			t.Errorf("last PDU % x", last[:])
		}
		time.Sleep(hangUpTime - time.Millisecond)
		synctest.Wait()
		if got := c.state.get(); got != connLoggedOut {
			t.Errorf("state %v while the last PDUs are on their way", got)
		}
		time.Sleep(2 * time.Millisecond)
		synctest.Wait()
		if got := c.state.get(); got != connClosed {
			t.Errorf("state %v", got)
		}
	})
}
