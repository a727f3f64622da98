package scsi

import (
	"encoding/binary"
	"fmt"

	"softiser/internal/spc"

	"softiser/target/volume"
)

// cmdInquiry answers INQUIRY (SPC-4 §6.6): standard data, or a VPD page with
// EVPD set.
func cmdInquiry(t *Task) {
	alloc := uint32(binary.BigEndian.Uint16(t.CDB[3:]))
	evpd, page := t.CDB[1]&1 != 0, t.CDB[2]
	switch {
	case t.CDB[1]&2 != 0: // CMDDT is obsolete
		t.badCDB(1)
	case !evpd && page != 0:
		t.badCDB(2)
	case !evpd:
		q := t.lu.inquiryData()
		t.data.get(spc.InquiryLen)
		t.reply(q.AppendInquiryData(t.data.buf[:0]), alloc)
	default:
		for _, v := range vpdPages {
			if v.code == page && (v.offered == nil || v.offered(t.lu)) {
				b := t.data.get(volume.BufferSizes[0])
				b = v.append(t, append(b[:0], 0, page, 0, 0))
				binary.BigEndian.PutUint16(b[2:], uint16(len(b)-4))
				t.reply(b, alloc)
				return
			}
		}
		t.badCDB(2)
	}
}

func (lu *LU) inquiryData() spc.InquiryData {
	return spc.InquiryData{
		Removable: lu.cfg.Removable, Version: 6, HiSup: true, TPGS: lu.dev.tpgs(), ThirdParty: true,
		MultiPort: true, Queueing: true,
		Vendor: lu.cfg.Vendor, Product: lu.cfg.Product, Revision: lu.cfg.Revision,
		Epoch:       lu.vol.Epoch(),
		Descriptors: []uint16{spc.VersionSAM5, spc.VersionISCSI, spc.VersionSPC4, spc.VersionSBC3},
	}
}

// inquiryNoLU tells that no logical unit is behind a LUN: peripheral qualifier
// 3, type 1Fh. The REPORT LUNS well-known unit says what it is, type 1Eh.
func inquiryNoLU(t *Task) {
	if t.CDB[1]&3 != 0 || t.CDB[2] != 0 {
		t.badCDB(1)
		return
	}
	q := spc.InquiryData{Qualifier: 3, Type: 0x1F, Version: 6, Vendor: "SOFTISER", Product: "NO LOGICAL UNIT", Revision: "1.0"}
	if t.LUN == spc.WellKnownReportLUNs {
		q.Qualifier, q.Type, q.Product = 0, 0x1E, "REPORT LUNS"
	}
	t.data.get(spc.InquiryLen)
	t.reply(q.AppendInquiryData(t.data.buf[:0]), uint32(binary.BigEndian.Uint16(t.CDB[3:])))
}

// vpdPages lists the pages in ascending order; append adds the payload behind
// the 4-byte header.
var vpdPages []vpdPage

type vpdPage struct {
	code    byte
	offered func(*LU) bool
	append  func(t *Task, b []byte) []byte
}

func init() {
	// In init, because page 00h lists the table itself.
	vpdPages = []vpdPage{
		{spc.VPDSupported, nil, vpdSupported},
		{spc.VPDSerial, nil, func(t *Task, b []byte) []byte { return append(b, t.lu.vol.Identity().Serial...) }},
		{spc.VPDIdentification, nil, vpdIdentification},
		{spc.VPDExtended, nil, vpdExtended},
		{spc.VPDThirdPartyCopy, nil, vpdThirdPartyCopy},
		{spc.VPDBlockLimits, nil, func(t *Task, b []byte) []byte { l := t.lu.limits(); return l.Append(b) }},
		{spc.VPDBlockDevice, nil, vpdBlockDevice},
		{spc.VPDProvisioning, nil, func(t *Task, b []byte) []byte { p := t.lu.provisioning(); return p.Append(b) }},
	}
}

func vpdSupported(t *Task, b []byte) []byte {
	for _, v := range vpdPages {
		if v.offered == nil || v.offered(t.lu) {
			b = append(b, v.code)
		}
	}
	return b
}

// vpdIdentification: the logical unit by NAA, EUI-64, T10 vendor id and name;
// the port by name, relative identifier and group; the device by name.
func vpdIdentification(t *Task, b []byte) []byte {
	lu, n := t.lu, t.Nexus
	add := func(d spc.Designator) { b = d.Append(b) }
	var vendor [8]byte
	copy(vendor[:], fmt.Sprintf("%-8.8s", lu.cfg.Vendor))
	add(spc.Designator{CodeSet: spc.CodeSetBinary, Type: spc.DesignatorNAA, ID: lu.vol.Identity().NAA})
	add(spc.Designator{CodeSet: spc.CodeSetBinary, Type: spc.DesignatorEUI64, ID: lu.vol.Identity().EUI})
	add(spc.Designator{CodeSet: spc.CodeSetASCII, Type: spc.DesignatorVendor, ID: append(vendor[:], lu.vol.Identity().Serial...)})
	port := func(typ byte, v uint16) {
		add(spc.Designator{CodeSet: spc.CodeSetBinary, Association: spc.AssocPort, Type: typ, Protocol: spc.ProtocolISCSI,
			ID: binary.BigEndian.AppendUint16([]byte{0, 0}, v)})
	}
	port(spc.DesignatorRelPort, n.relPort)
	port(spc.DesignatorPortGroup, n.group.id)
	add(spc.Designator{CodeSet: spc.CodeSetUTF8, Association: spc.AssocPort, Type: spc.DesignatorName, Protocol: spc.ProtocolISCSI,
		ID: spc.NameString(fmt.Sprintf("%s,t,0x%04x", t.dev.cfg.Name, n.group.id))})
	add(spc.Designator{CodeSet: spc.CodeSetUTF8, Association: spc.AssocDevice, Type: spc.DesignatorName, Protocol: spc.ProtocolISCSI,
		ID: spc.NameString(t.dev.cfg.Name)})
	return b
}

// vpdExtended: no protection information; HEADSUP, ORDSUP, SIMPSUP; V_SUP (a
// volatile cache) as the volume has.
func vpdExtended(t *Task, b []byte) []byte {
	i := len(b)
	b = append(b, make([]byte, 60)...)
	b[i+1] = 0x07
	if t.lu.geo().Info.WriteCache {
		b[i+2] = 0x01
	}
	return b
}

func vpdBlockDevice(t *Task, b []byte) []byte {
	d := spc.BlockDevice{RotationRate: 1, FUAB: true}
	if t.lu.geo().Info.Discard {
		d.WABEREQ = 1 // blocks read as zeroes after SANITIZE BLOCK ERASE
	}
	if t.lu.geo().Info.Rotational {
		d.RotationRate = 7200
	}
	return d.Append(b)
}

// Limits that the block limits page tells and the commands keep.
const (
	maxCompareBlocks = 255
	maxUnmapDescr    = 256
	maxUnmapBlocks   = 1 << 20
	// maxWriteSame keeps a WRITE SAME, which cannot be interrupted by a slow
	// peer but can by nothing else either, at a few tenths of a second.
	maxWriteSame    = 65535
	optimalTransfer = 1 << 20
)

func (lu *LU) limits() spc.BlockLimits {
	g := lu.geo()
	l := spc.BlockLimits{
		WSNonZero:          true,
		MaxCompareAndWrite: uint8(lu.maxCompare()),
		OptimalGranularity: uint16(max(g.Info.PhysBlockSize>>g.Shift, 1)),
		MaxTransfer:        uint32(lu.cfg.MaxTransfer >> g.Shift),
		OptimalTransfer:    uint32(min(optimalTransfer, lu.cfg.MaxTransfer) >> g.Shift),
		MaxWriteSame:       maxWriteSame,
	}
	if offersAtomic(lu) {
		l.MaxAtomic = volume.MaxAtomicBytes >> g.Shift
		l.AtomicAlignment, l.AtomicGranularity = 1, 1
	}
	if g.Info.Discard {
		l.MaxUnmapBlocks = maxUnmapBlocks
		l.MaxUnmapDescriptors = maxUnmapDescr
		if a := g.Info.DiscardAlign; a > 0 {
			l.UnmapGranularity = uint32(max(a>>g.Shift, 1))
			l.UnmapAlignmentValid = true
		}
	}
	return l
}

func (lu *LU) provisioning() spc.Provisioning {
	i := lu.geo().Info
	p := spc.Provisioning{Threshold: lu.vol.Space.Exponent(), Unmap: i.Discard, WriteSame16: i.Discard, WriteSame10: i.Discard, ReadZeroes: i.Discard && i.ZeroesOnTrim}
	switch {
	case !i.Discard: // and so LBPME is 0, which neither goes with (SBC-3 §6.6.6)
	case i.Thin:
		p.Type = 2
	default:
		p.Type = 1
	}
	return p
}
