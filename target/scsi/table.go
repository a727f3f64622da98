package scsi

import (
	"encoding/hex"
	"fmt"
	"math"
	"strings"

	"softiser/internal/spc"

	"softiser/target/volume"
)

// table finds the row of a CDB.
type table struct {
	rows []command
	byOp [256]*opEntry
}

// opEntry is one operation code: a command, or a family by service action.
type opEntry struct {
	only     *command
	byAction map[uint16]*command
}

// find returns the row, nil if there is none.
func (t *table) find(cdb []byte) *command {
	e := t.byOp[cdb[0]]
	if e == nil {
		return nil
	}
	if e.only != nil {
		return e.only
	}
	sa, _ := spc.ServiceAction(cdb)
	return e.byAction[sa]
}

// family reports whether the unit has any service action of an operation code.
func (t *table) family(op byte, lu *LU) bool {
	e := t.byOp[op]
	if e == nil {
		return false
	}
	for _, c := range e.byAction {
		if c.offered == nil || c.offered(lu) {
			return true
		}
	}
	return false
}

func newTable() *table {
	t := &table{rows: commands()}
	for i := range t.rows {
		c := &t.rows[i]
		e := t.byOp[c.op]
		if e == nil {
			e = &opEntry{}
			t.byOp[c.op] = e
		}
		if !c.hasSA {
			e.only = c
			continue
		}
		if e.byAction == nil {
			e.byAction = map[uint16]*command{}
		}
		e.byAction[c.sa] = c
	}
	return t
}

// usage decodes CDB usage data: operation code first, then a one for each bit
// that is looked at (SPC-4 §6.35.3).
func usage(s string) []byte {
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		panic("scsi: usage data " + s)
	}
	return b
}

func unmaps(lu *LU) bool    { return lu.geo().Info.Discard }
func removable(lu *LU) bool { return lu.cfg.Removable }

// commands is the command table. Reservation classes follow SPC-4 table 66 and
// SBC-3 table 13.
func commands() []command {
	const (
		read  = fIO | fDataRead
		write = fIO | fDataWrite
	)
	row := func(u string, f flags, a volume.Access, gates volume.Gate, h volume.Hold, run func(*Task)) command {
		b := usage(u)
		if f&fNoUA == 0 {
			// INQUIRY, REPORT LUNS and REQUEST SENSE alone are served meanwhile (SBC-3
			// §5.3.1, SPC-5 §5.15.2).
			gates |= volume.Formatting | volume.Testing
		}
		return command{op: spc.Opcode(b[0]), usage: b, flags: f, access: a, gates: gates, hold: h, timeout: 30, run: run}
	}
	cs := []command{
		row("00 00 00 00 00 00", 0, volume.Always, volume.MediumGates, 0, cmdTestUnitReady),
		row("03 01 00 00 ff 00", fNoUA|fUnavail, volume.Always, 0, 0, cmdRequestSense),
		row("12 01 ff ff ff 00", fNoUA|fUnavail, volume.Always, 0, 0, cmdInquiry),
		row("a0 00 ff 00 00 00 ff ff ff ff 00 00", fNoUA|fUnavail, volume.Always, 0, 0, reportLUNs),

		row("08 1f ff ff ff 00", read, volume.Reads, volume.MediumGates, volume.HoldRead, cmdRead),
		row("28 18 ff ff ff ff 00 ff ff 00", read, volume.Reads, volume.MediumGates, volume.HoldRead, cmdRead),
		row("a8 18 ff ff ff ff ff ff ff ff 00 00", read, volume.Reads, volume.MediumGates, volume.HoldRead, cmdRead),
		row("88 18 ff ff ff ff ff ff ff ff ff ff ff ff 00 00", read, volume.Reads, volume.MediumGates, volume.HoldRead, cmdRead),

		row("0a 1f ff ff ff 00", write, volume.Writes, volume.WriteGates, volume.HoldWrite, cmdWrite),
		row("2a 18 ff ff ff ff 00 ff ff 00", write, volume.Writes, volume.WriteGates, volume.HoldWrite, cmdWrite),
		row("aa 18 ff ff ff ff ff ff ff ff 00 00", write, volume.Writes, volume.WriteGates, volume.HoldWrite, cmdWrite),
		row("8a 18 ff ff ff ff ff ff ff ff ff ff ff ff 00 00", write, volume.Writes, volume.WriteGates, volume.HoldWrite, cmdWrite),

		row("34 02 ff ff ff ff 00 ff ff 00", fIO, volume.Reads, volume.MediumGates, 0, cmdPrefetch),
		row("90 02 ff ff ff ff ff ff ff ff ff ff ff ff 00 00", fIO, volume.Reads, volume.MediumGates, 0, cmdPrefetch),
		row("35 02 ff ff ff ff 00 ff ff 00", fIO, volume.Writes, volume.MediumGates, 0, cmdSyncCache),
		row("91 02 ff ff ff ff ff ff ff ff ff ff ff ff 00 00", fIO, volume.Writes, volume.MediumGates, 0, cmdSyncCache),

		// Linux attaches a disk whose capacity it is refused with capacity 0, and does not ask
		// again when its path becomes active: standby paths tell it.
		row("25 00 ff ff ff ff 00 00 01 00", fStandby, volume.Always, volume.MediumGates&^volume.Closed, 0, cmdReadCapacity10),
		row("1a 08 ff ff ff 00", fStandby, volume.Reads, 0, 0, cmdModeSense),
		row("5a 18 ff ff 00 00 00 ff ff 00", fStandby, volume.Reads, 0, 0, cmdModeSense),
		row("15 11 00 00 ff 00", fStandby, volume.Writes, volume.Sanitizing|volume.Closed, 0, cmdModeSelect),
		row("55 11 00 00 00 00 00 ff ff 00", fStandby, volume.Writes, volume.Sanitizing|volume.Closed, 0, cmdModeSelect),
		row("1b 01 00 0f f7 00", 0, volume.Writes, volume.Sanitizing|volume.Closed, 0, cmdStartStop),

		row("16 00 00 00 00 00", 0, volume.Always, 0, 0, cmdReserve),
		row("17 00 00 00 00 00", 0, volume.Always, 0, 0, cmdRelease),
		row("56 00 00 00 00 00 00 00 00 00", 0, volume.Always, 0, 0, cmdReserve),
		row("57 00 00 00 00 00 00 00 00 00", 0, volume.Always, 0, 0, cmdRelease),
	}
	wide := func(u string) string { return u + " ff ff ff ff ff ff ff ff ff ff ff ff 00 00" }
	stage := func(u string, f flags, a volume.Access, gates volume.Gate, h volume.Hold, run func(*Task)) {
		cs = append(cs, row(u, f, a, gates, h, run))
	}
	stage("2f 16 ff ff ff ff 00 ff ff 00", fIO, volume.Reads, volume.MediumGates, volume.HoldRead, cmdVerify)
	stage("af 16 ff ff ff ff ff ff ff ff 00 00", fIO, volume.Reads, volume.MediumGates, volume.HoldRead, cmdVerify)
	stage(wide("8f 16"), fIO, volume.Reads, volume.MediumGates, volume.HoldRead, cmdVerify)
	stage("2e 12 ff ff ff ff 00 ff ff 00", write, volume.Writes, volume.WriteGates, volume.HoldWrite, cmdWriteVerify)
	stage("ae 12 ff ff ff ff ff ff ff ff 00 00", write, volume.Writes, volume.WriteGates, volume.HoldWrite, cmdWriteVerify)
	stage(wide("8e 12"), write, volume.Writes, volume.WriteGates, volume.HoldWrite, cmdWriteVerify)
	stage("89 18 ff ff ff ff ff ff ff ff 00 00 00 ff 00 00", write, volume.Writes, volume.WriteGates, volume.HoldStaged, cmdCompareAndWrite)
	stage(wide("8b 18"), write, volume.Writes, volume.WriteGates, volume.HoldStaged, cmdOrWrite)
	atomic := row("9c 18 ff ff ff ff ff ff ff ff ff ff ff ff 00 00", write, volume.Writes, volume.WriteGates, volume.HoldStaged, cmdWriteAtomic)
	atomic.offered = offersAtomic
	cs = append(cs, atomic)
	stage("41 08 ff ff ff ff 00 ff ff 00", fIO, volume.Writes, volume.WriteGates, volume.HoldWrite, cmdWriteSame)
	stage(wide("93 09"), fIO, volume.Writes, volume.WriteGates, volume.HoldWrite, cmdWriteSame)
	unmap := row("42 00 00 00 00 00 00 ff ff 00", 0, volume.Writes, volume.WriteGates, volume.HoldStaged, cmdUnmap)
	unmap.offered = unmaps
	cs = append(cs, unmap)
	prevent := row("1e 00 00 00 03 00", 0, volume.Writes, 0, 0, cmdPreventAllow)
	prevent.offered = removable
	cs = append(cs, prevent)
	sa := func(u string, f flags, a volume.Access, gates volume.Gate, h volume.Hold, run func(*Task)) {
		c := row(u, f, a, gates, h, run)
		c.hasSA = true
		c.sa, _ = spc.ServiceAction(c.usage)
		cs = append(cs, c)
	}
	sa("9e 10 00 00 00 00 00 00 00 00 ff ff ff ff 00 00", fStandby, volume.Always, volume.MediumGates&^volume.Closed, 0, cmdReadCapacity16)
	sa(wide("9e 12"), fIO|fAlloc, volume.Reads, volume.MediumGates, 0, cmdGetLBAStatus)
	rewrites := func(c command, offered func(*LU) bool) {
		c.timeout = math.MaxUint16 // it takes as long as the volume is large
		c.offered = offered
		if c.hasSA = c.op == spc.OpSanitize; c.hasSA {
			c.sa, _ = spc.ServiceAction(c.usage)
		}
		cs = append(cs, c)
	}
	rewrites(row("04 3f 00 00 00 00", 0, volume.Writes, volume.WriteGates&^volume.Corrupt, 0, cmdFormatUnit), offersRewrite)
	rewrites(row("48 a1 00 00 00 00 00 ff ff 00", 0, volume.Writes, volume.WriteGates&^volume.SanitizeFailed, 0, cmdSanitizeOverwrite), offersRewrite)
	rewrites(row("48 a2 00 00 00 00 00 ff ff 00", 0, volume.Writes, volume.WriteGates&^volume.SanitizeFailed, 0, cmdSanitizeErase),
		func(lu *LU) bool { return offersRewrite(lu) && erases(lu) })
	rewrites(row("48 1f 00 00 00 00 00 ff ff 00", 0, volume.Writes, volume.WriteGates&^volume.SanitizeFailed, 0, cmdSanitizeExit), offersRewrite)
	for i := range 4 {
		sa(fmt.Sprintf("5e %02x 00 00 00 00 00 ff ff 00", i), fStandby, volume.Always, 0, 0, cmdPersistIn)
	}
	for i := range 8 {
		gates := volume.Closed
		switch byte(i) { // a volume that is open elsewhere notes those, see volume/elsewhere.go
		case spc.SAProutRegister, spc.SAProutRegisterIgnore, spc.SAProutRelease:
			gates = 0
		}
		sa(fmt.Sprintf("5f %02x ff 00 00 ff ff ff ff 00", i), fStandby, volume.Always, gates, 0, cmdPersistOut)
	}
	sa("83 00 00 00 00 00 00 00 00 00 ff ff ff ff 00 00", 0, volume.Writes, volume.MediumGates, 0, cmdExtendedCopy)
	sa("83 10 00 00 00 00 ff ff ff ff ff ff ff ff 00 00", 0, volume.Reads, volume.MediumGates, 0, cmdPopulateToken)
	sa("83 11 00 00 00 00 ff ff ff ff ff ff ff ff 00 00", 0, volume.Writes, volume.WriteGates, 0, cmdWriteUsingToken)
	sa("84 00 ff 00 00 00 00 00 00 00 ff ff ff ff 00 00", 0, volume.Reads, 0, 0, cmdCopyStatus)
	sa("84 03 00 00 00 00 00 00 00 00 ff ff ff ff 00 00", 0, volume.Reads, 0, 0, cmdCopyOperating)
	sa("84 07 ff ff ff ff 00 00 00 00 ff ff ff ff 00 00", 0, volume.Reads, 0, 0, cmdRODTokenInfo)
	sa("a3 ea 00 00 00 00 ff ff ff ff 00 00", fStandby|fUnavail, volume.Always, 0, 0, cmdReportGroups)
	sa("a3 0c 87 ff ff ff ff ff ff ff 00 00", fStandby|fUnavail, volume.Reads, 0, 0, cmdReportOpcodes)
	sa("a3 0d 80 00 00 00 ff ff ff ff 00 00", fStandby|fUnavail, volume.Reads, 0, 0, cmdReportTMF)
	sa("a4 0a 00 00 00 00 ff ff ff ff 00 00", fStandby|fUnavail, volume.Writes, 0, 0, cmdSetGroups)
	cs[len(cs)-1].offered = explicitALUA
	cs = append(cs,
		row("4d 01 ff ff 00 ff ff ff ff 00", fStandby, volume.Always, 0, 0, cmdLogSense),
		row("4c 03 ff ff 00 00 00 ff ff 00", fStandby, volume.Writes, volume.Closed, 0, cmdLogSelect),
		row("1d f4 00 ff ff 00", fStandby, volume.Writes, volume.Sanitizing|volume.Closed, 0, cmdSendDiagnostic),
		row("1c 01 ff ff ff 00", fStandby, volume.Reads, volume.Sanitizing, 0, cmdReceiveDiagnostic),
		row("37 00 1f 00 00 00 00 ff ff 00", 0, volume.Reads, volume.MediumGates, 0, cmdReadDefects),
		row("b7 1f 00 00 00 00 ff ff ff ff 00 00", 0, volume.Reads, volume.MediumGates, 0, cmdReadDefects),
	)
	return cs
}
