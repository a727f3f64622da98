package iscsi

import (
	"testing"

	"softiser/internal/iscsi"
)

var read8K = command{cdb: cdbRW10(0x28, 0, 16), read: true, edtl: 8192}

// readUnacknowledged reads 8 KiB with a tag, and leaves the acknowledgement of the answer out.
func (r *rawInitiator) readUnacknowledged(tag uint32) {
	r.t.Helper()
	r.itt = tag - 1
	r.command(read8K)
	p := r.read()
	for p.Opcode() == iscsi.OpDataIn {
		p = r.read()
	}
	if p.Opcode() != iscsi.OpSCSIResponse || p.ITT() != tag {
		r.t.Fatalf("got %v for %#x", p.Opcode(), p.ITT())
	}
}

// A tag may have been used by one command on a connection that was lost with the acknowledgement
// of its answer, and by another one on the next. What is reassigned is the later one.
func TestReassignTheLaterOfATag(t *testing.T) {
	s := serve(t, level(2))
	r := s.session(atLevel(2)...)
	const tag = 0x4444
	r.readUnacknowledged(tag)
	r.cut()
	s.connections(t, 0)
	b := s.takeOver(r, 1)
	b.write10(0, pattern(8192, 3))
	b.readUnacknowledged(tag)
	b.itt += 0x1000
	b.cut()
	s.connections(t, 0)
	c := s.takeOver(b, 2)
	c.mustReassign(tag, 0)
	res := c.finish(tag, nil)
	mustEqual(t, "the data of the later READ", res.data, pattern(8192, 3))
	c.ready()
}

// A command that runs has not been answered, though the answer to an earlier one with its tag
// has not been acknowledged, for one before that has been lost.
func TestReassignRunningWithAnAnsweredTag(t *testing.T) {
	s := serve(t, level(2))
	r := s.session(atLevel(2)...)
	const tag = 0x4444
	exp := r.expSN
	r.readUnacknowledged(tag)
	r.expSN = exp // as if an answer before it had not come
	o := s.dial()
	o.isid[5] = 77
	o.mustLogin(testIQN)
	o.ready()
	o.write10(0, pattern(8192, 3))
	o.logout()
	release := s.dev.hold()
	defer release()
	r.itt = tag - 1
	r.command(read8K)
	eventually(t, "the second read waits", func() bool { return s.dev.held() == 1 })
	r.itt += 0x1000
	r.cut()
	s.connections(t, 0)
	b := s.takeOver(r, 1)
	b.mustReassign(tag, 0)
	b.expectSilence()
	release()
	res := b.finish(tag, nil)
	mustEqual(t, "the data of the second READ", res.data, pattern(8192, 3))
	b.ready()
}

// A connection that is being logged out, and whose tasks are being ended, takes none over:
// nobody would end that, or answer it.
func TestReassignOntoAConnectionThatIsLoggedOut(t *testing.T) {
	s := serve(t, level(2))
	r := s.session(atLevel(2)...)
	release := s.dev.hold()
	defer release()
	tag := r.command(read8K)
	eventually(t, "a read waits", func() bool { return s.dev.held() == 1 })
	r.cut()
	s.connections(t, 0)
	b := s.takeOver(r, 1)
	c := s.another(b, 2)
	b.command(read8K)
	eventually(t, "another read waits", func() bool { return s.dev.held() == 2 })
	c.cmdSN, c.itt = b.cmdSN, b.itt+0x100
	var q iscsi.BHS
	l := q.NewLogoutRequest(iscsi.LogoutConnection)
	l.SetImmediate(true)
	l.SetITT(c.newTag())
	l.SetCID(1)
	l.SetCmdSN(c.cmdSN)
	c.write(&q, nil)
	s.aborted(b, 1)
	if code := b.reassign(tag, 0); code != iscsi.TaskRejected {
		t.Errorf("onto the connection that is logged out: response %d", code)
	}
	release()
	c.expect(iscsi.OpLogoutResp)
	c.mustReassign(tag, 0)
	if res := c.finish(tag, nil); res.status != 0 || len(res.data) != 8192 {
		t.Errorf("status %#x, %d bytes", res.status, len(res.data))
	}
	c.ready()
}
