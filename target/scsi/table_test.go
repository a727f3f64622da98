package scsi

import (
	"encoding/binary"
	"testing"

	"softiser/internal/spc"
)

// TestReportedOpcodes goes through the list that REPORT SUPPORTED OPERATION CODES
// gives: every command in it must be told one by one as well, with usage data
// of its length, and must not be refused as unknown; what is not in it must be.
func TestReportedOpcodes(t *testing.T) {
	for _, c := range []LUConfig{{Volume: newNamed(t, "a")}, {Volume: newNamed(t, "b"), Removable: true}} {
		r := newRig(t, Config{}, c)
		all := r.do(spc.AppendReportOpcodes(nil, true, 0, 0, 0, 1<<16), nil, 1<<16).good().data
		if int(binary.BigEndian.Uint32(all)) != len(all)-4 {
			t.Fatalf("length %d of %d bytes", binary.BigEndian.Uint32(all), len(all))
		}
		listed := map[spc.Opcode]bool{}
		for at := 4; at < len(all); at += 20 {
			d := all[at : at+20]
			op, sa, family, size := spc.Opcode(d[0]), binary.BigEndian.Uint16(d[2:]), d[5]&1 != 0, int(binary.BigEndian.Uint16(d[6:]))
			listed[op] = true
			if d[5]&2 == 0 || binary.BigEndian.Uint16(d[8:]) != 10 || binary.BigEndian.Uint32(d[16:]) == 0 {
				t.Errorf("%v: no time-out descriptor: % x", op, d)
			}
			option, wrong := byte(1), byte(2)
			if family {
				option, wrong = 2, 1
			}
			one := r.do(spc.AppendReportOpcodes(nil, false, option, op, sa, 256), nil, 256).good().data
			if one[1] != 3 || int(binary.BigEndian.Uint16(one[2:])) != size || len(one) != 4+size || spc.Opcode(one[4]) != op {
				t.Errorf("%v/%x: % x", op, sa, one)
			}
			if n := spc.CDBLen(one[4:]); n != size {
				t.Errorf("%v: %d bytes of usage data, its CDB has %d", op, size, n)
			}
			r.do(spc.AppendReportOpcodes(nil, false, wrong, op, sa, 256), nil, 256).illegal(spc.ASCInvalidFieldInCDB)
			r.do(spc.AppendReportOpcodes(nil, true, 3, op, sa, 256), nil, 256).good()
		}
		for op := range 256 {
			cdb := make([]byte, 16)
			cdb[0] = byte(op)
			got := r.do(cdb, nil, 0)
			unknown := got.status == spc.StatusCheckCondition && got.sd.ASC == spc.ASCInvalidOpcode
			if unknown == listed[spc.Opcode(op)] {
				t.Errorf("opcode %02x: listed %v, but the answer was %v %v", op, listed[spc.Opcode(op)], got.status, got.sd)
			}
			one := r.do(spc.AppendReportOpcodes(nil, false, 3, spc.Opcode(op), 0xFFFF, 256), nil, 256).good().data
			if !listed[spc.Opcode(op)] && one[1] != 1 {
				t.Errorf("opcode %02x is told as supported", op)
			}
		}
	}
}

// TestUnknownServiceActions: a service action that is not there is a wrong field of
// a command that is, and is told as not supported.
func TestUnknownServiceActions(t *testing.T) {
	r := newRig(t, Config{ExplicitALUA: true})
	all := r.do(spc.AppendReportOpcodes(nil, false, 0, 0, 0, 1<<16), nil, 1<<16).good().data
	listed, families := map[[2]byte]bool{}, map[byte]bool{}
	for d := all[4:]; len(d) > 0; d = d[8:] {
		if d[5]&1 != 0 {
			listed[[2]byte{d[0], d[3]}], families[d[0]] = true, true
		}
	}
	if len(families) != 8 {
		t.Errorf("%d families: %v", len(families), families)
	}
	for op := range families {
		for sa := range byte(32) {
			cdb := make([]byte, 16)
			cdb[0], cdb[1] = op, sa
			for option := byte(2); option <= 3; option++ {
				one := r.do(spc.AppendReportOpcodes(nil, false, option, spc.Opcode(op), uint16(sa), 256), nil, 256).good().data
				if (one[1]&7 == 3) != listed[[2]byte{op, sa}] {
					t.Errorf("%02x/%02x, option %d: % x", op, sa, option, one)
				}
			}
			if listed[[2]byte{op, sa}] {
				continue
			}
			if got := r.do(cdb, nil, 0).illegal(spc.ASCInvalidFieldInCDB); got.sd.Field != 1 {
				t.Errorf("%02x/%02x: field %d", op, sa, got.sd.Field)
			}
		}
	}
	// Commands of 32 bytes are for protection information alone.
	cdb := make([]byte, 32)
	cdb[0], cdb[7] = 0x7F, 24
	for _, sa := range []byte{0x09, 0x0A, 0x0B, 0x0C, 0x0D, 0x0E, 0x0F, 0x12} {
		cdb[9] = sa
		r.do(cdb, nil, 0).illegal(spc.ASCInvalidOpcode)
	}
}

func TestOtherReports(t *testing.T) {
	r := newRig(t, Config{})
	rstmf := []byte{0xA3, 0x0D, 0x80, 0, 0, 0, 0, 0, 0, 64, 0, 0}
	if b := r.do(rstmf, nil, 64).good().data; len(b) != 16 || b[0] != 0xDA || b[3] != 12 {
		t.Errorf("% x", b)
	}
	rstmf[2] = 0
	if b := r.do(rstmf, nil, 64).good().data; len(b) != 4 {
		t.Errorf("% x", b)
	}
	r.do(spc.AppendWrite(nil, 0, 8, false), make([]byte, 4096), 0).good()
	b := r.do(logSense(1, 0x19, 0, 0, 255), nil, 255).good().data
	if binary.BigEndian.Uint64(b[16:]) != 1 || binary.BigEndian.Uint64(b[24:]) != 8 {
		t.Errorf("general statistics after one WRITE of 8 blocks: % x", b)
	}
	r.do([]byte{0x1C, 1, 0, 0, 16, 0}, nil, 16).good()
	if b := r.do([]byte{0x37, 0, 0x08, 0, 0, 0, 0, 0, 32, 0}, nil, 32).good().data; len(b) != 4 || b[1] != 0x08 {
		t.Errorf("% x", b)
	}
	if b := r.do([]byte{0xB7, 0x18, 0, 0, 0, 0, 0, 0, 0, 32, 0, 0}, nil, 32).good().data; len(b) != 8 || b[1] != 0x18 {
		t.Errorf("% x", b)
	}
	page := r.do(spc.AppendInquiryVPD(nil, spc.VPDThirdPartyCopy, 1024), nil, 1024).good().data
	p, err := spc.VPDPayload(page, spc.VPDThirdPartyCopy)
	if err != nil {
		t.Fatal(err)
	}
	for last := -1; len(p) > 0; {
		typ, n := int(binary.BigEndian.Uint16(p)), int(binary.BigEndian.Uint16(p[2:]))
		if typ <= last || n%4 != 0 || n > len(p)-4 {
			t.Fatalf("third-party copy descriptor %04x of %d bytes", typ, n)
		}
		last, p = typ, p[4+n:]
	}
}
