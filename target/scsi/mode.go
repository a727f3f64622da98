package scsi

import (
	"encoding/binary"
	"slices"

	"softiser/internal/spc"
	"softiser/target/volume"
)

// Values of QERR.
const (
	qerrContinue   = 0 // a CHECK CONDITION ends its own command only
	qerrAbortAll   = 1 // it aborts the whole task set
	qerrAbortNexus = 3 // it aborts the tasks of the same nexus
)

// Page control values of MODE SENSE.
const (
	pcCurrent    = 0
	pcChangeable = 1
	pcDefault    = 2
	pcSaved      = 3
)

// modePage is a mode page: append adds the whole page with the given values;
// mask marks the bits of a page of zeroes that MODE SELECT may change; apply
// takes the values out of a page that a MODE SELECT sent, in which nothing else
// differs from what is, and returns the offset of a field whose value makes no
// sense, or -1.
type modePage struct {
	code, sub byte
	offered   func(*LU) bool // nil: every unit has it
	append    func(lu *LU, b []byte, v modeValues) []byte
	mask      func(lu *LU, b []byte)
	apply     func(p []byte, v *modeValues) int
}

// modePages are in the order in which they are returned (SPC-4 §6.11.1): ascending
// codes and, for each, ascending subpage codes.
var modePages = []modePage{
	{code: 0x01, append: appendRecoveryPage,
		mask: func(lu *LU, b []byte) {
			if metersSpace(lu) {
				b[7] = 0x80
			}
		},
		apply: func(p []byte, v *modeValues) int {
			v.LBPERE = p[7]&0x80 != 0
			return -1
		}},
	{code: 0x08, append: appendCachingPage,
		mask: func(lu *LU, b []byte) {
			if lu.geo().Info.WriteCache {
				b[2] = 0x04
			}
		},
		apply: func(p []byte, v *modeValues) int {
			v.WCE = p[2]&0x04 != 0
			return -1
		}},
	{code: 0x0A, append: appendControlPage,
		mask: func(_ *LU, b []byte) { b[2], b[3], b[4], b[5] = 0x04, 0x06, 0x08, 0x40 },
		apply: func(p []byte, v *modeValues) int {
			v.DSense = p[2]&0x04 != 0
			v.QERR = uint32(p[3] >> 1 & 3)
			v.SWP = p[4]&0x08 != 0
			v.TAS = p[5]&0x40 != 0
			if v.QERR == 2 { // reserved
				return 3
			}
			return -1
		}},
	{code: 0x1C, append: appendExceptionsPage},
	{code: 0x1C, sub: 0x02, offered: metersSpace, append: appendProvisioningPage,
		mask: func(_ *LU, b []byte) { maskProvisioningPage(b) }, apply: applyProvisioningPage},
}

// header is how many bytes come before the parameters of the page.
func (p *modePage) header() int {
	if p.sub != 0 {
		return 4
	}
	return 2
}

// asked reports whether MODE SENSE of page and subpage is to return p: subpage
// FFh stands for all of a page, page 3Fh for all pages.
func (p *modePage) asked(lu *LU, page, sub byte) bool {
	if page == 0x3F && sub != 0 && sub != 0xFF {
		return false
	}
	return (p.offered == nil || p.offered(lu)) && (page == 0x3F || page == p.code) && (sub == 0xFF || sub == p.sub)
}

// appendRecoveryPage: read-write error recovery (SBC-4 §6.5.10), zero but for LBPERE:
// errors are reported as they come, AWRE and ARRE mean nothing here.
func appendRecoveryPage(_ *LU, b []byte, v modeValues) []byte {
	i := len(b)
	b = append(append(b, 0x01, 0x0A), make([]byte, 10)...)
	if v.LBPERE {
		b[i+7] = 0x80
	}
	return b
}

// appendCachingPage (SBC-3 §6.5.5): WCE as it is; the read cache is on.
func appendCachingPage(_ *LU, b []byte, v modeValues) []byte {
	i := len(b)
	b = append(append(b, 0x08, 0x12), make([]byte, 18)...)
	if v.WCE {
		b[i+2] = 0x04
	}
	return b
}

// appendControlPage (SPC-4 §7.5.8): one task set for all nexuses (TST 0), no
// reordering promises beyond the task attributes (QAM 1 would promise that
// none are needed), UA_INTLCK 0.
func appendControlPage(_ *LU, b []byte, v modeValues) []byte {
	i := len(b)
	b = append(append(b, 0x0A, 0x0A), make([]byte, 10)...)
	if v.DSense {
		b[i+2] |= 0x04
	}
	b[i+3] = 0x10 | byte(v.QERR)<<1
	if v.SWP {
		b[i+4] |= 0x08
	}
	if v.TAS {
		b[i+5] |= 0x40
	}
	return b
}

// appendExceptionsPage: informational exceptions control (SPC-4 §7.5.11), MRIE 0:
// none are reported, because a volume predicts no failures.
func appendExceptionsPage(_ *LU, b []byte, _ modeValues) []byte {
	return append(append(b, 0x1C, 0x0A), make([]byte, 10)...)
}

// changeable adds the page with ones for what MODE SELECT may change.
func (p *modePage) changeable(lu *LU, b []byte) []byte {
	i := len(b)
	b = p.append(lu, b, modeValues{})
	clear(b[i+p.header():])
	if p.mask != nil {
		p.mask(lu, b[i:])
	}
	return b
}

// cmdModeSense answers MODE SENSE(6) and (10) (SPC-4 §6.11).
func cmdModeSense(t *Task) {
	lu, cdb := t.lu, t.CDB
	long := len(cdb) == 10
	pc, page, subpage := cdb[2]>>6, cdb[2]&0x3F, cdb[3]
	if pc == pcSaved && !lu.vol.Keeps() {
		t.illegal(spc.ASCSavingNotSupported)
		return
	}
	dev := byte(0x10) // DPOFUA
	if lu.gates()&volume.Protections != 0 {
		dev |= 0x80 // WP
	}
	b := t.data.get(512)[:0]
	header := 4
	if long {
		header = 8
	}
	b = append(b, make([]byte, header)...)
	bd := 0
	if cdb[1]&0x08 == 0 && lu.disk != nil { // DBD
		g := lu.geo()
		llba := long && cdb[1]&0x10 != 0
		b, bd = appendBlockDescriptor(b, g, llba)
		if llba {
			b[4] = 1
		}
	}
	n := len(b)
	if b = lu.appendModePages(b, pc, page, subpage); len(b) == n {
		field := 2
		if page == 0x3F || slices.ContainsFunc(modePages, func(p modePage) bool { return p.code == page }) {
			field = 3 // it is the subpage that is not there
		}
		t.badCDB(field)
		return
	}
	if long {
		binary.BigEndian.PutUint16(b, uint16(len(b)-2))
		b[3] = dev
		binary.BigEndian.PutUint16(b[6:], uint16(bd))
		t.reply(b, uint32(binary.BigEndian.Uint16(cdb[7:])))
		return
	}
	b[0], b[2], b[3] = byte(len(b)-1), dev, byte(bd)
	t.reply(b, uint32(cdb[4]))
}

// appendModePages adds the pages that are asked for, with the values that pc, the page control, says.
func (lu *LU) appendModePages(b []byte, pc, page, subpage byte) []byte {
	for i := range modePages {
		p := &modePages[i]
		if !p.asked(lu, page, subpage) {
			continue
		}
		at := len(b)
		switch pc {
		case pcCurrent:
			b = p.append(lu, b, lu.modes.values())
		case pcChangeable:
			b = p.changeable(lu, b)
		case pcDefault:
			b = p.append(lu, b, lu.modes.def)
		case pcSaved:
			b = p.append(lu, b, *lu.modes.saved.Load())
		}
		if lu.vol.Keeps() && p.apply != nil {
			b[at] |= 0x80 // PS
		}
	}
	return b
}

// appendBlockDescriptor adds the mode parameter block descriptor (SBC-3 §6.5.2),
// short or with a 64-bit block count.
func appendBlockDescriptor(b []byte, g *volume.Geometry, llba bool) ([]byte, int) {
	if llba {
		b = binary.BigEndian.AppendUint64(b, g.Blocks)
		b = append(b, 0, 0, 0, 0)
		return binary.BigEndian.AppendUint32(b, uint32(g.Info.BlockSize)), 16
	}
	b = binary.BigEndian.AppendUint32(b, uint32(min(g.Blocks, 0xFFFFFFFF)))
	return append(b, 0, byte(g.Info.BlockSize>>16), byte(g.Info.BlockSize>>8), byte(g.Info.BlockSize)), 8
}

// cmdModeSelect answers MODE SELECT(6) and (10) (SPC-4 §6.9).
func cmdModeSelect(t *Task) {
	n := int(t.CDB[4])
	if len(t.CDB) == 10 {
		n = int(binary.BigEndian.Uint16(t.CDB[7:]))
	}
	if t.CDB[1]&0x10 == 0 || t.CDB[1]&0x01 != 0 && !t.lu.vol.Keeps() {
		t.badCDB(1) // PF must be set; SP needs somewhere to save
		return
	}
	if n == 0 {
		t.good()
		return
	}
	t.data.fetchParam(n, func(t *Task) { t.toWorker(modeSelectJob) })
}

// modeSelectJob checks the whole list, then applies it.
func modeSelectJob(t *Task) {
	lu, p := t.lu, t.data.param()
	header, bd := 4, 0
	if len(t.CDB) == 10 {
		header = 8
	}
	if len(p) < header {
		t.illegal(spc.ASCParameterListLength)
		return
	}
	if header == 8 {
		bd = int(binary.BigEndian.Uint16(p[6:]))
	} else {
		bd = int(p[3])
	}
	if len(p) < header+bd {
		t.illegal(spc.ASCParameterListLength)
		return
	}
	if bd != 0 && !lu.sameBlocks(p[header:header+bd], header == 8 && p[4]&1 != 0) {
		t.badParam(header)
		return
	}
	lu.modes.mu.Lock()
	defer lu.modes.mu.Unlock()
	old := lu.modes.values()
	v := old
	at := header + bd
	for at < len(p) {
		n, field := lu.takePage(p[at:], &v)
		if n < 0 {
			t.illegal(spc.ASCParameterListLength)
			return
		}
		if field >= 0 {
			t.badParam(at + field)
			return
		}
		at += n
	}
	if t.CDB[1]&0x01 != 0 {
		if err := lu.modes.save(v); err != nil {
			t.failErr(err, volume.Writing)
			return
		}
	}
	lu.modes.set(v)
	if v != old {
		lu.everywhere(spc.ASCModeChanged, func(n *Nexus) bool { return n != t.Nexus })
	}
	if old.WCE && !v.WCE && lu.disk != nil {
		// What the cache held must not stay volatile when nothing else is.
		if err := lu.disk.Flush(); err != nil {
			t.failErr(err, volume.Writing)
			return
		}
	}
	t.good()
}

// takePage checks one page of a MODE SELECT list, of n bytes, and takes its
// values. A page that changes what cannot change, or to what makes no sense, is
// refused with the offset of the field, which is -1 otherwise; n of -1 stands for
// a page that is cut short.
func (lu *LU) takePage(p []byte, v *modeValues) (n, field int) {
	if len(p) < 2 {
		return -1, 0
	}
	sub := byte(0)
	n = 2 + int(p[1])
	if p[0]&0x40 != 0 { // SPF
		if len(p) < 4 {
			return -1, 0
		}
		sub, n = p[1], 4+int(binary.BigEndian.Uint16(p[2:]))
	}
	if len(p) < n {
		return -1, 0
	}
	for i := range modePages {
		m := &modePages[i]
		if m.code != p[0]&0x3F || m.sub != sub || p[0]&0x40 != 0 && sub == 0 || m.offered != nil && !m.offered(lu) {
			continue
		}
		var cur, mask [64]byte
		c := m.append(lu, cur[:0], *v)
		k := m.changeable(lu, mask[:0])
		if n != len(c) {
			return n, m.header() - 1
		}
		for j := m.header(); j < len(c); j++ {
			if (p[j]^c[j])&^k[j] != 0 {
				return n, j
			}
		}
		if m.apply == nil {
			return n, -1
		}
		return n, m.apply(p, v)
	}
	return n, 0
}

// sameBlocks reports whether a block descriptor asks for what is already so:
// the number of blocks (or 0, or all ones) and the block size.
func (lu *LU) sameBlocks(d []byte, llba bool) bool {
	g := lu.geo()
	if llba {
		if len(d) != 16 {
			return false
		}
		n := binary.BigEndian.Uint64(d)
		return (n == 0 || n == g.Blocks || n == 1<<64-1) && binary.BigEndian.Uint32(d[12:]) == uint32(g.Info.BlockSize)
	}
	if len(d) != 8 {
		return false
	}
	n := uint64(binary.BigEndian.Uint32(d))
	size := uint32(d[5])<<16 | uint32(d[6])<<8 | uint32(d[7])
	return (n == 0 || n == min(g.Blocks, 0xFFFFFFFF) || n == 0xFFFFFFFF) && size == uint32(g.Info.BlockSize)
}
