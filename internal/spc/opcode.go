package spc

import "fmt"

// Opcode is the operation code, byte 0 of a CDB.
type Opcode byte

// Operation codes of SPC and SBC.
const (
	OpTestUnitReady    Opcode = 0x00
	OpRequestSense     Opcode = 0x03
	OpFormatUnit       Opcode = 0x04
	OpRead6            Opcode = 0x08
	OpWrite6           Opcode = 0x0A
	OpInquiry          Opcode = 0x12
	OpModeSelect6      Opcode = 0x15
	OpReserve6         Opcode = 0x16
	OpRelease6         Opcode = 0x17
	OpModeSense6       Opcode = 0x1A
	OpStartStopUnit    Opcode = 0x1B
	OpReceiveDiag      Opcode = 0x1C
	OpSendDiag         Opcode = 0x1D
	OpPreventAllow     Opcode = 0x1E
	OpReadCapacity10   Opcode = 0x25
	OpRead10           Opcode = 0x28
	OpWrite10          Opcode = 0x2A
	OpWriteVerify10    Opcode = 0x2E
	OpVerify10         Opcode = 0x2F
	OpPrefetch10       Opcode = 0x34
	OpSyncCache10      Opcode = 0x35
	OpReadDefectData10 Opcode = 0x37
	OpWriteSame10      Opcode = 0x41
	OpUnmap            Opcode = 0x42
	OpSanitize         Opcode = 0x48
	OpLogSelect        Opcode = 0x4C
	OpLogSense         Opcode = 0x4D
	OpModeSelect10     Opcode = 0x55
	OpReserve10        Opcode = 0x56
	OpRelease10        Opcode = 0x57
	OpModeSense10      Opcode = 0x5A
	OpPersistIn        Opcode = 0x5E
	OpPersistOut       Opcode = 0x5F
	OpVariable         Opcode = 0x7F
	OpThirdPartyOut    Opcode = 0x83
	OpThirdPartyIn     Opcode = 0x84
	OpRead16           Opcode = 0x88
	OpCompareAndWrite  Opcode = 0x89
	OpWrite16          Opcode = 0x8A
	OpOrWrite16        Opcode = 0x8B
	OpWriteVerify16    Opcode = 0x8E
	OpVerify16         Opcode = 0x8F
	OpPrefetch16       Opcode = 0x90
	OpSyncCache16      Opcode = 0x91
	OpWriteSame16      Opcode = 0x93
	OpWriteAtomic16    Opcode = 0x9C
	OpServiceActionIn  Opcode = 0x9E
	OpReportLUNs       Opcode = 0xA0
	OpMaintenanceIn    Opcode = 0xA3
	OpMaintenanceOut   Opcode = 0xA4
	OpRead12           Opcode = 0xA8
	OpWrite12          Opcode = 0xAA
	OpWriteVerify12    Opcode = 0xAE
	OpVerify12         Opcode = 0xAF
	OpReadDefectData12 Opcode = 0xB7
)

// Service actions, grouped by their operation code.
const (
	SASanitizeOverwrite  = 0x01 // SANITIZE
	SASanitizeBlockErase = 0x02
	SASanitizeCrypto     = 0x03
	SASanitizeExit       = 0x1F

	SAPrinReadKeys     = 0x00 // PERSISTENT RESERVE IN
	SAPrinReadRes      = 0x01
	SAPrinCapabilities = 0x02
	SAPrinFullStatus   = 0x03

	SAProutRegister       = 0x00 // PERSISTENT RESERVE OUT
	SAProutReserve        = 0x01
	SAProutRelease        = 0x02
	SAProutClear          = 0x03
	SAProutPreempt        = 0x04
	SAProutPreemptAbort   = 0x05
	SAProutRegisterIgnore = 0x06
	SAProutRegisterMove   = 0x07

	SAExtendedCopy       = 0x00 // THIRD-PARTY COPY OUT
	SAPopulateToken      = 0x10
	SAWriteUsingToken    = 0x11
	SACopyAbort          = 0x1C
	SACopyStatus         = 0x00 // THIRD-PARTY COPY IN
	SACopyOperating      = 0x03
	SAFailedSegment      = 0x04
	SARODTokenInfo       = 0x07
	SAReadCapacity16     = 0x10 // SERVICE ACTION IN(16)
	SAGetLBAStatus       = 0x12
	SAReportTPG          = 0x0A // MAINTENANCE IN
	SAReportOpcodes      = 0x0C
	SAReportTMF          = 0x0D
	SASetTPG             = 0x0A // MAINTENANCE OUT
	SAWriteSame32        = 0x0D // variable length
	cdbServiceActionMask = 0x1F
)

var opcodeNames = map[Opcode]string{
	OpTestUnitReady: "TEST UNIT READY", OpRequestSense: "REQUEST SENSE", OpFormatUnit: "FORMAT UNIT",
	OpRead6: "READ(6)", OpWrite6: "WRITE(6)", OpInquiry: "INQUIRY", OpModeSelect6: "MODE SELECT(6)",
	OpReserve6: "RESERVE(6)", OpRelease6: "RELEASE(6)", OpModeSense6: "MODE SENSE(6)",
	OpStartStopUnit: "START STOP UNIT", OpReceiveDiag: "RECEIVE DIAGNOSTIC RESULTS", OpSendDiag: "SEND DIAGNOSTIC",
	OpPreventAllow: "PREVENT ALLOW MEDIUM REMOVAL", OpReadCapacity10: "READ CAPACITY(10)",
	OpRead10: "READ(10)", OpWrite10: "WRITE(10)", OpWriteVerify10: "WRITE AND VERIFY(10)", OpVerify10: "VERIFY(10)",
	OpPrefetch10: "PRE-FETCH(10)", OpSyncCache10: "SYNCHRONIZE CACHE(10)", OpReadDefectData10: "READ DEFECT DATA(10)",
	OpWriteSame10: "WRITE SAME(10)", OpUnmap: "UNMAP", OpSanitize: "SANITIZE", OpLogSelect: "LOG SELECT", OpLogSense: "LOG SENSE",
	OpModeSelect10: "MODE SELECT(10)", OpReserve10: "RESERVE(10)", OpRelease10: "RELEASE(10)",
	OpModeSense10: "MODE SENSE(10)", OpPersistIn: "PERSISTENT RESERVE IN", OpPersistOut: "PERSISTENT RESERVE OUT",
	OpVariable: "variable-length CDB", OpThirdPartyOut: "THIRD-PARTY COPY OUT", OpThirdPartyIn: "THIRD-PARTY COPY IN",
	OpRead16: "READ(16)", OpCompareAndWrite: "COMPARE AND WRITE", OpWrite16: "WRITE(16)", OpOrWrite16: "ORWRITE(16)",
	OpWriteVerify16: "WRITE AND VERIFY(16)", OpVerify16: "VERIFY(16)", OpPrefetch16: "PRE-FETCH(16)",
	OpSyncCache16: "SYNCHRONIZE CACHE(16)", OpWriteSame16: "WRITE SAME(16)", OpWriteAtomic16: "WRITE ATOMIC(16)",
	OpServiceActionIn: "SERVICE ACTION IN(16)", OpReportLUNs: "REPORT LUNS", OpMaintenanceIn: "MAINTENANCE IN",
	OpMaintenanceOut: "MAINTENANCE OUT", OpRead12: "READ(12)", OpWrite12: "WRITE(12)",
	OpWriteVerify12: "WRITE AND VERIFY(12)", OpVerify12: "VERIFY(12)", OpReadDefectData12: "READ DEFECT DATA(12)",
}

// String returns the command's name in the standards, or its number.
func (o Opcode) String() string {
	if s, ok := opcodeNames[o]; ok {
		return s
	}
	return fmt.Sprintf("opcode %02Xh", byte(o))
}

// ServiceAction returns the service action of a CDB and whether its operation
// code has any. The CDB must have the length that CDBLen tells.
func ServiceAction(cdb []byte) (sa uint16, ok bool) {
	switch Opcode(cdb[0]) {
	case OpVariable:
		return uint16(cdb[8])<<8 | uint16(cdb[9]), true
	case OpSanitize, OpPersistIn, OpPersistOut, OpThirdPartyOut, OpThirdPartyIn,
		OpServiceActionIn, OpMaintenanceIn, OpMaintenanceOut:
		return uint16(cdb[1] & cdbServiceActionMask), true
	}
	return 0, false
}

// CDBLen returns how long a CDB that begins with cdb is, or 0 when its group
// code does not tell (reserved and vendor-specific groups) or a
// variable-length CDB is cut before its length byte.
func CDBLen(cdb []byte) int {
	if len(cdb) == 0 {
		return 0
	}
	switch cdb[0] >> 5 {
	case 0:
		return 6
	case 1, 2:
		return 10
	case 4:
		return 16
	case 5:
		return 12
	}
	// A variable-length CDB has room for its service action at least.
	if Opcode(cdb[0]) == OpVariable && len(cdb) >= 10 && cdb[7] >= 2 {
		return 8 + int(cdb[7])
	}
	return 0
}

// Status is the SCSI status that ends a command (SAM-5 §5.3).
type Status byte

// Status codes.
const (
	StatusGood                Status = 0x00
	StatusCheckCondition      Status = 0x02
	StatusConditionMet        Status = 0x04
	StatusBusy                Status = 0x08
	StatusReservationConflict Status = 0x18
	StatusTaskSetFull         Status = 0x28
	StatusACAActive           Status = 0x30
	StatusTaskAborted         Status = 0x40
)

// String returns the status as SAM names it.
func (s Status) String() string {
	switch s {
	case StatusGood:
		return "GOOD"
	case StatusCheckCondition:
		return "CHECK CONDITION"
	case StatusConditionMet:
		return "CONDITION MET"
	case StatusBusy:
		return "BUSY"
	case StatusReservationConflict:
		return "RESERVATION CONFLICT"
	case StatusTaskSetFull:
		return "TASK SET FULL"
	case StatusACAActive:
		return "ACA ACTIVE"
	case StatusTaskAborted:
		return "TASK ABORTED"
	}
	return fmt.Sprintf("status %02Xh", byte(s))
}
