package iscsi

import (
	"bytes"
	"testing"

	"softiser/internal/iscsi"
)

// A logout ends the tasks of what it closes. A command that is read from there while they
// end is not carried out: its initiator may have sent it again by the time of the answer.
func TestCommandBehindALogout(t *testing.T) {
	for reason, name := range map[iscsi.LogoutReason]string{iscsi.LogoutConnection: "of its connection", iscsi.LogoutSession: "of its session"} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, several(2))
			r := s.session("MaxConnections=2")
			b := s.another(r, 1)
			release := s.dev.hold()
			defer release()
			b.at(r.cmdSN, command{cdb: cdbRW10(0x28, 0, 1), read: true, edtl: 512})
			r.cmdSN++
			eventually(t, "a read waits", func() bool { return s.dev.held() == 1 })
			var q iscsi.BHS
			l := q.NewLogoutRequest(reason)
			l.SetImmediate(true)
			l.SetITT(r.newTag())
			l.SetCID(1)
			l.SetCmdSN(r.cmdSN)
			r.write(&q, nil)
			x := s.sessionByTSIH(r.tsih)
			eventually(t, "the read is being aborted", func() (aborting bool) {
				x.mu.Lock()
				defer x.mu.Unlock()
				x.cmds.tags.each(func(k *task) { aborting = aborting || k.state == taskAborting })
				return aborting
			})
			b.cmdSN = r.cmdSN
			b.command(command{cdb: cdbRW10(0x2a, 8, 1), write: true, edtl: 512, imm: bytes.Repeat([]byte{7}, 512)})
			r.cmdSN++
			b.expect(iscsi.OpReject)
			if reason == iscsi.LogoutSession {
				if _, st := s.tryAnother(r, 2); st != iscsi.LoginNoSession {
					t.Errorf("a connection that joins: status %04x (%v)", uint16(st), st)
				}
			}
			release()
			r.expect(iscsi.OpLogoutResp)
			b.expectClosed()
			if reason == iscsi.LogoutSession {
				r.expectClosed()
				r = s.session()
			}
			mustEqual(t, "what the command would have overwritten", r.read10(8, 1), make([]byte, 512))
			r.logout()
		})
	}
}

// The same for a connection that another one replaces below error recovery level 2: what its
// receive goroutine is just about to deliver when its tasks are ended.
func TestCommandOfAReplacedConnection(t *testing.T) {
	s := serve(t, nil)
	c, m := s.loopConn(t)
	sn := uint32(1)
	tur := scsiPDU(testUnitReady, false, 0, nil)
	tur.BHS.SCSICommand().SetRead(false)
	for m.run(tur, &sn) != 0 { // unit attentions
	}
	<-c.sess.cmds.end(c)
	for _, n := range []uint32{sn + 1, sn} { // one ahead of its turn
		p := scsiPDU(cdbRW10(0x2a, 8, 1), true, 512, bytes.Repeat([]byte{7}, 512))
		p.BHS.SetCmdSN(n)
		p.BHS.SetITT(n)
		m.deliver(p)
	}
	m.Push()
	if op := m.last.Opcode(); op != iscsi.OpReject {
		t.Errorf("the last answer is a %v", op)
	}
	c.sess.mu.Lock()
	if q := &c.sess.order.seq; q.n != 0 || q.win.ExpCmdSN != sn+2 {
		t.Errorf("%d commands are held, ExpCmdSN is %d, want none and %d", q.n, q.win.ExpCmdSN, sn+2)
	}
	c.sess.mu.Unlock()
	r := s.session()
	mustEqual(t, "what the commands would have overwritten", r.read10(8, 1), make([]byte, 512))
	r.logout()
}
