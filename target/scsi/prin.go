package scsi

import (
	"encoding/binary"
	"sort"

	spc "softiser/internal/scsi"
)

// sortedRegs returns the registrations in a stable order.
func (r *reservations) sortedRegs() []regKey {
	ks := make([]regKey, 0, len(r.regs))
	for k := range r.regs {
		ks = append(ks, k)
	}
	sort.Slice(ks, func(i, j int) bool {
		if ks[i].Port != ks[j].Port {
			return ks[i].Port < ks[j].Port
		}
		return ks[i].Rel < ks[j].Rel
	})
	return ks
}

// cmdPersistIn is PERSISTENT RESERVE IN (SPC-4 §6.14). All its answers but REPORT
// CAPABILITIES begin with the generation and the length of what follows.
func cmdPersistIn(t *Task) {
	alloc := uint32(binary.BigEndian.Uint16(t.CDB[7:]))
	r := t.lu.pr.Load()
	be := binary.BigEndian
	b := t.getBuf(bufClasses[0])[:0]
	if t.CDB[1]&0x1F == spc.SAPrinCapabilities {
		t.reply(t.lu.prCapabilities(b), alloc)
		return
	}
	b = be.AppendUint32(b, r.gen)
	b = append(b, 0, 0, 0, 0)
	switch t.CDB[1] & 0x1F {
	case spc.SAPrinReadKeys:
		for _, k := range r.sortedRegs() {
			b = be.AppendUint64(b, r.regs[k].Key)
		}
	case spc.SAPrinReadRes:
		if r.typ != spc.PRNone {
			key := uint64(0) // all registrants hold it: no single key
			if !r.typ.AllRegistrants() {
				key = r.regs[r.holder].Key
			}
			b = be.AppendUint64(b, key)
			b = append(b, 0, 0, 0, 0, 0, byte(r.typ), 0, 0)
		}
	case spc.SAPrinFullStatus:
		for _, k := range r.sortedRegs() {
			b = r.appendFullStatus(b, k)
		}
	}
	be.PutUint32(b[4:], uint32(len(b)-8))
	t.reply(b, alloc)
}

// appendFullStatus adds one descriptor of READ FULL STATUS:
//
//	+--+-------------------------------------------+
//	| 0| reservation key (8)                       |
//	|12| ALL_TG_PT(02h) R_HOLDER(01h)              |
//	|13| scope (4 bits) | type (4 bits)            |
//	|18| relative target port (2)                  |
//	|20| length (4), TransportID                   |
//	+--+-------------------------------------------+
func (r *reservations) appendFullStatus(b []byte, k regKey) []byte {
	reg := r.regs[k]
	i := len(b)
	b = append(b, make([]byte, 24)...)
	binary.BigEndian.PutUint64(b[i:], reg.Key)
	if reg.AllPorts {
		b[i+12] |= 2
	}
	if r.holds(k) {
		b[i+12] |= 1
		b[i+13] = byte(r.typ)
	}
	binary.BigEndian.PutUint16(b[i+18:], k.Rel)
	at := len(b)
	b = spc.AppendTransportID(b, k.Port)
	binary.BigEndian.PutUint32(b[i+20:], uint32(len(b)-at))
	return b
}

// prCapabilities is REPORT CAPABILITIES: CRH, SIP_C, ATP_C, and PTPL_C where
// there is somewhere to keep state; all six types.
func (lu *LU) prCapabilities(b []byte) []byte {
	c, m := byte(0x1C), byte(0x80)
	if lu.canSave() {
		c |= 0x01
		if lu.pr.Load().aptpl {
			m |= 0x01
		}
	}
	return append(b, 0, 8, c, m, 0xEA, 0x01, 0, 0)
}
