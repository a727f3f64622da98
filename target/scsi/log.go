package scsi

import (
	"encoding/binary"
	"time"

	"softiser/internal/spc"

	"softiser/target/volume"
)

// LOG SENSE and LOG SELECT (SPC-5 §6.8, §6.7). The pages hold what the unit really
// counts or finds out; temperatures, wear and the like are not made up. Nothing
// of it is saved: it begins anew with the target.
//
//	+--+----------------------------------------------------+
//	| 0| DS(80h)=1 SPF(40h) page code                       |
//	| 1| subpage code                                       |
//	| 2| length of the parameters (2)                       |
//	| 4| parameter code (2)                                 |
//	| 6| control: DU(80h) TSD(20h) ETC(10h) format (03h)    |
//	| 7| length of the value, and the value                 |
//	|  | the next parameter …                               |
//	+--+----------------------------------------------------+

// Parameter control bytes. TSD: the target does not save the value by itself.
const (
	logCounter = 0x20 // a bounded data counter; it has thresholds in theory, none here
	logList    = 0x23 // a binary list: no counter, so the page control field means nothing
)

// logPage is a log page with its parameters in ascending order.
type logPage struct {
	code    byte
	offered func(*LU) bool // nil: every unit has it
	append  func(lu *LU, l *logParams)
	reset   func(*LU) // back to the default values; nil: there is nothing to reset
}

// logPages are the pages with parameters, in ascending order; those that list
// the pages there are (00h, and subpage FFh of each) come on top.
var logPages = []logPage{
	{code: 0x02, append: appendWriteErrors, reset: func(lu *LU) { lu.vol.Counters.ResetErrors(volume.Writing) }},
	{code: 0x03, append: appendReadErrors, reset: func(lu *LU) { lu.vol.Counters.ResetErrors(volume.Reading) }},
	{code: 0x05, append: appendVerifyErrors, reset: func(lu *LU) { lu.vol.Counters.ResetErrors(volume.Verifying) }},
	{code: 0x0C, offered: metersSpace, append: appendSpaceLog},
	{code: 0x10, append: appendSelfTestLog},
	{code: 0x19, append: appendStatistics, reset: func(lu *LU) { lu.vol.Counters.ResetStatistics(lu.statisticsNow()) }},
	{code: 0x2F, append: appendExceptionsLog, reset: func(*LU) {}},
}

// has reports whether the unit has the page.
func (p *logPage) has(lu *LU) bool { return p.offered == nil || p.offered(lu) }

// cmdLogSense is LOG SENSE (SPC-5 §6.8).
func cmdLogSense(t *Task) {
	lu, page, sub := t.lu, t.CDB[2]&0x3F, t.CDB[3]
	alloc := uint32(binary.BigEndian.Uint16(t.CDB[7:]))
	l := logParams{pc: t.CDB[2] >> 6, from: binary.BigEndian.Uint16(t.CDB[5:])}
	if t.CDB[1]&3 != 0 {
		t.badCDB(1) // SP: nothing can be saved; PPC is obsolete
		return
	}
	l.b = append(t.data.get(volume.BufferSizes[0])[:0], 0, 0, 0, 0)
	if page == 0 || sub == 0xFF {
		supportedLogs(t, &l, page, sub, alloc)
		return
	}
	for i := range logPages {
		p := &logPages[i]
		if p.code != page || !p.has(lu) {
			continue
		}
		if sub != 0 {
			t.badCDB(3)
			return
		}
		p.append(lu, &l)
		switch {
		case l.bad:
			t.badCDB(2)
		case l.from > l.last:
			t.badCDB(5)
		default:
			l.b[0] = 0x80 | page
			binary.BigEndian.PutUint16(l.b[2:], uint16(len(l.b)-4))
			t.reply(l.b, alloc)
		}
		return
	}
	t.badCDB(2)
}

// supportedLogs answers with a list of pages: 00h/00h lists page codes, 00h/FFh
// pages and subpages, xxh/FFh those of page xxh (SPC-5 §7.3.17 to §7.3.19).
func supportedLogs(t *Task, l *logParams, page, sub byte, alloc uint32) {
	switch {
	case sub != 0 && sub != 0xFF:
		t.badCDB(3)
		return
	case l.from != 0:
		t.badCDB(5) // such a page has no parameters
		return
	}
	add := func(code byte) {
		switch {
		case sub == 0:
			l.b = append(l.b, code)
		case page == 0 || page == code:
			l.b = append(l.b, code, 0, code, 0xFF)
		}
	}
	add(0)
	for i := range logPages {
		if p := &logPages[i]; p.has(t.lu) {
			add(p.code)
		}
	}
	if len(l.b) == 4 {
		t.badCDB(2) // no such page
		return
	}
	l.b[0], l.b[1] = page, sub
	if sub != 0 {
		l.b[0] |= 0x40
	}
	binary.BigEndian.PutUint16(l.b[2:], uint16(len(l.b)-4))
	t.reply(l.b, alloc)
}

// cmdLogSelect is LOG SELECT (SPC-5 §6.7). Counters are put back to zero: with PCR,
// or by asking for default cumulative values. They cannot be set to anything else,
// nor saved.
func cmdLogSelect(t *Task) {
	n := int(binary.BigEndian.Uint16(t.CDB[7:]))
	pcr, sp := t.CDB[1]&2 != 0, t.CDB[1]&1 != 0
	pc, page, sub := t.CDB[2]>>6, t.CDB[2]&0x3F, t.CDB[3]
	switch {
	case sp:
		t.badCDB(1)
		return
	case n > 0 && pcr:
		t.badCDB(1)
		return
	case n > 0 && (page != 0 || sub != 0):
		t.badCDB(2) // the list names its pages itself
		return
	case n > 0:
		t.data.fetchParam(n, logSelect)
		return
	}
	found, reset := page == 0 && (sub == 0 || sub == 0xFF), false
	for i := range logPages {
		p := &logPages[i]
		if !p.has(t.lu) || page != 0 && p.code != page || sub != 0 && sub != 0xFF {
			continue
		}
		found = true
		if p.reset != nil {
			reset = true
			if pcr || pc == logDefault {
				p.reset(t.lu)
			}
		}
	}
	switch {
	case !found && sub != 0 && sub != 0xFF:
		t.badCDB(3)
	case !found, pcr && !reset:
		t.badCDB(2) // no such page, or nothing in it can be reset
	default:
		t.good()
	}
}

// logSelect refuses the parameter list of a LOG SELECT, at the first thing in it
// that asks for a change.
func logSelect(t *Task) {
	p := t.data.param()
	for at := 0; at < len(p); {
		h := p[at:]
		if len(h) < 4 || len(h) < 4+int(binary.BigEndian.Uint16(h[2:])) {
			t.illegal(spc.ASCParameterListLength)
			return
		}
		known := false
		for i := range logPages {
			known = known || logPages[i].code == h[0]&0x3F && logPages[i].has(t.lu)
		}
		switch n := int(binary.BigEndian.Uint16(h[2:])); {
		case !known:
			t.badParam(at)
			return
		case h[1] != 0:
			t.badParam(at + 1)
			return
		case n > 0:
			t.badParam(at + 4) // a value, and none can be set
			return
		}
		at += 4
	}
	t.good()
}

// The error counter pages (SPC-5 §7.3.8): bytes processed, and errors that nothing
// has corrected. A volume does not tell what it, or the disk below it, corrected.

func appendWriteErrors(lu *LU, l *logParams) { appendErrors(lu, l, volume.Writing) }

func appendReadErrors(lu *LU, l *logParams) { appendErrors(lu, l, volume.Reading) }

func appendVerifyErrors(lu *LU, l *logParams) { appendErrors(lu, l, volume.Verifying) }

func appendErrors(lu *LU, l *logParams, d volume.Direction) {
	bytes, errs := lu.vol.Counters.Medium(d)
	l.counter(0x0005, bytes)
	l.counter(0x0006, errs)
}

// appendSpaceLog is the Logical Block Provisioning page (SBC-4 §6.4.5): resource
// count (4), scope, reserved (3). Scope 2: not dedicated to the unit, as others take
// from the same pool.
func appendSpaceLog(lu *LU, l *logParams) {
	available, used := lu.vol.Space.Counts()
	l.list(volume.ResourceAvailable, append(binary.BigEndian.AppendUint32(nil, available), 2, 0, 0, 0))
	l.list(volume.ResourceUsed, append(binary.BigEndian.AppendUint32(nil, used), 2, 0, 0, 0))
}

// appendStatistics is the General Statistics and Performance page (SPC-5 §7.3.10):
//
//	0001h  READs, WRITEs, blocks written, blocks read (8 each), time in READs,
//	       time in WRITEs, and twice the sum of both, as commands that run side by
//	       side count each for itself
//	0002h  idle time: what the commands, added up, leave of the time that has
//	       passed, so no more than it was
//	0003h  the unit of these times, 1 x 10^-6 s: exponent (4), integer (4)
func appendStatistics(lu *LU, l *logParams) {
	s, shift := lu.vol.Counters.Statistics(lu.statisticsNow()), lu.geo().Shift
	read, write := uint64(s.ReadTime/time.Microsecond), uint64(s.WriteTime/time.Microsecond)
	var v []byte
	for _, n := range []uint64{s.Reads, s.Writes, s.WriteBytes >> shift, s.ReadBytes >> shift, read, write, read + write, read + write} {
		v = binary.BigEndian.AppendUint64(v, n)
	}
	l.list(0x0001, v)
	idle := max(s.Elapsed-s.ReadTime-s.WriteTime, 0)
	l.list(0x0002, binary.BigEndian.AppendUint64(nil, uint64(idle/time.Microsecond)))
	l.list(0x0003, []byte{0, 0, 0, 6, 0, 0, 0, 1})
}

// appendExceptionsLog is the Informational Exceptions page (SPC-5 §7.3.12): none is
// pending, ever, as the mode page of that name says (MRIE 0), and there is no
// temperature to read.
func appendExceptionsLog(_ *LU, l *logParams) {
	l.list(0x0000, []byte{0, 0, 0xFF, 0})
}
