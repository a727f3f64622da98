package iscsi

import (
	"bytes"
	"encoding/hex"
	"testing"

	"softiser/internal/alloctest"
)

// A SCSI READ CAPACITY over iSER as the Linux initiator sends it.
func TestSCSICommandGoldenBytes(t *testing.T) {
	const golden = "01c10000000000000000000000000000" + "2a000000" + "00000008" + "0000000f" + "00000003" +
		"25000000000000000000000000000000"
	var b BHS
	c := b.NewSCSICommand()
	c.SetRead(true)
	c.SetAttr(1)
	c.SetITT(0x2a000000)
	c.SetEDTL(8)
	c.SetCmdSN(15)
	c.SetExpStatSN(3)
	c.SetCDB([]byte{0x25, 0, 0, 0, 0, 0, 0, 0, 0, 0})
	if got := hex.EncodeToString(b[:]); got != golden {
		t.Fatalf("encoded\n%s, want\n%s", got, golden)
	}
	if v := b.SCSICommand(); !v.Final() || !v.Read() || v.Write() || v.EDTL() != 8 || v.CmdSN() != 15 {
		t.Fatalf("decoded %+v", v)
	}
}

func TestCommonFields(t *testing.T) {
	var b BHS
	b.SetDataLen(MaxDataLen)
	b.SetAHSLen(MaxAHSLen)
	if b.DataLen() != MaxDataLen || b.AHSLen() != MaxAHSLen {
		t.Fatalf("lengths %d %d", b.DataLen(), b.AHSLen())
	}
	b.SetSequence(Sequence{1, 2, 3})
	if b.Sequence() != (Sequence{1, 2, 3}) {
		t.Fatalf("sequence %v", b.Sequence())
	}
	for n, want := range []int{0, 3, 2, 1, 0} {
		if PadLen(n) != want {
			t.Errorf("PadLen(%d) = %d, want %d", n, PadLen(n), want)
		}
	}
}

func TestViewsAllocateNothing(t *testing.T) {
	var b BHS
	if n := alloctest.PerRun(100, func() {
		d := b.NewDataIn()
		d.SetITT(7)
		d.SetOffset(9)
		r := b.NewSCSIResponse()
		r.SetResidual(4, ResidualUnderflow)
	}); n != 0 {
		t.Fatalf("%v allocations", n)
	}
}

func TestAHS(t *testing.T) {
	cdb := make([]byte, 35)
	for i := range cdb {
		cdb[i] = byte(i)
	}
	ahs := appendBidiRead(AppendExtendedCDB(nil, cdb), 0x1234)
	if len(ahs)%4 != 0 {
		t.Fatalf("length %d is not a multiple of 4", len(ahs))
	}
	c, err := ParseCommandAHS(ahs)
	if err != nil || !bytes.Equal(c.CDB, cdb[16:]) || !c.HasBidi || c.BidiRead != 0x1234 {
		t.Fatalf("got %+v, %v", c, err)
	}
	for _, bad := range [][]byte{{1}, {0, 0, 1, 0}, {0, 9, 1, 0}, {0, 1, 9, 0}, {0, 1, 1, 0}, {0, 3, 1, 0, 1}} {
		if _, err := ParseCommandAHS(bad); err == nil {
			t.Errorf("% x was accepted", bad)
		}
	}
	if _, err := ParseCommandAHS(append(ahs, ahs...)); err == nil {
		t.Error("repeated segments were accepted")
	}
}

func TestLUN(t *testing.T) {
	for _, n := range []int{0, 1, 255, 256, 16383} {
		if m, ok := DecodeLUN(EncodeLUN(n)); !ok || m != n {
			t.Errorf("LUN %d came back as %d, %v", n, m, ok)
		}
	}
	if EncodeLUN(5) != 0x0005_0000_0000_0000 || EncodeLUN(300) != 0x412c_0000_0000_0000 {
		t.Errorf("wire form %#x %#x", EncodeLUN(5), EncodeLUN(300))
	}
	for _, w := range []uint64{1, 0x0101 << 48, 0xc100 << 48} {
		if n, ok := DecodeLUN(w); ok {
			t.Errorf("%#x was taken for LUN %d", w, n)
		}
	}
}

func TestSerial(t *testing.T) {
	w := NewCommandWindow(0xfffffffe, 4)
	for _, sn := range []uint32{0xfffffffe, 0xffffffff, 0, 1} {
		if !w.Accepts(sn) {
			t.Errorf("CmdSN %#x refused", sn)
		}
	}
	if w.Accepts(2) || w.Accepts(0xfffffffd) {
		t.Error("a CmdSN outside the window was accepted")
	}
	w.Advance()
	w.Open(2) // would shrink: ignored
	if w.MaxCmdSN != 1 || w.Size() != 3 {
		t.Fatalf("window %+v", w)
	}
	closed := CommandWindow{ExpCmdSN: 5, MaxCmdSN: 4}
	if closed.Accepts(5) || closed.Accepts(4) || closed.Size() != 0 {
		t.Fatal("a closed window accepts")
	}
	s := SenderWindow{CmdSN: 5, ExpCmdSN: 5, MaxCmdSN: 5}
	if !s.CanSend() || s.Next() != 5 || s.CanSend() {
		t.Fatalf("sender %+v", s)
	}
	s.Update(Sequence{ExpCmdSN: 4, MaxCmdSN: 4})
	s.Update(Sequence{ExpCmdSN: 9, MaxCmdSN: 4}) // nonsense
	if s.CanSend() {
		t.Fatal("an old PDU opened the window")
	}
	s.Update(Sequence{ExpCmdSN: 6, MaxCmdSN: 7})
	if !s.CanSend() || s.ExpCmdSN != 6 {
		t.Fatalf("sender %+v", s)
	}
	// A window that is closed acknowledges all the same.
	s.Update(Sequence{ExpCmdSN: 8, MaxCmdSN: 7})
	if s.ExpCmdSN != 8 {
		t.Fatalf("sender %+v", s)
	}
}

func TestTargetAddress(t *testing.T) {
	for in, want := range map[string]string{
		"10.0.0.1":            "10.0.0.1:3260",
		"10.0.0.1:3261,7":     "10.0.0.1:3261,7",
		"host.example:3260,1": "host.example:3260,1",
		"[fe80::1]:3260,1":    "[fe80::1]:3260,1",
		"[fe80::1],2":         "[fe80::1]:3260,2",
		"fe80::1":             "[fe80::1]:3260",
		"":                    "",
		":3260":               "",
		"h:0":                 "",
		"h:70000":             "",
		"h,70000":             "",
		"h,":                  "",
		"[::1]x:3260":         "",
		"]:1":                 "",
	} {
		p, err := ParseTargetAddress(in)
		if got := p.String(); err != nil && want != "" || err == nil && got != want {
			t.Errorf("%q gave %q, %v; want %q", in, got, err, want)
		}
	}
}

func TestSendTargets(t *testing.T) {
	in := []DiscoveredTarget{
		{Name: "iqn.2026-11.a:1", Alias: "one", Portals: []TargetPortal{{"10.0.0.1:3260", 1, true}, {"[::1]:3260", 2, true}}},
		{Name: "iqn.2026-11.a:2"},
	}
	var text []byte
	for i := range in {
		text = AppendTarget(text, &in[i])
	}
	out, err := ParseTargets(text)
	if err != nil || len(out) != 2 || out[0].Alias != "one" || len(out[0].Portals) != 2 || out[0].Portals[1] != in[0].Portals[1] || out[1].Name != in[1].Name {
		t.Fatalf("%+v, %v", out, err)
	}
	if _, err := ParseTargets([]byte("TargetAddress=1.2.3.4\x00")); err == nil {
		t.Error("an address without a target was accepted")
	}
	kvs, _ := ParseText(AppendSendTargets(nil, "All"))
	if w, ok := SendTargets(kvs); !ok || w != "All" {
		t.Errorf("%q %v", w, ok)
	}
}
