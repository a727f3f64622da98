package iscsi

import (
	"bytes"
	"errors"
	"io"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"softiser/blockdev"
	"softiser/internal/iscsi"
	"softiser/internal/iser"

	"softiser/target/portal"
)

// pool makes staging memory of its own, so that a test sees what its server holds.
func pool(t testing.TB, n int64) *blockdev.Pool {
	t.Helper()
	p, err := blockdev.NewPool(n)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		eventually(t, "all staging memory has been given back", func() bool { return p.Out() == 0 })
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

// backlog is what the server has queued on its connections, bytes.
func (s *testServer) backlog() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		n += c.dm.Backlog().Answers
	}
	return n
}

// unreadMost is what a flooding initiator gets of the target's memory: the bound of a
// connection, and what one read brings beyond it.
const unreadMost = 1 << 20

// smallBuffers keeps what the kernel takes off the hands of a target small. It is the
// target's side alone that is kept short, from before its connections begin: a receive
// window that shrinks later makes TCP drop what has been sent, and the acknowledgements
// with it, so that both directions may stand still before anything waits here.
func smallBuffers(c *serverConfig) {
	for i := range c.Portals {
		c.Portals[i].SendBuffer, c.Portals[i].RecvBuffer = 64<<10, 64<<10
	}
}

// flood sends the same PDUs again and again, by write, which reports false when the
// target takes no more for now. That must come about, with answers piled up to the
// bound and not beyond, and enough of them: before, the target is only slow.
func flood(t *testing.T, s *server, enough, write func() bool) {
	t.Helper()
	for range 1 << 15 {
		taken := write()
		if n := s.backlog(); n > unreadMost {
			t.Fatalf("%d bytes of answers wait for an initiator that does not read", n)
		}
		if taken {
			continue
		}
		if enough() {
			return
		}
	}
	t.Fatal("the target has taken the whole flood")
}

// stalled is how long a flooded target must have taken nothing. A slow machine
// makes a test see less of a flood, not fail.
const stalled = 200 * time.Millisecond

// flooder is a raw initiator's write for flood.
func (r *rawInitiator) flooder(pdus []byte) func() bool {
	return func() bool {
		r.nc.SetWriteDeadline(time.Now().Add(stalled))
		if len(r.rest) == 0 {
			r.rest = pdus
		}
		n, err := r.nc.Write(r.rest)
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			r.t.Fatalf("the flooding connection ended: %v", err)
		}
		r.rest = r.rest[n:]
		return err == nil
	}
}

// nopOut is a ping with data.
func nopOut(data []byte) *iscsi.PDU {
	p := &iscsi.PDU{Data: data}
	n := p.BHS.NewNopOut()
	n.SetITT(1)
	n.SetTTT(iscsi.ReservedTag)
	n.SetImmediate(true)
	n.SetFinal(true)
	n.SetCmdSN(1)
	n.SetDataLen(len(data))
	return p
}

// sendTargets is a Text Request of a discovery session.
func sendTargets() *iscsi.PDU {
	p := &iscsi.PDU{Data: keys("SendTargets=All")}
	q := p.BHS.NewTextRequest()
	q.SetITT(1)
	q.SetTTT(iscsi.ReservedTag)
	q.SetImmediate(true)
	q.SetFinal(true)
	q.SetCmdSN(1)
	q.SetDataLen(len(p.Data))
	return p
}

// floodOver floods a session of kind whose initiator does not read, and returns how
// it goes on.
func (s *server) floodOver(t *testing.T, kind portal.Transport, discovery bool, isid byte, p *iscsi.PDU) (read func()) {
	t.Helper()
	return s.floodUntil(t, func() bool { return s.backlog() > 16<<10 }, kind, discovery, isid, p)
}

// floodUntil is floodOver that does not take the target for stalled before enough.
func (s *server) floodUntil(t *testing.T, enough func() bool, kind portal.Transport, discovery bool, isid byte, p *iscsi.PDU) (read func()) {
	t.Helper()
	if kind == portal.TCP {
		var r *rawInitiator
		if discovery {
			r = s.discover()
		} else {
			r = s.dial()
			r.isid[5] = isid
			r.mustLogin(testIQN)
		}
		one := r.frame(&p.BHS, p.Data)
		flood(t, s, enough, r.flooder(bytes.Repeat(one, 32<<10/len(one))))
		return func() {
			go io.Copy(io.Discard, r.nc)
			r.nc.SetWriteDeadline(time.Now().Add(ioTime))
			if _, err := r.nc.Write(r.rest); err != nil {
				t.Error(err)
			}
		}
	}
	stop, stopped := make(chan struct{}), make(chan struct{})
	close(stopped) // until somebody reads
	t.Cleanup(func() { close(stop); <-stopped })
	m := s.connect(kind, iser.ConnConfig{})
	if m.isid[5] = isid; discovery {
		m.login("SessionType=Discovery")
	} else {
		m.login()
	}
	flood(t, s, enough, func() bool {
		for range 64 {
			if err := m.dm.SendControl(p); err != nil {
				t.Fatal(err)
			}
		}
		m.dm.Push()
		for end := time.Now().Add(stalled); m.dm.Backlog().Waiting; time.Sleep(time.Millisecond) { // as a write deadline over TCP
			if time.Now().After(end) {
				return false
			}
		}
		return true
	})
	return func() {
		stopped = make(chan struct{})
		go func() {
			defer close(stopped)
			for {
				select {
				case <-m.in:
				case <-stop: // the connection has ended
					return
				}
			}
		}()
	}
}

// An initiator that sends and never reads makes the target stop reading it. When it
// reads at last, it gets every answer.
func TestUnreadAnswers(t *testing.T) {
	eachTransport(t, func(t *testing.T, kind portal.Transport) {
		s := serve(t, func(c *serverConfig, _ *Target) { smallBuffers(c); c.Staging = pool(t, 8<<20) })
		read := s.floodOver(t, kind, false, 9, nopOut(make([]byte, 100)))
		by := s.session() // nobody else notices
		by.read10(0, 8)
		read()
		eventually(t, "the answers have been sent", func() bool { return s.backlog() == 0 })
	})
}

// The same before anything has been proved: in a discovery session, where answers may
// be longer than what asks for them.
func TestUnreadDiscovery(t *testing.T) {
	eachTransport(t, func(t *testing.T, kind portal.Transport) {
		s := serve(t, func(c *serverConfig, _ *Target) { smallBuffers(c); c.Staging = pool(t, 8<<20) })
		read := s.floodOver(t, kind, true, 9, sendTargets())
		read()
		eventually(t, "the answers have been sent", func() bool { return s.backlog() == 0 })
	})
}

// What is not read on many connections has one bound: each has a little of its own,
// and the rest is shared.
func TestUnreadAnswersHaveOneBound(t *testing.T) {
	var staging *blockdev.Pool
	s := serve(t, func(c *serverConfig, _ *Target) {
		smallBuffers(c)
		staging = pool(t, 1<<20)
		c.Staging = staging
	})
	const conns = 12
	var reads []func()
	used := func() bool { return staging.Reserved() >= 256<<10 }
	for i := range conns {
		reads = append(reads, s.floodUntil(t, used, portal.TCP, false, byte(i), nopOut(make([]byte, 4000))))
	}
	if n := staging.Reserved(); n > 512<<10 {
		t.Errorf("%d bytes of the common memory are taken, of 512 KiB", n)
	}
	if n := s.backlog(); n > conns*40<<10+512<<10 {
		t.Errorf("%d bytes of answers wait on %d connections", n, conns)
	}
	for _, read := range reads {
		read()
	}
	eventually(t, "the answers have been sent", func() bool { return s.backlog() == 0 })
}

// A session lives as long as what is sent to it is taken, or else as long as anything
// comes from it: sending without reading is no life, and reading slowly is.
func TestProgressIsLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := quietServer(t)
		c, m := s.loopConn(t)
		live := func(out iscsi.Backlog, ping bool) {
			time.Sleep(14 * time.Second)
			m.list.Lock()
			m.backlog = out
			m.list.Unlock()
			if ping {
				m.deliver(nopOut(nil))
			}
			time.Sleep(time.Second)
			synctest.Wait()
		}
		for i := range 8 { // much is queued, nothing is heard, and it reads
			live(iscsi.Backlog{Waiting: true, Sent: uint64(i + 1)}, false)
		}
		if st := c.state.get(); st != connFull {
			t.Fatalf("an initiator that reads slowly: %v", st)
		}
		for range 4 { // it sends, and does not read
			live(iscsi.Backlog{Waiting: true, Sent: 8}, true)
		}
		if st := c.state.get(); st != connClosed {
			t.Fatalf("an initiator that sends and does not read: %v", st)
		}
		if err := c.sess.endCause(); err != errNotRead {
			t.Errorf("the session ended because of %v", err)
		}
	})
}
