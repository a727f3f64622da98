package iscsi

import (
	"testing"

	"softiser/internal/iscsi"
)

// With DataPDUInOrder=No the PDUs of a sequence come in any order (RFC 7143 §13.18),
// unsolicited ones and those that were asked for; each byte once.
func TestDataPDUsInAnyOrder(t *testing.T) {
	s := serve(t, unsolicitedAllowed)
	login := []string{"InitialR2T=No", "FirstBurstLength=16384", "MaxBurstLength=16384", "DataPDUInOrder=No", "DataSequenceInOrder=No", "MaxOutstandingR2T=1"}
	r := s.session(login...)
	want := pattern(32768, 21)
	write := func() uint32 {
		return r.command(command{cdb: cdbRW10(0x2a, 0, 64), write: true, edtl: 32768, imm: want[:512], more: true})
	}
	tag := write()
	// The unsolicited burst, 4096 bytes at a time but for the ends: last one first.
	cuts := []uint32{512, 4096, 8192, 12288, 16384}
	for sn := range uint32(4) {
		i := 3 - sn
		r.dataOut(tag, iscsi.ReservedTag, sn, cuts[i], want[cuts[i]:cuts[i+1]], sn == 3)
	}
	q := r.expect(iscsi.OpR2T).R2T()
	if q.Offset() != 16384 || q.Desired() != 16384 {
		t.Fatalf("R2T for %d bytes at %d", q.Desired(), q.Offset())
	}
	send := func(sn, off uint32, n uint32, final bool) {
		r.dataOut(tag, q.TTT(), sn, 16384+off, want[16384+off:16384+off+n], final)
	}
	send(0, 8192, 4096, false)
	send(1, 0, 4096, false)
	send(2, 2048, 4096, false) // half of it has arrived before
	if p := r.expect(iscsi.OpReject); p.Reject().Reason() != iscsi.RejectInvalidField {
		t.Fatalf("reason %v", p.Reject().Reason())
	}
	send(2, 12288, 4096, false)
	send(3, 4096, 4096, true)
	if p := r.expect(iscsi.OpSCSIResponse); p.ITT() != tag || p.SCSIResponse().Status() != 0 {
		t.Fatalf("status %#x", p.SCSIResponse().Status())
	}
	mustEqual(t, "the data", r.read10(0, 64), want)

	// A burst that ends with a gap fails its command.
	tag = write()
	r.dataOut(tag, iscsi.ReservedTag, 0, 8192, want[8192:16384], true)
	if p := r.expect(iscsi.OpSCSIResponse); p.SCSIResponse().Status() != 2 {
		t.Errorf("a WRITE without all of its data: status %#x", p.SCSIResponse().Status())
	}
	mustEqual(t, "the data", r.read10(0, 64), want)
	// Unsolicited bytes that come twice are against the protocol.
	tag = write()
	r.dataOut(tag, iscsi.ReservedTag, 0, 256, want[256:4096], false)
	r.expectClosed()

	// Where holes are asked for again they must be told from disorder.
	e := serve(t, level(1))
	x := e.session(atLevel(1, login...)...)
	if got := x.params["DataPDUInOrder"] + x.params["DataSequenceInOrder"]; got != "YesNo" {
		t.Errorf("at error recovery level 1: %s", got)
	}
}
