package iscsi

import (
	"testing"

	"softiser/target/volume"
)

// A connection has slots as long as a command is in one of them. Who comes late for a command
// pushes the connection that it came on, and leaves the slot alone, which may be another
// session's by then.
func TestSlotsAreLent(t *testing.T) {
	s := serve(t, nil)
	a, ma := s.loopConn(t)
	b := &conn{dm: &loopMover{}, sess: &session{node: a.sess.node}} // of another session
	sn := uint32(1)
	tur := scsiPDU(testUnitReady, false, 0, nil)
	tur.BHS.SCSICommand().SetRead(false)
	for ma.run(tur, &sn) != 0 { // unit attentions
	}
	if a.slots.used != 0 || len(a.slots.pieces) != 0 {
		t.Fatalf("%d slots in %d pieces are in use by no command", a.slots.used, len(a.slots.pieces))
	}
	p := scsiPDU(cdbRW10(0x2a, 8, 8), true, 4096, nil)
	p.BHS.SetCmdSN(sn)
	p.BHS.SetITT(sn)
	ma.deliver(p)
	k := a.sess.cmds.tags.find(sn)
	if k == nil || a.slots.used != 1 || len(a.slots.pieces) != 1 {
		t.Fatalf("%d slots in %d pieces are in use by a WRITE that waits for its data", a.slots.used, len(a.slots.pieces))
	}
	via := k.Via()
	ma.Push()
	if a.slots.used != 0 || len(a.slots.pieces) != 0 {
		t.Fatalf("%d slots in %d pieces are in use by no command", a.slots.used, len(a.slots.pieces))
	}
	if via != volume.Port(a) {
		t.Errorf("who is late pushes %v", via)
	}
	// From here on the slot is another session's.
	o := b.slots.take(b)
	if o.session() != b.sess || o.scsi.Nexus != b.sess.nexus || o.scsi.Port != o {
		t.Error("the slot is not its new session's")
	}
	b.slots.put(o)
	if b.slots.used != 0 || b.slots.free != nil || len(b.slots.pieces) != 0 {
		t.Error("the slot was kept")
	}
}

// Commands that have come together share one reading of the clock; others do not.
func TestClockOfABatch(t *testing.T) {
	s := serve(t, nil)
	c, m := s.loopConn(t)
	sn := uint32(1)
	tur := scsiPDU(testUnitReady, false, 0, nil)
	tur.BHS.SCSICommand().SetRead(false)
	for m.run(tur, &sn) != 0 { // unit attentions
	}
	const unread = -1
	for i, x := range []struct {
		batch uint32
		fresh bool
	}{{7, true}, {7, false}, {7, false}, {8, true}, {0, true}, {0, true}, {7, true}} {
		c.clock = unread
		p := scsiPDU(cdbRW10(0x2a, 8, 8), true, 4096, nil)
		p.Batch = x.batch
		p.BHS.SetCmdSN(sn)
		p.BHS.SetITT(sn)
		m.deliver(p)
		if k := c.sess.cmds.tags.find(sn); k == nil || (k.started != unread) != x.fresh {
			t.Errorf("command %d of batch %d: read the clock anew: %v, want %v", i, x.batch, k != nil && k.started != unread, x.fresh)
		}
		sn++
	}
	m.Push()
}
