package iscsi

import (
	"encoding/binary"
	"testing"

	"softiser/internal/iscsi"
)

// readError checks that a command has ended with READ ERROR - FAILED RETRANSMISSION
// REQUEST (RFC 7143 §11.4.7.2).
func readError(t *testing.T, res result) {
	t.Helper()
	if res.status != 2 || len(res.sense) < 14 || res.sense[2] != 0x0b || binary.BigEndian.Uint16(res.sense[12:]) != 0x1113 {
		t.Errorf("status %#x, sense % x, want 0B/11/13", res.status, res.sense)
	}
}

// A SNACK that is refused while its command runs: a Reject at once, and the command
// does not end with GOOD, for the initiator is without some of the data.
func TestSNACKRefusedWhileRunning(t *testing.T) {
	s := serve(t, level(1))
	r := s.session(atLevel(1)...)
	release := s.dev.hold()
	defer release()
	tag := heldRead(r)
	other := heldRead(r)
	eventually(t, "the reads are at the volume", func() bool { return s.dev.held() == 2 })
	// The datamover hands up what it cannot serve. By itself it gets there only when
	// what it kept of the command had to go before the command's answer.
	x := s.sessionByTSIH(r.tsih)
	c := x.conns.speaker()
	p := &iscsi.PDU{Bad: &iscsi.ProtocolError{Reason: iscsi.RejectSNACK, Msg: "the data is not kept"}}
	q := p.BHS.NewSNACK(iscsi.SNACKData)
	q.SetITT(tag)
	q.SetTTT(iscsi.ReservedTag)
	x.damaged(c, p)
	c.dm.Push()
	rej := r.expect(iscsi.OpReject)
	if rej.Reject().Reason() != iscsi.RejectSNACK || binary.BigEndian.Uint32(rej.data[16:]) != tag {
		t.Errorf("reason %v for %#x", rej.Reject().Reason(), binary.BigEndian.Uint32(rej.data[16:]))
	}
	release()
	left := map[uint32]bool{tag: true, other: true}
	for len(left) > 0 {
		p := r.read()
		if p.Opcode() != iscsi.OpSCSIResponse {
			continue // Data-In
		}
		delete(left, p.ITT())
		res := result{status: p.SCSIResponse().Status()}
		res.sense, _, _ = iscsi.ParseSense(p.data)
		if p.ITT() == tag {
			readError(t, res)
		} else if res.status != 0 {
			t.Errorf("the other READ: status %#x", res.status)
		}
	}
	r.ready()
}

// What is kept for SNACKs and reassignment is bounded: of two READs of the longest
// kind the data of the first one has to go. Reassigned, it ends with an error; the
// second one comes whole.
func TestReassignedDataIsLost(t *testing.T) {
	const size = 16 << 20
	s := serve(t, level(2))
	want := pattern(size, 7)
	if _, err := s.vol.WriteAt(want, 0); err != nil {
		t.Fatal(err)
	}
	r := s.session("ErrorRecoveryLevel=2", "MaxConnections=4", "MaxRecvDataSegmentLength=65536") // each goes in one piece
	before := s.Status().Sessions[0].Reads
	first := r.command(command{cdb: cdbRW10(0x28, 0, size/512), read: true, edtl: size})
	second := r.command(command{cdb: cdbRW10(0x28, 0, size/512), read: true, edtl: size})
	eventually(t, "both are answered", func() bool { return s.Status().Sessions[0].Reads == before+2 })
	r.cut()
	s.connections(t, 0)
	b := s.another(r, 1, "MaxRecvDataSegmentLength=262144")
	b.itt = r.itt + 0x100
	b.logoutReason(iscsi.LogoutRecovery, 0)
	b.mustReassign(first, 0)
	readError(t, b.finish(first, nil))
	b.mustReassign(second, 0)
	res := b.finish(second, nil)
	if res.status != 0 {
		t.Fatalf("status %#x, sense % x", res.status, res.sense)
	}
	mustEqual(t, "the data", res.data, want)
	b.ready()
}
