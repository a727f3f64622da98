package iscsi

import "testing"

// A command PDU is built by one side and read by the other: the codec's part of
// an I/O.
func BenchmarkCommand(b *testing.B) {
	cdb := []byte{0x28, 0, 0, 0, 0, 8, 0, 0, 8, 0}
	var h BHS
	var sum uint32
	b.ReportAllocs()
	b.SetBytes(BHSLen)
	for i := uint32(0); b.Loop(); i++ {
		c := h.NewSCSICommand()
		c.SetRead(true)
		c.SetLUN(1 << 48)
		c.SetITT(i)
		c.SetEDTL(4096)
		c.SetCmdSN(i)
		c.SetExpStatSN(i)
		c.SetCDB(cdb)
		got := h.SCSICommand()
		sum += got.ITT() + got.EDTL() + got.CmdSN() + uint32(got.CDB()[0]) + uint32(h.DataLen()+h.AHSLen())
	}
	if sum == 0 {
		b.Fatal("nothing was read")
	}
}

func BenchmarkResponse(b *testing.B) {
	var h BHS
	var sum uint32
	b.ReportAllocs()
	b.SetBytes(BHSLen)
	for i := uint32(1); b.Loop(); i++ {
		r := h.NewSCSIResponse()
		r.SetITT(i)
		h.SetSequence(Sequence{i, i, i + 32})
		got := h.SCSIResponse()
		sum += got.ITT() + uint32(got.Status()) + h.Sequence().StatSN
	}
	if sum == 0 {
		b.Fatal("nothing was read")
	}
}

func BenchmarkDataIn(b *testing.B) {
	var h BHS
	var sum uint32
	b.ReportAllocs()
	b.SetBytes(BHSLen)
	for i := uint32(1); b.Loop(); i++ {
		d := h.NewDataIn()
		d.SetITT(i)
		d.SetOffset(i)
		d.SetHasStatus(true)
		h.SetDataLen(8192)
		got := h.DataIn()
		sum += got.ITT() + got.Offset() + uint32(h.DataLen())
	}
	if sum == 0 {
		b.Fatal("nothing was read")
	}
}

// Login text is read once a session.
func BenchmarkParseText(b *testing.B) {
	var text []byte
	for _, kv := range [][2]string{
		{"InitiatorName", "iqn.2026-11.softiser:bench"}, {"TargetName", "iqn.2026-11.softiser:ram0"}, {"SessionType", "Normal"},
		{"HeaderDigest", "None"}, {"DataDigest", "None"}, {"RDMAExtensions", "Yes"}, {"MaxBurstLength", "1048576"}, {"InitialR2T", "No"},
	} {
		text = AppendKey(text, kv[0], kv[1])
	}
	b.ReportAllocs()
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		if kvs, err := ParseText(text); err != nil || len(kvs) != 8 {
			b.Fatal(len(kvs), err)
		}
	}
}
