package initiator

import (
	"context"
	"testing"

	"softiser/initiator/blockio"
	"softiser/internal/iscsi"
)

// FuzzReceive feeds whatever a target may send in full feature phase to a
// session with commands outstanding: it must neither panic nor lose a request.
func FuzzReceive(f *testing.F) {
	seed := func(op iscsi.Opcode, data []byte, set func(b *iscsi.BHS)) {
		var b iscsi.BHS
		b[0], b[1] = byte(op), 0x80
		if set != nil {
			set(&b)
		}
		f.Add(b[:], data)
	}
	seed(iscsi.OpSCSIResponse, nil, func(b *iscsi.BHS) { b.SetITT(1 << 16) })
	seed(iscsi.OpSCSIResponse, iscsi.AppendSense(nil, []byte{0x70, 0, 6, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x29, 0, 0, 0, 0, 0}), func(b *iscsi.BHS) { b.SetITT(1 << 16); b[3] = 2 })
	seed(iscsi.OpSCSIResponse, []byte{0xff, 0xff, 1}, func(b *iscsi.BHS) { b[3] = 2; b.SetITT(1<<16 | 1) })
	seed(iscsi.OpSCSIResponse, nil, func(b *iscsi.BHS) { b[3] = 8; b.SetITT(1<<16 | 2) })
	seed(iscsi.OpSCSIResponse, nil, func(b *iscsi.BHS) { b[2] = 1; b[1] = 0x86; b[44] = 0xff })
	seed(iscsi.OpNopIn, nil, func(b *iscsi.BHS) { b.SetITT(iscsi.ReservedTag) })
	seed(iscsi.OpTaskResponse, nil, nil)
	seed(iscsi.OpLogoutResp, nil, nil)
	seed(iscsi.OpReject, make([]byte, 48), func(b *iscsi.BHS) { b[2] = 4 })
	for e := range byte(6) {
		seed(iscsi.OpAsync, []byte{0, 3, 0x70, 0, 6}, func(b *iscsi.BHS) { b[36] = e })
	}
	f.Fuzz(func(t *testing.T, head, data []byte) {
		if len(head) < iscsi.BHSLen || len(data) > 8192 {
			return
		}
		l := silentLUN(t)
		s := l.Sessions()[0]
		buf := make([]byte, 4096)
		done := 0
		reqs := make([]*Request, 4)
		for i, op := range []Op{OpRead, OpWrite, OpCDB, OpFlush} {
			reqs[i] = &Request{Op: op, Buf: buf[:512], CDB: make([]byte, 6), DataIn: true, Done: func(*Request) { done++ }}
			if op == OpFlush {
				reqs[i].Buf = nil
			}
		}
		l.SubmitBatch(reqs)
		c := s.conn
		for range 3 { // the same thing thrice: tags may have been freed
			p := iscsi.PDU{BHS: iscsi.BHS(head[:iscsi.BHSLen]), Data: data}
			c.ControlNotify(&p)
		}
		c.ConnectionTerminateNotify(nil)
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		if done != len(reqs) {
			t.Fatalf("%d of %d requests ended", done, len(reqs))
		}
		if n := s.tasks.used; n != 0 {
			t.Fatalf("%d slots are still taken", n)
		}
	})
}

// silentDM takes everything and does nothing.
type silentDM struct{ echoDM }

func (d *silentDM) SendControl(*iscsi.PDU) error    { return nil }
func (d *silentDM) Push()                           {}
func (d *silentDM) Terminate(error)                 {}
func (d *silentDM) Stats() (s iscsi.DatamoverStats) { return s }
func (d *silentDM) ReleaseTask(*iscsi.TaskBuffers)  {}
func (d *silentDM) Describe() string                { return "silent" }
func (d *silentDM) Recovery() iscsi.Recovery        { return nil }

// silentLUN is an open LUN on a session whose target never answers. Nothing of
// it runs by itself.
func silentLUN(t *testing.T) *LUN {
	cfg := newFakeTarget(t, 1<<20).config()
	cfg.FailNow = true
	cfg.LogoutTimeout = 1
	cfg.dial = func(context.Context, *Config, string) (iscsi.Datamover, error) { return nil, context.Canceled }
	s := newSession(cfg.withDefaults())
	l := &login{params: iscsi.NewNegotiation(iscsi.RoleInitiator, iscsi.DefaultSettings(), iscsi.KeyProfile{}, true).Params(), done: make(chan struct{})}
	l.win = iscsi.SenderWindow{CmdSN: 1, ExpCmdSN: 1, MaxCmdSN: 64}
	c := &conn{dm: &silentDM{}, login: l, gone: make(chan struct{}), s: s}
	c.enter()
	s.mu.Lock()
	s.adopt(c)
	c.setState(connFlowing)
	s.setState(StateActive)
	s.mu.Unlock()
	lun := &LUN{paths: []*Session{s}, owned: true, cache: new(blockio.Cache)}
	lun.epoch.Store(lun.cache.Enter([16]byte{}))
	lun.calls = lun.newCalls()
	g := &geometry{maxIO: 65536}
	g.info.Size, g.info.BlockSize = 1<<20, 512
	lun.geo.Store(g)
	return lun
}
