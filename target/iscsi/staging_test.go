package iscsi

import (
	"testing"

	"softiser/blockdev"
	"softiser/blockdev/mem"
	"softiser/internal/iscsi"
	"softiser/internal/iscsitcp"
	"softiser/internal/spc"
	"softiser/target/scsi"
)

// Buffers for what commands are to look at before it is stored count with all the
// rest: those that find no room end with BUSY and hold nothing, and those that have
// some are carried out.
func TestStagedCommandsShare(t *testing.T) {
	const n = 1 << 20
	var staging *blockdev.Pool
	s := serve(t, func(c *serverConfig, _ *Target) {
		staging = pool(t, 4<<20)
		c.Staging = staging
	})
	r := s.session("InitialR2T=Yes", "ImmediateData=No", "MaxBurstLength=1048576")
	verify := cdbRW10(0x2f, 0, n/512) // VERIFY of what the initiator sends
	verify[1] = 2
	var tags []uint32
	for range 6 {
		tags = append(tags, r.command(command{cdb: verify, write: true, edtl: n}))
	}
	var asked []iscsi.R2T
	busy := map[uint32]bool{}
	for len(asked)+len(busy) < len(tags) {
		switch p := r.read(); p.Opcode() {
		case iscsi.OpR2T:
			asked = append(asked, p.R2T())
		case iscsi.OpSCSIResponse:
			if st := p.SCSIResponse().Status(); st != byte(spc.StatusBusy) {
				t.Fatalf("status %#x", st)
			}
			busy[p.ITT()] = true
		}
	}
	if len(asked) != 2 || staging.Reserved() != 2<<20 {
		t.Errorf("%d commands of 1 MiB are served with 2 MiB; %d bytes are taken", len(asked), staging.Reserved())
	}
	// A long parameter list is such a buffer too.
	unmap := []byte{0x42, 0, 0, 0, 0, 0, 0, 0x40, 0, 0}
	if res := r.do(command{cdb: unmap, write: true, edtl: 16 << 10}, make([]byte, 16<<10)); res.status != byte(spc.StatusBusy) {
		t.Errorf("UNMAP with 16 KiB of parameters: status %#x, want BUSY", res.status)
	}
	for _, q := range asked {
		for off := uint32(0); off < n; off += 64 << 10 {
			r.dataOut(q.ITT(), q.TTT(), off>>16, off, make([]byte, 64<<10), off+64<<10 == n)
		}
	}
	for range asked {
		if p := r.expect(iscsi.OpSCSIResponse); p.SCSIResponse().Status() != 0 {
			t.Errorf("VERIFY: status %#x", p.SCSIResponse().Status())
		}
	}
	if got := staging.Reserved(); got != 0 {
		t.Errorf("%d bytes are taken when all is done", got)
	}
}

// Every kind of memory that a peer can make the target hold counts against the one
// bound: here PDUs of which the end does not come, and WRITEs whose unsolicited data
// does not. Who comes later is told to try again, or needs no such memory.
func TestStagingIsBounded(t *testing.T) {
	var staging *blockdev.Pool
	s := serve(t, func(c *serverConfig, tgt *Target) {
		unsolicitedAllowed(c, tgt)
		staging = pool(t, 2<<20)
		c.Staging = staging
	})
	connect := func(i int) *rawInitiator {
		r := s.dial()
		r.isid[5] = byte(i)
		r.mustLogin(testIQN, "InitialR2T=No", "ImmediateData=Yes", "FirstBurstLength=65536", "MaxRecvDataSegmentLength=262144")
		r.ready()
		return r
	}
	before := iscsitcp.BuffersOut()
	var all []*rawInitiator
	for i := range 8 {
		r := connect(i + 1)
		for range 4 {
			r.command(command{cdb: cdbRW10(0x2a, 0, 128), write: true, edtl: 64 << 10, more: true})
		}
		all = append(all, r)
		// And the beginning of a PDU with immediate data.
		var b iscsi.BHS
		q := b.NewSCSICommand()
		q.SetFinal(true)
		q.SetWrite(true)
		q.SetEDTL(64 << 10)
		q.SetITT(r.newTag())
		q.SetCmdSN(r.cmdSN)
		b.SetDataLen(64 << 10)
		if _, err := r.nc.Write(append(b[:], 1, 2, 3)); err != nil {
			t.Fatal(err)
		}
	}
	// 8 × (4 + 1) × 64 KiB are asked for, 1 MiB is there.
	eventually(t, "the bound is reached", func() bool { return staging.Reserved() > 1<<20-64<<10 })
	if n := staging.Reserved(); n > 1<<20 {
		t.Errorf("%d bytes are taken", n)
	}
	if n := s.bursts.outstanding() + int(iscsitcp.BuffersOut()-before); n > 16 {
		t.Errorf("%d buffers of 64 KiB are in use", n)
	}
	by := connect(99)
	by.write10(0, pattern(4096, 3))
	mustEqual(t, "what another one has written", by.read10(0, 8), pattern(4096, 3))
	by.write10(0, pattern(1<<20, 4)) // asked for, straight into the volume
	if res := by.do(command{cdb: cdbRW10(0x2a, 0, 128), write: true, edtl: 64 << 10, imm: make([]byte, 64<<10)}, nil); res.status != byte(spc.StatusBusy) {
		t.Errorf("a WRITE with 64 KiB of immediate data: status %#x, want BUSY", res.status)
	}
	for _, r := range all {
		r.cut()
	}
	eventually(t, "everything has been given back", func() bool { return staging.Reserved() == 0 })
	by.write10(0, pattern(4096, 5))
}

// WRITEs of a volume whose data is received into staging memory first have a share of it: those beyond it
// are asked for their data later, in order, and can be aborted meanwhile; other volumes have theirs.
func TestWritesWaitForTheirShare(t *testing.T) {
	const n = 1 << 20
	var staging *blockdev.Pool
	s := serve(t, func(c *serverConfig, tgt *Target) {
		staging = pool(t, 8<<20)
		c.Staging = staging
		tgt.LUNs[0].Placement = scsi.PlacementVerified
	})
	other, err := mem.Open(mem.Config{Name: "other", Size: volumeSize})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { other.Close() })
	if err := s.AddLUN(testIQN, LUN{Name: "other", LUConfig: scsi.LUConfig{LUN: 1, Volume: other, Placement: scsi.PlacementVerified}}); err != nil {
		t.Fatal(err)
	}
	login := func(i byte) *rawInitiator {
		r := s.dial()
		r.isid[5] = i
		r.mustLogin(testIQN, "InitialR2T=Yes", "ImmediateData=No", "MaxBurstLength=1048576")
		r.ready()
		return r
	}
	r := login(1)
	var tags []uint32
	for range 4 {
		tags = append(tags, r.command(command{cdb: cdbRW10(0x2a, 0, n/512), write: true, edtl: n}))
	}
	first := r.expect(iscsi.OpR2T).R2T()
	r.expectSilence()
	by := login(2)
	write := command{cdb: cdbRW10(0x2a, 0, n/512), lun: 1, write: true, edtl: n}
	for by.do(command{cdb: make([]byte, 6), lun: 1}, nil).status != 0 {
	}
	if res := by.do(write, pattern(n, 1)); res.status != 0 {
		t.Errorf("WRITE to the other volume: status %#x, sense % x", res.status, res.sense)
	}
	if out := staging.Out(); out != n {
		t.Errorf("%d bytes of staging memory are out for one WRITE of %d", out, n)
	}
	r.sendTask(iscsi.AbortTask, 0, tags[1], r.cmdSN)
	if got := r.expect(iscsi.OpTaskResponse).TaskResponse().Response(); got != iscsi.TaskComplete {
		t.Errorf("ABORT TASK: response %d", got)
	}
	send := func(q iscsi.R2T, tag uint32) {
		t.Helper()
		if q.ITT() != tag {
			t.Fatalf("asked for the data of %#x, not of %#x", q.ITT(), tag)
		}
		for off := uint32(0); off < n; off += 64 << 10 {
			r.dataOut(q.ITT(), q.TTT(), off>>16, off, make([]byte, 64<<10), off+64<<10 == n)
		}
	}
	send(first, tags[0])
	for _, tag := range append(tags[2:], 0) { // the next one may be asked for its data before the one before is answered
		asked, answered := tag == 0, false
		for !asked || !answered {
			switch p := r.read(); p.Opcode() {
			case iscsi.OpR2T:
				asked = true
				send(p.R2T(), tag)
			case iscsi.OpSCSIResponse:
				answered = true
				if st := p.SCSIResponse().Status(); st != 0 {
					t.Errorf("WRITE: status %#x", st)
				}
			default:
				t.Fatalf("%v", p.Opcode())
			}
		}
	}
	eventually(t, "all memory has come back", func() bool { return staging.Out() == 0 })
}
