package scsi

import (
	"softiser/internal/spc"
	"softiser/target/volume"
)

// flags of a command.
type flags uint16

const (
	fIO       flags = 1 << iota // medium access: LBA and length are decoded and checked
	fNoUA                       // does not report or clear unit attentions
	fStandby                    // works through a port in standby state
	fUnavail                    // works through a port in unavailable state
	fDataRead                   // counts as a read for statistics and rate limits
	fDataWrite
	fAlloc // with fIO: the length field is an allocation length
)

// command is one row of the command table.
type command struct {
	op      spc.Opcode
	sa      uint16
	hasSA   bool
	usage   []byte // CDB usage data; its length is that of the CDB
	flags   flags
	access  volume.Access
	gates   volume.Gate
	hold    volume.Hold
	timeout uint16 // recommended time-out, seconds
	// offered tells whether a unit has the command at all; nil: every one.
	offered func(*LU) bool
	run     func(*Task)
}

func (c *command) has(f flags) bool { return c.flags&f != 0 }
