package iscsi

import (
	"testing"

	"softiser/internal/iscsi"
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
	if o.via.Load() != nil || o.scsi.Nexus != nil {
		t.Error("a slot of nobody keeps a connection alive")
	}
	if b.slots.used != 0 || b.slots.free != nil || len(b.slots.pieces) != 0 {
		t.Error("the slot was kept")
	}
}

// lentSlots is a connection that has no slots, and one of another session whose slots are in use
// by the WRITEs.
func lentSlots(t *testing.T, writes ...*iscsi.PDU) (a, b *conn, mb *loopMover, slots []*task) {
	t.Helper()
	s := serve(t, unsolicitedAllowed)
	a, _ = s.loopConn(t)
	b, mb = s.loopStart(t)
	mb.name = "b"
	s.loopLogin(t, b, mb, "InitialR2T=No", "FirstBurstLength=16384")
	sn := uint32(1)
	tur := scsiPDU(testUnitReady, false, 0, nil)
	tur.BHS.SCSICommand().SetRead(false)
	for mb.run(tur, &sn) != 0 { // unit attentions
	}
	for _, p := range writes {
		p.BHS.SetCmdSN(sn)
		p.BHS.SetITT(sn)
		mb.deliver(p)
		slots = append(slots, b.sess.cmds.tags.find(sn))
		sn++
	}
	return a, b, mb, slots
}

// Who cancels a command whose slot has become that of another session leaves that one's transfer
// alone, and a slot that nobody has.
func TestLateCancel(t *testing.T) {
	a, b, mb, slots := lentSlots(t, scsiPDU(cdbRW10(0x2a, 8, 8), true, 4096, nil))
	k := slots[0]
	x := mb.next() // on its way
	if x != &k.out.x {
		t.Fatal("the WRITE does not wait for its data")
	}
	b.sess.nexus.AbortTask(&k.scsi)
	if mb.aborts != 1 {
		t.Fatalf("%d transfers aborted with the WRITE", mb.aborts)
	}
	k.Cancel(&k.scsi, a)
	if mb.aborts != 1 {
		t.Error("the transfer of another session was aborted")
	}
	b.DataCompletionNotify(x)
	if b.slots.used != 0 {
		t.Fatal("the WRITE has not ended")
	}
	for _, c := range []*conn{a, b} {
		k.Cancel(&k.scsi, c)
	}
	if mb.aborts != 1 {
		t.Error("the transfer of nobody was aborted")
	}
}

// A timer that has fired leaves a slot alone that has become another session's, and one that
// nobody has.
func TestLateTimer(t *testing.T) {
	p := scsiPDU(cdbRW10(0x2a, 8, 8), true, 4096, nil)
	p.BHS.SCSICommand().SetFinal(false)
	a, b, mb, slots := lentSlots(t, p)
	k := slots[0]
	if k.state != taskCollecting {
		t.Fatalf("the WRITE is %v", k.state)
	}
	k.lateBurst(a, k.unsol.burst)
	if k.state != taskCollecting {
		t.Fatal("the burst of another session was ended")
	}
	k.lateBurst(b, k.unsol.burst-1)
	if k.state != taskCollecting {
		t.Fatal("a later burst was ended")
	}
	k.lateBurst(b, k.unsol.burst)
	mb.Push()
	if b.slots.used != 0 {
		t.Fatal("the burst has not been ended")
	}
	for _, c := range []*conn{a, b} {
		k.lateBurst(c, k.unsol.burst)
	}
}

// A stray Data-Out leaves a command alone that it is not for: it may end meanwhile.
func TestStrayDataOutOfEndedCommand(t *testing.T) {
	_, b, mb, slots := lentSlots(t, scsiPDU(cdbRW10(0x2a, 8, 8), true, 4096, nil))
	p := &iscsi.PDU{Data: make([]byte, 512)}
	d := p.BHS.NewDataOut()
	d.SetITT(slots[0].itt)
	d.SetDataLen(len(p.Data))
	p.Recycle = func(*iscsi.PDU) { mb.Push() }
	b.sess.cmds.takeDataOut(b, p)
	if b.slots.used != 0 || b.sess.counters.strayDataOut.Load() != 1 {
		t.Errorf("%d slots in use, %d stray PDUs", b.slots.used, b.sess.counters.strayDataOut.Load())
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
