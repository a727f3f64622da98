package scsi

import (
	"encoding/binary"

	"softiser/internal/spc"

	"softiser/target/volume"
)

// cmdReportOpcodes is REPORT SUPPORTED OPERATION CODES (SPC-4 §6.35), from the
// command table itself.
func cmdReportOpcodes(t *Task) {
	option, op := t.CDB[2]&7, spc.Opcode(t.CDB[3])
	rctd := t.CDB[2]&0x80 != 0
	sa := binary.BigEndian.Uint16(t.CDB[4:])
	alloc := binary.BigEndian.Uint32(t.CDB[6:])
	b := t.data.get(volume.BufferSizes[0])[:0]
	if option == 0 {
		t.reply(allOpcodes(t, b, rctd), alloc)
		return
	}
	e := t.dev.table.byOp[op]
	family := e != nil && e.only == nil
	var c *command
	switch {
	case option > 3, option == 1 && family, option == 2 && e != nil && !family:
		t.badCDB(2)
		return
	case option == 3 && e != nil && !family && sa != 0:
		// Told as not supported: such a combination does not exist.
	case family:
		c = e.byAction[sa]
	case e != nil:
		c = e.only
	}
	if c != nil && c.offered != nil && !c.offered(t.lu) {
		c = nil
	}
	ctdp := byte(0)
	if rctd && c != nil {
		ctdp = 0x80
	}
	if c == nil {
		b = append(b, 0, 1, 0, 0) // not supported
	} else {
		b = append(b, 0, ctdp|3, 0, byte(len(c.usage))) // as the standard says
		b = append(b, c.usage...)
		if rctd {
			b = c.appendTimeouts(b)
		}
	}
	t.reply(b, alloc)
}

// allOpcodes adds the list of all commands: length (4), then for each {opcode,
// 0, service action (2), 0, CTDP(02h) SERVACTV(01h), CDB length (2)}.
func allOpcodes(t *Task, b []byte, rctd bool) []byte {
	b = append(b, 0, 0, 0, 0)
	rows := t.dev.table.rows
	for i := range rows {
		c := &rows[i]
		if c.offered != nil && !c.offered(t.lu) {
			continue
		}
		b = append(b, byte(c.op), 0)
		b = binary.BigEndian.AppendUint16(b, c.sa)
		flags := byte(0)
		if rctd {
			flags |= 2
		}
		if c.hasSA {
			flags |= 1
		}
		b = append(b, 0, flags, 0, byte(len(c.usage)))
		if rctd {
			b = c.appendTimeouts(b)
		}
	}
	binary.BigEndian.PutUint32(b, uint32(len(b)-4))
	return b
}

// appendTimeouts adds a command timeouts descriptor: length (2) = 10, reserved,
// command specific, nominal (4) and recommended (4) time in seconds.
func (c *command) appendTimeouts(b []byte) []byte {
	b = append(b, 0, 10, 0, 0)
	b = binary.BigEndian.AppendUint32(b, 0)
	return binary.BigEndian.AppendUint32(b, uint32(c.timeout))
}

// cmdReportTMF is REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS (SPC-4 §6.36): ABORT
// TASK, ABORT TASK SET, CLEAR TASK SET, LOGICAL UNIT RESET, TARGET RESET; QUERY TASK, and in
// byte 1 QUERY ASYNCHRONOUS EVENT, QUERY TASK SET, I_T NEXUS RESET where the transport
// has them.
func cmdReportTMF(t *Task) {
	b := append(t.data.get(16)[:0], 0xDA, 0, 0, 0)
	if t.Nexus.queries {
		b[0], b[1] = 0xDE, 0x07
	}
	if t.CDB[2]&0x80 != 0 { // REPD: with (unset) time-outs
		b[3] = 12
		b = append(b, make([]byte, 12)...)
	}
	t.reply(b, binary.BigEndian.Uint32(t.CDB[6:]))
}

// cmdReportGroups is REPORT TARGET PORT GROUPS (SPC-4 §6.37), the states being those
// for the addressed unit:
//
//	+--+------------------------------------------------------+
//	| 0| PREF(80h) | access state                             |
//	| 1| supported states: T O U S AN AO                      |
//	| 2| group identifier (2)                                 |
//	| 5| status: 0 never changed, 1 explicitly, 2 implicitly  |
//	| 7| number of ports, then for each 0 (2), identifier (2) |
//	+--+------------------------------------------------------+
func cmdReportGroups(t *Task) {
	b := t.data.get(volume.BufferSizes[0])[:0]
	b = append(b, 0, 0, 0, 0)
	switch t.CDB[1] >> 5 {
	case 0:
	case 1: // extended header: format 1, implicit transition time not given
		b = append(b, 0x10, 0, 0, 0)
	default:
		t.badCDB(1)
		return
	}
	for _, g := range t.dev.alua.groups {
		p := &t.lu.paths[g.index]
		st := byte(p.state.Load())
		if g.preferred {
			st |= 0x80
		}
		b = appendGroup(b, st, byte(p.cause.Load()), g.id, g.ports)
	}
	// Of groups on other nodes one thing is known: they are on standby as long as the unit is
	// active here. Otherwise they are left out, because initiators believe what one path says
	// of the others (Linux' scsi_dh_alua does), and the other one may be active.
	if t.lu.vol.Moves() && t.lu.gates()&volume.Closed == 0 {
		for _, g := range t.dev.alua.remote {
			b = appendGroup(b, byte(Standby), 2, g.ID, g.Ports)
		}
	}
	binary.BigEndian.PutUint32(b, uint32(len(b)-4))
	t.reply(b, binary.BigEndian.Uint32(t.CDB[6:]))
}

// appendGroup appends the descriptor of a target port group (SPC-4 §6.37): all states but
// logical block dependent are supported.
func appendGroup(b []byte, state, cause byte, id uint16, ports []uint16) []byte {
	b = append(b, state, 0xCF)
	b = binary.BigEndian.AppendUint16(b, id)
	b = append(b, 0, cause, 0, byte(len(ports)))
	for _, port := range ports {
		b = binary.BigEndian.AppendUint16(append(b, 0, 0), port)
	}
	return b
}

// cmdSetGroups is SET TARGET PORT GROUPS (SPC-4 §6.45): reserved (4), then for each
// group {state, 0, identifier (2)}. It concerns the addressed unit alone.
func cmdSetGroups(t *Task) {
	n := binary.BigEndian.Uint32(t.CDB[6:])
	if n == 0 {
		t.good()
		return
	}
	if n < 4 || n%4 != 0 || n > 4096 {
		t.illegal(spc.ASCParameterListLength)
		return
	}
	t.data.fetchParam(int(n), setGroups)
}

func setGroups(t *Task) {
	p := t.data.param()
	a := &t.dev.alua
	var set []*portGroup
	for i := 4; i < len(p); i += 4 {
		g := a.group(binary.BigEndian.Uint16(p[i+2:]))
		if g == nil {
			t.badParam(i + 2)
			return
		}
		if !settable(AccessState(p[i] & 0xF)) {
			t.badParam(i)
			return
		}
		set = append(set, g)
	}
	for i, g := range set {
		t.lu.setPath(g, AccessState(p[4+4*i]&0xF), 1, t.Nexus)
	}
	t.good()
}

// cmdReceiveDiagnostic is RECEIVE DIAGNOSTIC RESULTS (SPC-4 §6.26): page 00h lists
// itself.
func cmdReceiveDiagnostic(t *Task) {
	if t.CDB[1]&1 != 0 && t.CDB[2] != 0 {
		t.badCDB(2)
		return
	}
	b := append(t.data.get(8)[:0], 0, 0, 0, 1, 0)
	t.reply(b, uint32(binary.BigEndian.Uint16(t.CDB[3:])))
}

// cmdReadDefects is READ DEFECT DATA(10) and (12) (SBC-3 §5.17, §5.18): the list asked for,
// which is empty.
func cmdReadDefects(t *Task) {
	b := t.data.get(8)[:0]
	if len(t.CDB) == 10 {
		b = append(b, 0, t.CDB[2]&0x1F, 0, 0)
		t.reply(b, uint32(binary.BigEndian.Uint16(t.CDB[7:])))
		return
	}
	b = append(b, 0, t.CDB[1]&0x1F, 0, 0, 0, 0, 0, 0)
	t.reply(b, binary.BigEndian.Uint32(t.CDB[6:]))
}
