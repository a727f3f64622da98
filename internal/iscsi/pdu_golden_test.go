package iscsi

import (
	"bytes"
	"encoding/hex"
	"strings"
	"testing"
)

// Every PDU of RFC 7143 §11 with all of its fields set, each to another value, over what was in the
// header before. (Those of login: login_test.go.)
func TestPDUGoldenBytes(t *testing.T) {
	const lun, itt, ttt = 0x4142434445464748, 0x61626364, 0x71727374
	const (
		zero8   = "0000000000000000"
		wireLUN = "4142434445464748"
		tags    = "61626364" + "71727374"
		none    = "ffffffff"
	)
	seq := Sequence{StatSN: 0x11121314, ExpCmdSN: 0x21222324, MaxCmdSN: 0x31323334}
	const wireSeq = "11121314" + "21222324" + "31323334"
	for name, tt := range map[string]struct {
		make func(b *BHS)
		want string
	}{
		"NOP-Out":          {func(b *BHS) { b.NewNopOut() }, "40800000 00000000" + zero8 + none + none + strings.Repeat("00", 24)},
		"NOP-In":           {func(b *BHS) { b.NewNopIn().SetSequence(seq) }, "20800000 00000000" + zero8 + none + none + wireSeq + zero8 + "00000000"},
		"Text Request":     {func(b *BHS) { b.NewTextRequest() }, "04800000 00000000" + zero8 + "00000000" + none + strings.Repeat("00", 24)},
		"Text Response, C": {func(b *BHS) { r := b.NewTextResponse(); r.SetFinal(false); r.SetContinue(true) }, "24400000 00000000" + zero8 + "00000000" + none + strings.Repeat("00", 24)},
		"SCSI Command": {func(b *BHS) {
			c := b.NewSCSICommand()
			c.SetWrite(true)
			c.SetAttr(0xFD)
			c.SetLUN(lun)
			c.SetITT(itt)
			c.SetEDTL(0x81828384)
			c.SetCmdSN(0x91929394)
			c.SetExpStatSN(0xA1A2A3A4)
			c.SetCDB([]byte{0x2A, 1, 2})
		}, "01a50000 00000000" + wireLUN + "61626364 81828384 91929394 a1a2a3a4 2a0102" + strings.Repeat("00", 13)},
		"SCSI Response": {func(b *BHS) {
			r := b.NewSCSIResponse()
			r.SetResponse(0x51)
			r.SetStatus(0x52)
			r.SetITT(itt)
			r.SetSNACKTag(ttt)
			r.SetSequence(seq)
			r.SetExpDataSN(0xB1B2B3B4)
			r.SetBidiResidual(0xC1C2C3C4, ResidualBidiUnderflow)
			r.SetResidual(0xD1D2D3D4, ResidualOverflow)
		}, "218c5152 00000000" + zero8 + tags + wireSeq + "b1b2b3b4 c1c2c3c4 d1d2d3d4"},
		"Task Management": {func(b *BHS) {
			r := b.NewTaskRequest(AbortTask)
			r.SetLUN(lun)
			r.SetITT(itt)
			r.SetCmdSN(0x91929394)
			r.SetExpStatSN(0xA1A2A3A4)
			r.SetRefCmdSN(0xB1B2B3B4)
			r.SetExpDataSN(0xC1C2C3C4)
		}, "42810000 00000000" + wireLUN + "61626364" + none + "91929394 a1a2a3a4 b1b2b3b4 c1c2c3c4" + zero8},
		"TM, a task": {func(b *BHS) { b.NewTaskRequest(TaskReassign).SetRefTask(ttt) }, "42880000 00000000" + zero8 + "00000000 71727374" + strings.Repeat("00", 24)},
		"TM Response": {func(b *BHS) {
			r := b.NewTaskResponse(TaskRejected)
			r.SetITT(itt)
			r.SetSequence(seq)
			r.SetAdditional(0x81828384)
		}, "2280ff00 00000000 8283840000000000 61626364 00000000" + wireSeq + zero8 + "00000000"},
		"SCSI Data-Out": {func(b *BHS) {
			d := b.NewDataOut()
			d.SetFinal(true)
			d.SetLUN(lun)
			d.SetITT(itt)
			d.SetExpStatSN(0xA1A2A3A4)
			d.SetDataSN(0xB1B2B3B4)
			d.SetOffset(0xC1C2C3C4)
		}, "05800000 00000000" + wireLUN + "61626364" + none + "00000000 a1a2a3a4 00000000 b1b2b3b4 c1c2c3c4 00000000"},
		"SCSI Data-In": {func(b *BHS) {
			d := b.NewDataIn()
			d.SetITT(itt)
			d.SetSequence(seq)
			d.SetDataSN(0xB1B2B3B4)
			d.SetOffset(0xC1C2C3C4)
			d.SetAcknowledge(true)
		}, "25400000 00000000" + zero8 + "61626364" + none + wireSeq + "b1b2b3b4 c1c2c3c4 00000000"},
		"SCSI Data-In, S": {func(b *BHS) {
			d := b.NewDataIn()
			d.SetFinal(true)
			d.SetHasStatus(true)
			d.SetStatus(0x52)
			d.SetResidual(0xD1D2D3D4, ResidualUnderflow|0xF8)
		}, "25830052 00000000" + zero8 + "00000000" + none + strings.Repeat("00", 20) + "d1d2d3d4"},
		"R2T": {func(b *BHS) {
			r := b.NewR2T()
			r.SetLUN(lun)
			r.SetITT(itt)
			r.SetTTT(ttt)
			r.SetSequence(seq)
			r.SetR2TSN(0xB1B2B3B4)
			r.SetOffset(0xC1C2C3C4)
			r.SetDesired(0xD1D2D3D4)
		}, "31800000 00000000" + wireLUN + tags + wireSeq + "b1b2b3b4 c1c2c3c4 d1d2d3d4"},
		"SNACK": {func(b *BHS) {
			s := b.NewSNACK(SNACKDataACK)
			s.SetITT(itt)
			s.SetTTT(ttt)
			s.SetBegRun(0xC1C2C3C4)
			s.SetRunLength(0xD1D2D3D4)
		}, "10820000 00000000" + zero8 + tags + strings.Repeat("00", 16) + "c1c2c3c4 d1d2d3d4"},
		"Logout Request": {func(b *BHS) {
			r := b.NewLogoutRequest(LogoutConnection)
			r.SetITT(itt)
			r.SetCID(0x8182)
			r.SetCmdSN(0x91929394)
			r.SetExpStatSN(0xA1A2A3A4)
		}, "46810000 00000000" + zero8 + "61626364 81820000 91929394 a1a2a3a4" + strings.Repeat("00", 16)},
		"Logout Response": {func(b *BHS) {
			r := b.NewLogoutResponse(LogoutNoRecovery)
			r.SetITT(itt)
			r.SetSequence(seq)
			r.SetTimes(0xC1C2, 0xC3C4)
		}, "26800200 00000000" + zero8 + "61626364 00000000" + wireSeq + "00000000 c1c2c3c4 00000000"},
		"Asynchronous Message": {func(b *BHS) {
			a := b.NewAsync(AsyncConnectionDrop)
			a.SetLUN(lun)
			a.SetSequence(seq)
			a.SetVCode(0xB2)
			a.SetParams(0xB3B4, 0xC1C2, 0xC3C4)
		}, "32800000 00000000" + wireLUN + none + "00000000" + wireSeq + "02b2b3b4 c1c2c3c4 00000000"},
		"Reject": {func(b *BHS) { r := b.NewReject(RejectProtocol); r.SetSequence(seq); r.SetDataSN(0xB1B2B3B4) }, "3f800400 00000000" + zero8 + none + "00000000" + wireSeq + "b1b2b3b4" + zero8},
	} {
		var b BHS
		for i := range b {
			b[i] = 0xEE
		}
		tt.make(&b)
		want, err := hex.DecodeString(strings.ReplaceAll(tt.want, " ", ""))
		if err != nil || len(want) != BHSLen {
			t.Fatalf("%s: %d bytes, %v", name, len(want), err)
		}
		if !bytes.Equal(b[:], want) {
			t.Errorf("%s:\n%x, want\n%x", name, b[:], want)
		}
	}
}

// What the views read, of a header each byte of which is another.
func TestPDUViews(t *testing.T) {
	var b BHS
	for i := range b {
		b[i] = byte(0xA0 + i)
	}
	b[1] = 0xFF
	for name, got := range map[string][2]uint32{
		"Attr":                        {uint32(b.SCSICommand().Attr()), 7},
		"EDTL":                        {b.SCSICommand().EDTL(), 0xB4B5B6B7},
		"residual flags":              {uint32(b.SCSIResponse().ResidualFlags()), 0x1E},
		"residual flags of Data-In":   {uint32(b.DataIn().ResidualFlags()), 0x06},
		"Response":                    {uint32(b.SCSIResponse().Response()), 0xA2},
		"Status":                      {uint32(b.SCSIResponse().Status()), 0xA3},
		"Status of Data-In":           {uint32(b.DataIn().Status()), 0xA3},
		"SNACK Tag":                   {b.SCSIResponse().SNACKTag(), 0xB4B5B6B7},
		"ExpDataSN":                   {b.SCSIResponse().ExpDataSN(), 0xC4C5C6C7},
		"bidirectional residual":      {b.SCSIResponse().BidiResidual(), 0xC8C9CACB},
		"residual":                    {b.SCSIResponse().Residual(), 0xCCCDCECF},
		"residual of Data-In":         {b.DataIn().Residual(), 0xCCCDCECF},
		"DataSN":                      {b.DataIn().DataSN(), 0xC4C5C6C7},
		"Buffer Offset":               {b.DataIn().Offset(), 0xC8C9CACB},
		"DataSN of Data-Out":          {b.DataOut().DataSN(), 0xC4C5C6C7},
		"Buffer Offset of Data-Out":   {b.DataOut().Offset(), 0xC8C9CACB},
		"R2TSN":                       {b.R2T().R2TSN(), 0xC4C5C6C7},
		"Buffer Offset of R2T":        {b.R2T().Offset(), 0xC8C9CACB},
		"Desired Data Length":         {b.R2T().Desired(), 0xCCCDCECF},
		"type of SNACK":               {uint32(b.SNACK().Type()), 0x0F},
		"BegRun":                      {b.SNACK().BegRun(), 0xC8C9CACB},
		"RunLength":                   {b.SNACK().RunLength(), 0xCCCDCECF},
		"Function":                    {uint32(b.TaskRequest().Function()), 0x7F},
		"Referenced Task Tag":         {b.TaskRequest().RefTask(), 0xB4B5B6B7},
		"RefCmdSN":                    {b.TaskRequest().RefCmdSN(), 0xC0C1C2C3},
		"ExpDataSN of a reassignment": {b.TaskRequest().ExpDataSN(), 0xC4C5C6C7},
		"Additional Response":         {b.TaskResponse().Additional(), 0xA8A9AA},
		"Reason of Logout":            {uint32(b.LogoutRequest().Reason()), 0x7F},
		"CID":                         {uint32(b.LogoutRequest().CID()), 0xB4B5},
		"Time2Wait":                   {uint32(b.LogoutResponse().Time2Wait()), 0xC8C9},
		"Time2Retain":                 {uint32(b.LogoutResponse().Time2Retain()), 0xCACB},
		"AsyncEvent":                  {uint32(b.Async().Event()), 0xC4},
		"AsyncVCode":                  {uint32(b.Async().VCode()), 0xC5},
		"Reason of Reject":            {uint32(b.Reject().Reason()), 0xA2},
		"DataSN of Reject":            {b.Reject().DataSN(), 0xC4C5C6C7},
	} {
		if got[0] != got[1] {
			t.Errorf("%s: %#x, want %#x", name, got[0], got[1])
		}
	}
	if p1, p2, p3 := b.Async().Params(); p1 != 0xC6C7 || p2 != 0xC8C9 || p3 != 0xCACB {
		t.Errorf("parameters %#x %#x %#x", p1, p2, p3)
	}
	for flag, set := range map[byte]func() []bool{
		0x80: func() []bool { return []bool{b.SCSICommand().Final(), b.DataOut().Final(), b.Text().Final()} },
		0x40: func() []bool { return []bool{b.SCSICommand().Read(), b.DataIn().Acknowledge(), b.Text().Continue()} },
		0x20: func() []bool { return []bool{b.SCSICommand().Write()} },
		0x01: func() []bool { return []bool{b.DataIn().HasStatus()} },
	} {
		for _, on := range []bool{true, false} {
			if b[1] = flag; !on {
				b[1] = ^flag
			}
			for i, got := range set() {
				if got != on {
					t.Errorf("flag %02xh in %02xh: view %d says %v", flag, b[1], i, got)
				}
			}
		}
	}
}

// The letters and digits of a name have neighbours that are none (RFC 7143 §4.2.7.1).
func TestNameCharacters(t *testing.T) {
	for c := range rune(0x80) {
		ok := strings.ContainsRune("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-.:", c)
		if err := CheckName("iqn.2026-11.test:" + string(c)); (err == nil) != ok {
			t.Errorf("%q: %v", c, err)
		}
		ok = strings.ContainsRune("abcdefABCDEF0123456789", c)
		if err := CheckName("eui.000000000000000" + string(c)); (err == nil) != ok {
			t.Errorf("%q in eui.: %v", c, err)
		}
	}
}
