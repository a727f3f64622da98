package scsi

import (
	"encoding/binary"
	"sync/atomic"

	spc "softiser/internal/scsi"
)

// Values of QERR.
const (
	qerrContinue   = 0 // a CHECK CONDITION ends its own command only
	qerrAbortAll   = 1 // it aborts the whole task set
	qerrAbortNexus = 3 // it aborts the tasks of the same nexus
)

// modes are the changeable mode parameters of a logical unit, shared by all
// initiators. Commands read them without a lock; changes are under LU.prMu.
type modes struct {
	wce    atomic.Bool // write cache enabled: without it every write is durable before its status
	swp    atomic.Bool // software write protect; mirrored in the gate
	dsense atomic.Bool // descriptor sense
	tas    atomic.Bool // TASK ABORTED status for tasks that another initiator aborted
	qerr   atomic.Uint32

	lu    *LU
	saved atomic.Pointer[modeValues] // what a reset returns to
	def   modeValues                 // defaults
}

// modeValues is a set of mode parameters as it is saved.
type modeValues struct {
	WCE    bool   `json:"wce"`
	SWP    bool   `json:"swp"`
	DSense bool   `json:"d_sense"`
	TAS    bool   `json:"tas"`
	QERR   uint32 `json:"qerr"`
}

func (m *modes) init(lu *LU) {
	m.lu = lu
	m.def = modeValues{WCE: lu.geo().info.WriteCache}
	m.saved.Store(&m.def)
	m.set(m.def)
}

func (m *modes) restore() { m.set(*m.saved.Load()) }

func (m *modes) values() modeValues {
	return modeValues{m.wce.Load(), m.swp.Load(), m.dsense.Load(), m.tas.Load(), m.qerr.Load()}
}

func (m *modes) set(v modeValues) {
	m.wce.Store(v.WCE)
	m.swp.Store(v.SWP)
	m.dsense.Store(v.DSense)
	m.tas.Store(v.TAS)
	m.qerr.Store(v.QERR)
	m.lu.setGate(gateSWP, v.SWP)
}

// Page control values of MODE SENSE.
const (
	pcCurrent    = 0
	pcChangeable = 1
	pcDefault    = 2
	pcSaved      = 3
)

// modePage is a mode page: append adds the whole page with the given values;
// apply takes the values out of a page that a MODE SELECT sent, and check has
// made sure that nothing else in it differs.
type modePage struct {
	code   byte
	append func(lu *LU, b []byte, v modeValues) []byte
	apply  func(p []byte, v *modeValues)
}

var modePages = []modePage{
	{0x01, appendRecoveryPage, nil},
	{0x08, appendCachingPage, func(p []byte, v *modeValues) { v.WCE = p[2]&0x04 != 0 }},
	{0x0A, appendControlPage, func(p []byte, v *modeValues) {
		v.DSense = p[2]&0x04 != 0
		v.QERR = uint32(p[3] >> 1 & 3)
		v.SWP = p[4]&0x08 != 0
		v.TAS = p[5]&0x40 != 0
	}},
	{0x1C, appendExceptionsPage, nil},
}

// appendRecoveryPage: read-write error recovery (SBC-3 §6.5.8), all zero: errors
// are reported as they come, AWRE and ARRE mean nothing here.
func appendRecoveryPage(_ *LU, b []byte, _ modeValues) []byte {
	return append(append(b, 0x01, 0x0A), make([]byte, 10)...)
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

// changeable returns the mask of a page: what MODE SELECT may change.
func (p *modePage) changeable(lu *LU, b []byte) []byte {
	i := len(b)
	b = p.append(lu, b, modeValues{})
	clear(b[i+2:])
	switch p.code {
	case 0x08:
		if lu.geo().info.WriteCache {
			b[i+2] = 0x04
		}
	case 0x0A:
		b[i+2], b[i+3], b[i+4], b[i+5] = 0x04, 0x06, 0x08, 0x40
	}
	return b
}

// cmdModeSense answers MODE SENSE(6) and (10) (SPC-4 §6.11).
func cmdModeSense(t *Task) {
	lu, cdb := t.lu, t.CDB
	long := len(cdb) == 10
	pc, page, subpage := cdb[2]>>6, cdb[2]&0x3F, cdb[3]
	if pc == pcSaved && !lu.canSave() {
		t.illegal(spc.ASCSavingNotSupported)
		return
	}
	if subpage != 0 && !(page == 0x3F && subpage == 0xFF) {
		t.badCDB(3)
		return
	}
	dev := byte(0x10) // DPOFUA
	if lu.gate.Load()&(gateReadOnly|gateSWP) != 0 {
		dev |= 0x80 // WP
	}
	b := t.getBuf(512)[:0]
	header := 4
	if long {
		header = 8
	}
	b = append(b, make([]byte, header)...)
	bd := 0
	if cdb[1]&0x08 == 0 && lu.vol != nil { // DBD
		g := lu.geo()
		llba := long && cdb[1]&0x10 != 0
		b, bd = appendBlockDescriptor(b, g, llba)
		if llba {
			b[4] = 1
		}
	}
	n := len(b)
	for i := range modePages {
		p := &modePages[i]
		if page != 0x3F && p.code != page {
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
		if lu.canSave() && p.apply != nil {
			b[at] |= 0x80 // PS
		}
	}
	if len(b) == n {
		t.badCDB(2)
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

// appendBlockDescriptor adds the mode parameter block descriptor (SBC-3 §6.5.2),
// short or with a 64-bit block count.
func appendBlockDescriptor(b []byte, g *geometry, llba bool) ([]byte, int) {
	if llba {
		b = binary.BigEndian.AppendUint64(b, g.blocks)
		b = append(b, 0, 0, 0, 0)
		return binary.BigEndian.AppendUint32(b, uint32(g.info.BlockSize)), 16
	}
	b = binary.BigEndian.AppendUint32(b, uint32(min(g.blocks, 0xFFFFFFFF)))
	return append(b, 0, byte(g.info.BlockSize>>16), byte(g.info.BlockSize>>8), byte(g.info.BlockSize)), 8
}

// cmdModeSelect answers MODE SELECT(6) and (10) (SPC-4 §6.9).
func cmdModeSelect(t *Task) {
	n := int(t.CDB[4])
	if len(t.CDB) == 10 {
		n = int(binary.BigEndian.Uint16(t.CDB[7:]))
	}
	if t.CDB[1]&0x10 == 0 || t.CDB[1]&0x01 != 0 && !t.lu.canSave() {
		t.badCDB(1) // PF must be set; SP needs somewhere to save
		return
	}
	if n == 0 {
		t.good()
		return
	}
	t.fetchParam(n, func(t *Task) { t.toWorker(modeSelectJob) })
}

// modeSelectJob checks the whole list, then applies it.
func modeSelectJob(t *Task) {
	lu, p := t.lu, t.param()
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
	lu.prMu.Lock()
	defer lu.prMu.Unlock()
	old := lu.modes.values()
	v := old
	at := header + bd
	for at < len(p) {
		field, ok := lu.takePage(p[at:], &v)
		if !ok {
			if field < 0 {
				t.illegal(spc.ASCParameterListLength)
			} else {
				t.badParam(at + field)
			}
			return
		}
		at += 2 + int(p[at+1])
	}
	if t.CDB[1]&0x01 != 0 {
		if err := lu.saveModes(v); err != nil {
			t.fail(spc.KeyHardware, spc.ASCInternalFailure)
			return
		}
	}
	lu.modes.set(v)
	if old.WCE && !v.WCE && lu.vol != nil {
		// What the cache held must not stay volatile when nothing else is.
		if err := lu.vol.Flush(); err != nil {
			t.failErr(err, writing)
			return
		}
	}
	if v != old {
		lu.attention(spc.ASCModeChanged, func(n *Nexus) bool { return n != t.Nexus })
	}
	t.good()
}

// takePage checks one page of a MODE SELECT list and takes its values. A page
// that changes what cannot change is refused, with the offset of the byte; -1
// stands for a page that is cut short.
func (lu *LU) takePage(p []byte, v *modeValues) (field int, ok bool) {
	if len(p) < 2 || len(p) < 2+int(p[1]) {
		return -1, false
	}
	for i := range modePages {
		m := &modePages[i]
		if m.code != p[0]&0x3F || p[0]&0x40 != 0 {
			continue
		}
		var cur, mask [32]byte
		c := m.append(lu, cur[:0], *v)
		k := m.changeable(lu, mask[:0])
		if int(p[1]) != len(c)-2 {
			return 1, false
		}
		for j := 2; j < len(c); j++ {
			if (p[j]^c[j])&^k[j] != 0 {
				return j, false
			}
		}
		if m.apply != nil {
			m.apply(p, v)
		}
		if v.QERR == 2 { // reserved
			return 3, false
		}
		return 0, true
	}
	return 0, false
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
		return (n == 0 || n == g.blocks || n == 1<<64-1) && binary.BigEndian.Uint32(d[12:]) == uint32(g.info.BlockSize)
	}
	if len(d) != 8 {
		return false
	}
	n := uint64(binary.BigEndian.Uint32(d))
	size := uint32(d[5])<<16 | uint32(d[6])<<8 | uint32(d[7])
	return (n == 0 || n == min(g.blocks, 0xFFFFFFFF) || n == 0xFFFFFFFF) && size == uint32(g.info.BlockSize)
}
