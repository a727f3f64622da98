package iscsi

import "fmt"

// Opcode is the low six bits of a PDU's first byte (RFC 7143 §11.2.1.2).
type Opcode uint8

// Opcodes. Those of the initiator are below 0x20.
const (
	OpNopOut       Opcode = 0x00
	OpSCSICommand  Opcode = 0x01
	OpTaskRequest  Opcode = 0x02
	OpLoginRequest Opcode = 0x03
	OpTextRequest  Opcode = 0x04
	OpDataOut      Opcode = 0x05
	OpLogoutReq    Opcode = 0x06
	OpSNACK        Opcode = 0x10

	OpNopIn         Opcode = 0x20
	OpSCSIResponse  Opcode = 0x21
	OpTaskResponse  Opcode = 0x22
	OpLoginResponse Opcode = 0x23
	OpTextResponse  Opcode = 0x24
	OpDataIn        Opcode = 0x25
	OpLogoutResp    Opcode = 0x26
	OpR2T           Opcode = 0x31
	OpAsync         Opcode = 0x32
	OpReject        Opcode = 0x3f
)

// OpcodeInfo says what the framing layers must know about an opcode.
type OpcodeInfo struct {
	Name   string
	Target bool // sent by the target
	Data   bool // may carry a data segment
	AHS    bool // may carry additional header segments
	CmdSN  bool // carries a CmdSN (initiator PDUs) and takes part in command ordering
	StatSN bool // carries a StatSN (target PDUs)
}

var opcodes = [64]OpcodeInfo{
	OpNopOut:       {Name: "NOP-Out", Data: true, CmdSN: true},
	OpSCSICommand:  {Name: "SCSI Command", Data: true, AHS: true, CmdSN: true},
	OpTaskRequest:  {Name: "Task Management Request", CmdSN: true},
	OpLoginRequest: {Name: "Login Request", Data: true, CmdSN: true},
	OpTextRequest:  {Name: "Text Request", Data: true, CmdSN: true},
	OpDataOut:      {Name: "Data-Out", Data: true},
	OpLogoutReq:    {Name: "Logout Request", CmdSN: true},
	OpSNACK:        {Name: "SNACK Request"},

	OpNopIn:         {Name: "NOP-In", Target: true, Data: true, StatSN: true},
	OpSCSIResponse:  {Name: "SCSI Response", Target: true, Data: true, StatSN: true},
	OpTaskResponse:  {Name: "Task Management Response", Target: true, StatSN: true},
	OpLoginResponse: {Name: "Login Response", Target: true, Data: true, StatSN: true},
	OpTextResponse:  {Name: "Text Response", Target: true, Data: true, StatSN: true},
	OpDataIn:        {Name: "Data-In", Target: true, Data: true, StatSN: true},
	OpLogoutResp:    {Name: "Logout Response", Target: true, StatSN: true},
	OpR2T:           {Name: "R2T", Target: true, StatSN: true},
	OpAsync:         {Name: "Asynchronous Message", Target: true, Data: true, StatSN: true},
	OpReject:        {Name: "Reject", Target: true, Data: true, StatSN: true},
}

// Info returns what is known about the opcode; Name is empty for one that RFC
// 7143 does not define.
func (o Opcode) Info() *OpcodeInfo { return &opcodes[o&0x3f] }

// Known reports whether RFC 7143 defines the opcode.
func (o Opcode) Known() bool { return opcodes[o&0x3f].Name != "" }

// FromTarget reports whether a target sends PDUs of this opcode.
func (o Opcode) FromTarget() bool { return o&0x20 != 0 }

// String returns the RFC's name of the PDU.
func (o Opcode) String() string {
	if n := opcodes[o&0x3f].Name; n != "" {
		return n
	}
	return fmt.Sprintf("opcode %#02x", uint8(o))
}
