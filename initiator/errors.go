package initiator

import (
	"errors"

	"softiser/initiator/blockio"
	"softiser/internal/iscsi"
	"softiser/internal/spc"
)

// SenseError is a command that ended with another status than GOOD or CONDITION MET.
// Op is the operation code, Status the SCSI status; Sense says more when that is CHECK
// CONDITION (2).
type SenseError = spc.SenseError

// What a SenseError says, in the numbers of the standards.
type (
	// Opcode is the operation code, byte 0 of a CDB (SPC-4 Annex E).
	Opcode = spc.Opcode
	// Status is the SCSI status of a command (SAM-5 §5.3.1).
	Status = spc.Status
	// Sense is why a command has ended with CHECK CONDITION (SPC-4 §4.5).
	Sense = spc.Sense
	// SenseKey is the kind of condition (SPC-4 §4.5.6), 5 for ILLEGAL REQUEST.
	SenseKey = spc.Key
	// SenseCode is the additional sense code with its qualifier, 0x2904 for 29h/04h
	// (SPC-4 Annex E).
	SenseCode = spc.ASC
)

// LoginError is a login that was refused, by the target where Remote is set, else by
// us.
type LoginError = iscsi.LoginError

// LoginStatus is Status-Class and Status-Detail of a Login Response (RFC 7143
// §11.13.5), 0x0201 for an authentication failure.
type LoginStatus = iscsi.LoginStatus

// Errors of requests and sessions, besides *SenseError, *LoginError, *ConfigError,
// *WrongProtocolError and those of package blockdev.
var (
	// ErrOutcomeUnknown ends a command that must not be repeated (COMPARE AND
	// WRITE, a raw CDB) and whose connection was lost before its status came:
	// the target may or may not have carried it out.
	ErrOutcomeUnknown = blockio.ErrOutcomeUnknown
	// ErrSessionLost ends what was outstanding when a session was given up.
	ErrSessionLost = blockio.ErrSessionLost
	// ErrNoConnection is in the chain of the error of a connection that could not be made:
	// nobody answers, or what answers speaks something else.
	ErrNoConnection = blockio.ErrNoConnection
	// ErrClosed ends what is submitted to, or outstanding on, a closed session.
	ErrClosed = blockio.ErrClosed
	// ErrTimeout ends a command that the target did not answer in time and that
	// was then aborted.
	ErrTimeout = blockio.ErrTimeout
	// ErrShort ends a command whose status was GOOD although fewer bytes were
	// transferred than asked for.
	ErrShort = errors.New("initiator: target transferred fewer bytes than asked for")
	// ErrOverflow ends a command whose status was GOOD although the target would
	// have moved more bytes than the command has: it counts in other blocks than we.
	ErrOverflow = errors.New("initiator: target counts more bytes than the command has")
	// ErrInvalid ends a request that cannot be expressed as a command.
	ErrInvalid = blockio.ErrInvalid
	// ErrBusy ends a command that the target kept refusing with BUSY or TASK
	// SET FULL.
	ErrBusy = errors.New("initiator: target stayed busy")
	// ErrCacheLost ends a flush before which the target has lost its volatile cache:
	// writes that were acknowledged since the flush before may be gone. The next
	// flush is believed again.
	ErrCacheLost = blockio.ErrCacheLost
	// ErrNoLUN is a LUN that the target does not have.
	ErrNoLUN = blockio.ErrNoLUN
	// ErrLUNChanged fails a session whose LUN is another volume than was opened, or has
	// blocks of another size: nothing is written to it.
	ErrLUNChanged = errors.New("initiator: the LUN is not the same any more")
	// ErrReservation ends a command that met somebody else's reservation.
	ErrReservation = blockio.ErrReservation
)
