package scsi

import (
	"slices"
	"testing"

	"softiser/internal/spc"
)

// TestInfoUnderReservations goes through every command as SPC-4 table 66 and SBC-3 table 13
// have it: which of them meet a reservation that somebody else holds, by its type and by
// whether the initiator is registered.
func TestInfoUnderReservations(t *testing.T) {
	const (
		always = iota
		reads  // the medium, or what is told to nobody else under exclusive access
		writes
	)
	commands := map[string]struct {
		class int
		cdb   []byte
	}{
		"TEST UNIT READY": {always, spc.AppendTestUnitReady(nil)}, "REQUEST SENSE": {always, spc.AppendRequestSense(nil, false, 64)},
		"INQUIRY": {always, spc.AppendInquiry(nil, 96)}, "REPORT LUNS": {always, spc.AppendReportLUNs(nil, 0, 64)},
		"READ CAPACITY(10)": {always, spc.AppendReadCapacity10(nil)}, "READ CAPACITY(16)": {always, spc.AppendReadCapacity16(nil, 32)},
		"LOG SENSE": {always, []byte{0x4D, 0, 0x40, 0, 0, 0, 0, 0, 64, 0}}, "PERSISTENT RESERVE IN": {always, spc.AppendPersistIn(nil, 0, 64)},
		"REPORT TARGET PORT GROUPS": {always, spc.AppendReportTargetPortGroups(nil, false, 64)},

		"MODE SENSE(6)": {reads, []byte{0x1A, 0, 0x3F, 0, 64, 0}}, "MODE SENSE(10)": {reads, []byte{0x5A, 0, 0x3F, 0, 0, 0, 0, 0, 64, 0}},
		"REPORT SUPPORTED OPERATION CODES":           {reads, spc.AppendReportOpcodes(nil, false, 0, 0, 0, 64)},
		"REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS": {reads, []byte{0xA3, 0x0D, 0, 0, 0, 0, 0, 0, 0, 16, 0, 0}},
		"RECEIVE DIAGNOSTIC RESULTS":                 {reads, []byte{0x1C, 1, 0, 0, 64, 0}},
		"RECEIVE COPY STATUS":                        {reads, []byte{0x84, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 64, 0, 0}},
		"RECEIVE COPY OPERATING PARAMETERS":          {reads, []byte{0x84, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 64, 0, 0}},
		"RECEIVE ROD TOKEN INFORMATION":              {reads, []byte{0x84, 7, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 64, 0, 0}},
		"READ(6)":                                    {reads, []byte{8, 0, 0, 0, 1, 0}},
		"READ(10)":                                   {reads, []byte{0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0}},
		"READ(12)":                                   {reads, []byte{0xA8, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0}},
		"READ(16)":                                   {reads, []byte{0x88, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0}},
		"VERIFY(10)":                                 {reads, []byte{0x2F, 0, 0, 0, 0, 0, 0, 0, 1, 0}},
		"VERIFY(12)":                                 {reads, []byte{0xAF, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0}},
		"VERIFY(16)":                                 {reads, []byte{0x8F, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0}},
		"PRE-FETCH(10)":                              {reads, []byte{0x34, 0, 0, 0, 0, 0, 0, 0, 1, 0}},
		"PRE-FETCH(16)":                              {reads, []byte{0x90, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0}},
		"GET LBA STATUS":                             {reads, spc.AppendGetLBAStatus(nil, 0, 64)},
		"READ DEFECT DATA(10)":                       {reads, []byte{0x37, 0, 0x18, 0, 0, 0, 0, 0, 64, 0}},
		"READ DEFECT DATA(12)":                       {reads, []byte{0xB7, 0x18, 0, 0, 0, 0, 0, 0, 0, 64, 0, 0}},
		"POPULATE TOKEN":                             {reads, []byte{0x83, 0x10, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0}},

		"WRITE(6)": {writes, []byte{0x0A, 0, 0, 0, 1, 0}}, "WRITE(10)": {writes, []byte{0x2A, 0, 0, 0, 0, 0, 0, 0, 1, 0}},
		"WRITE(12)":              {writes, []byte{0xAA, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0}},
		"WRITE(16)":              {writes, []byte{0x8A, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0}},
		"WRITE AND VERIFY(10)":   {writes, []byte{0x2E, 0, 0, 0, 0, 0, 0, 0, 1, 0}},
		"WRITE AND VERIFY(12)":   {writes, []byte{0xAE, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0}},
		"WRITE AND VERIFY(16)":   {writes, []byte{0x8E, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0}},
		"COMPARE AND WRITE":      {writes, spc.AppendCompareAndWrite(nil, 0, 1, false)},
		"ORWRITE":                {writes, spc.AppendOrWrite16(nil, 0, 1, false)},
		"WRITE ATOMIC":           {writes, spc.AppendWriteAtomic16(nil, 0, 1, false)},
		"WRITE SAME(10)":         {writes, []byte{0x41, 0, 0, 0, 0, 0, 0, 0, 1, 0}},
		"WRITE SAME(16)":         {writes, spc.AppendWriteSame16(nil, 0, 1, 0)},
		"UNMAP":                  {writes, spc.AppendUnmap(nil, 0)},
		"SYNCHRONIZE CACHE(10)":  {writes, []byte{0x35, 0, 0, 0, 0, 0, 0, 0, 0, 0}},
		"SYNCHRONIZE CACHE(16)":  {writes, []byte{0x91, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}},
		"FORMAT UNIT":            {writes, formatUnit},
		"SANITIZE, OVERWRITE":    {writes, overwrite(0)},
		"SANITIZE, BLOCK ERASE":  {writes, []byte{0x48, 2, 0, 0, 0, 0, 0, 0, 0, 0}},
		"SANITIZE, EXIT":         {writes, []byte{0x48, 0x1F, 0, 0, 0, 0, 0, 0, 0, 0}},
		"START STOP UNIT, STOP":  {writes, spc.AppendStartStop(nil, false, false, false)},
		"START STOP UNIT, IDLE":  {writes, []byte{0x1B, 0, 0, 0, 0x21, 0}},
		"START STOP UNIT, START": {always, spc.AppendStartStop(nil, false, false, true)},
		"PREVENT REMOVAL":        {writes, []byte{0x1E, 0, 0, 0, 1, 0}},
		"ALLOW REMOVAL":          {always, []byte{0x1E, 0, 0, 0, 0, 0}},
		"MODE SELECT(6)":         {writes, []byte{0x15, 0x10, 0, 0, 0, 0}},
		"MODE SELECT(10)":        {writes, []byte{0x55, 0x10, 0, 0, 0, 0, 0, 0, 0, 0}},
		"LOG SELECT":             {writes, []byte{0x4C, 0, 0, 0, 0, 0, 0, 0, 0, 0}},
		"SEND DIAGNOSTIC":        {writes, []byte{0x1D, 4, 0, 0, 0, 0}},
		"EXTENDED COPY":          {writes, xcopy(nil)},
		"WRITE USING TOKEN":      {writes, tokenCDB(spc.SAWriteUsingToken, 1, nil)},
		"SET TARGET PORT GROUPS": {writes, []byte{0xA4, 0x0A, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}},
	}
	// None has been forgotten.
	reserving := []spc.Opcode{spc.OpReserve6, spc.OpReserve10, spc.OpRelease6, spc.OpRelease10, spc.OpPersistOut}
	named := map[spc.Opcode]bool{}
	for _, c := range commands {
		named[spc.Opcode(c.cdb[0])] = true
	}
	for _, c := range newTable().rows {
		if !named[c.op] && !slices.Contains(reserving, c.op) {
			t.Errorf("%v is not in the test", c.op)
		}
	}

	types := []spc.PRType{spc.PRWriteExclusive, spc.PRExclusiveAccess, spc.PRWriteExclusiveRegistrants, spc.PRExclusiveAccessRegistrants,
		spc.PRWriteExclusiveAllRegistrant, spc.PRExclusiveAccessAllRegistr}
	for _, typ := range types {
		r := newRig(t, Config{ExplicitALUA: true}, LUConfig{Volume: newNamed(t, "v"), Removable: true})
		holder, reg, other := r.nx[0], r.nx[1], r.nexus(3)
		r.prout(holder, spc.SAProutRegister, 0, 0, keyA).good()
		r.prout(reg, spc.SAProutRegister, 0, 0, keyB).good()
		r.prout(holder, spc.SAProutReserve, typ, keyA, 0).good()
		for name, c := range commands {
			stranger := c.class == writes || c.class == reads && !typ.WriteExclusive()
			for _, x := range []struct {
				who  string
				n    *Nexus
				want bool
			}{{"the holder", holder, false}, {"a registrant", reg, stranger && !typ.RegistrantsOnly()}, {"a stranger", other, stranger}} {
				got := r.on(x.n, 0, c.cdb, make([]byte, 1024), 1<<16)
				for got.sd.Key == spc.KeyUnitAttention { // of what another one has changed
					got = r.on(x.n, 0, c.cdb, make([]byte, 1024), 1<<16)
				}
				if (got.status == spc.StatusReservationConflict) != x.want {
					t.Errorf("%v, %s of %s: %v, conflict wanted: %v", typ, name, x.who, got.status, x.want)
				}
			}
		}
	}
}
