package iscsi

import (
	"sync"
	"sync/atomic"
	"testing"

	"softiser/blockdev/mem"
	"softiser/internal/iscsi"
	"softiser/target/portal"
	"softiser/target/scsi"
)

// FuzzFullFeature feeds a session, past its login, PDUs of any content: framed
// as a datamover frames them, otherwise arbitrary. Nothing may panic or hang;
// when the connection is gone every slot, PDU and buffer must be back.
func FuzzFullFeature(f *testing.F) {
	seq := func(ps ...*iscsi.PDU) []byte {
		var b []byte
		for _, p := range ps {
			b = append(append(b, p.BHS[:]...), p.Data...)
		}
		return b
	}
	numbered := func(sn uint32, p *iscsi.PDU) *iscsi.PDU {
		p.BHS.SetCmdSN(sn)
		p.BHS.SetITT(sn)
		return p
	}
	nop, text, out, tmf, logout := &iscsi.PDU{}, &iscsi.PDU{}, &iscsi.PDU{}, &iscsi.PDU{}, &iscsi.PDU{}
	n := nop.BHS.NewNopOut()
	n.SetImmediate(true)
	text.Data = keys("SendTargets=")
	q := text.BHS.NewTextRequest()
	q.SetTTT(iscsi.ReservedTag)
	q.SetFinal(true)
	q.SetDataLen(len(text.Data))
	out.Data = make([]byte, 512)
	o := out.BHS.NewDataOut()
	o.SetITT(1)
	o.SetOffset(512)
	o.SetFinal(true)
	o.SetDataLen(512)
	m := tmf.BHS.NewTaskRequest(iscsi.LogicalUnitReset)
	m.SetImmediate(true)
	logout.BHS.NewLogoutRequest(iscsi.LogoutSession).SetImmediate(true)
	write := scsiPDU(cdbRW10(0x2a, 8, 2), true, 1024, make([]byte, 512))
	write.BHS.SetFinal(false)
	f.Add(seq(numbered(1, scsiPDU(cdbRW10(0x28, 8, 8), false, 4096, nil)), nop, numbered(2, text)))
	f.Add(seq(numbered(1, write), out, tmf, numbered(2, scsiPDU(cdbRW10(0x2a, 8, 8), true, 4096, nil)), logout))
	f.Add(seq(numbered(3, scsiPDU(testUnitReady, false, 0, nil)), numbered(2, write), tmf, numbered(1, nop)))

	f.Fuzz(func(t *testing.T, b []byte) {
		s := loopServer()
		s.t = t
		c, m := s.loopStart(t)
		c.portal = s.listening.Portals()[0]
		order := "DataPDUInOrder=Yes"
		if len(b)%2 == 1 {
			order = "DataPDUInOrder=No"
		}
		s.loopLogin(t, c, m, "InitialR2T=No", "FirstBurstLength=4096", order)
		sess := c.sess
		var out atomic.Int64
		for len(b) >= iscsi.BHSLen && c.state.get() == connFull {
			p := &iscsi.PDU{BHS: iscsi.BHS(b[:iscsi.BHSLen]), Recycle: func(*iscsi.PDU) { out.Add(-1) }}
			b = b[iscsi.BHSLen:]
			take := func(n int) []byte {
				n = min(n, len(b))
				d := b[:n:n]
				b = b[n:]
				return d
			}
			if p.BHS.Opcode().Info().AHS {
				p.AHS = take(p.BHS.AHSLen())
				p.AHS = p.AHS[:len(p.AHS)&^3]
			}
			p.BHS.SetAHSLen(len(p.AHS))
			p.Data = take(p.BHS.DataLen())
			p.BHS.SetDataLen(len(p.Data))
			out.Add(1)
			m.deliver(p)
			m.Push()
		}
		c.close(errKilled)
		<-c.ended
		m.Push()
		<-sess.done
		sess.mu.Lock()
		used := sess.order.seq.win.used
		sess.mu.Unlock()
		if used != 0 || out.Load() != 0 || s.bursts.outstanding() != 0 {
			t.Fatalf("left behind: %d slots, %d PDUs, %d bursts", used, out.Load(), s.bursts.outstanding())
		}
	})
}

// loopServer is one server without a portal for all inputs of a fuzzing
// process.
var loopServer = sync.OnceValue(func() *server {
	vol, err := mem.Open(mem.Config{Name: "fuzz", Size: 1 << 20})
	if err != nil {
		panic(err)
	}
	srv, err := newServer(serverConfig{Portals: []portal.Config{{Listen: "127.0.0.1:0", NoISER: true}}, Session: SessionParams{AllowUnsolicited: true}})
	if err == nil {
		err = srv.AddTarget(Target{Name: testIQN, LUNs: []LUN{{LUConfig: scsi.LUConfig{Volume: vol}}}})
	}
	if err != nil {
		panic(err)
	}
	atExit = append(atExit, func() {
		shutdown(srv)
		vol.Close()
	})
	return &server{testServer: srv}
})
