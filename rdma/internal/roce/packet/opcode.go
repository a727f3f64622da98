package packet

import "fmt"

// Opcode is the first byte of a packet: three bits of transport service, five of
// operation (IBA vol. 1 §9.2.1, table 38).
type Opcode uint8

// Services, the upper three bits of an opcode.
const (
	RC Opcode = 0x00 // reliable connection
	UC Opcode = 0x20 // unreliable connection
	UD Opcode = 0x60 // unreliable datagram
)

// Operations of RC. Those that UC and UD have too are formed by adding the service,
// as in UC | SendFirst.
const (
	SendFirst         Opcode = 0x00
	SendMiddle        Opcode = 0x01
	SendLast          Opcode = 0x02
	SendLastImm       Opcode = 0x03
	SendOnly          Opcode = 0x04
	SendOnlyImm       Opcode = 0x05
	WriteFirst        Opcode = 0x06
	WriteMiddle       Opcode = 0x07
	WriteLast         Opcode = 0x08
	WriteLastImm      Opcode = 0x09
	WriteOnly         Opcode = 0x0a
	WriteOnlyImm      Opcode = 0x0b
	ReadRequest       Opcode = 0x0c
	ReadResponseFirst Opcode = 0x0d
	ReadResponseMid   Opcode = 0x0e
	ReadResponseLast  Opcode = 0x0f
	ReadResponseOnly  Opcode = 0x10
	Acknowledge       Opcode = 0x11
	AtomicAcknowledge Opcode = 0x12
	CompareSwap       Opcode = 0x13
	FetchAdd          Opcode = 0x14
	SendLastInv       Opcode = 0x16
	SendOnlyInv       Opcode = 0x17

	// CNP is the congestion notification packet (annex A17.9.3). It has no service.
	CNP Opcode = 0x81
)

// Traits say what an opcode's packet is and what it carries.
type Traits uint32

// Extended headers, in the order in which they come.
const (
	HasDETH Traits = 1 << iota
	HasRETH
	HasAtomicETH
	HasAETH
	HasAtomicAckETH
	HasImm
	HasIETH
	hasCNP // 16 reserved bytes
)

// What kind of packet it is, and its place in its message. A packet is of the
// requester or, with Response, of the responder.
const (
	Send Traits = 1 << (iota + 16)
	Write
	Read
	Atomic
	Ack
	Response
	First
	Middle
	Last // an Only packet has First and Last

	Only = First | Last
)

// info is a row of the opcode table.
type info struct {
	name   string
	traits Traits
}

// operations is the table of RC's operations: the headers by IBA vol. 1 §9.2.1, table 38.
var operations = [32]info{
	SendFirst:         {"SEND First", Send | First},
	SendMiddle:        {"SEND Middle", Send | Middle},
	SendLast:          {"SEND Last", Send | Last},
	SendLastImm:       {"SEND Last with Immediate", Send | Last | HasImm},
	SendOnly:          {"SEND Only", Send | Only},
	SendOnlyImm:       {"SEND Only with Immediate", Send | Only | HasImm},
	WriteFirst:        {"RDMA WRITE First", Write | First | HasRETH},
	WriteMiddle:       {"RDMA WRITE Middle", Write | Middle},
	WriteLast:         {"RDMA WRITE Last", Write | Last},
	WriteLastImm:      {"RDMA WRITE Last with Immediate", Write | Last | HasImm},
	WriteOnly:         {"RDMA WRITE Only", Write | Only | HasRETH},
	WriteOnlyImm:      {"RDMA WRITE Only with Immediate", Write | Only | HasRETH | HasImm},
	ReadRequest:       {"RDMA READ Request", Read | Only | HasRETH},
	ReadResponseFirst: {"RDMA READ response First", Read | Response | First | HasAETH},
	ReadResponseMid:   {"RDMA READ response Middle", Read | Response | Middle},
	ReadResponseLast:  {"RDMA READ response Last", Read | Response | Last | HasAETH},
	ReadResponseOnly:  {"RDMA READ response Only", Read | Response | Only | HasAETH},
	Acknowledge:       {"Acknowledge", Ack | Response | Only | HasAETH},
	AtomicAcknowledge: {"ATOMIC Acknowledge", Atomic | Response | Only | HasAETH | HasAtomicAckETH},
	CompareSwap:       {"CmpSwap", Atomic | Only | HasAtomicETH},
	FetchAdd:          {"FetchAdd", Atomic | Only | HasAtomicETH},
	SendLastInv:       {"SEND Last with Invalidate", Send | Last | HasIETH},
	SendOnlyInv:       {"SEND Only with Invalidate", Send | Only | HasIETH},
}

// opcodes is the table of all 256. What has no name is unknown.
var opcodes = func() (t [256]info) {
	for op, i := range operations {
		if i.name == "" {
			continue
		}
		t[op] = info{"RC " + i.name, i.traits}
		if i.traits&(Send|Write) != 0 && i.traits&HasIETH == 0 {
			t[UC|Opcode(op)] = info{"UC " + i.name, i.traits}
		}
	}
	t[UD|SendOnly] = info{"UD SEND Only", Send | Only | HasDETH}
	t[UD|SendOnlyImm] = info{"UD SEND Only with Immediate", Send | Only | HasDETH | HasImm}
	t[CNP] = info{"CNP", hasCNP}
	return t
}()

// headers is the length of BTH and extended headers by opcode, in bytes; 0 for what
// is unknown.
var headers = func() (t [256]uint8) {
	for op, i := range opcodes {
		if i.name == "" {
			continue
		}
		n := BTHLen
		for _, h := range [...]struct {
			has Traits
			len int
		}{
			{HasDETH, DETHLen}, {HasRETH, RETHLen}, {HasAtomicETH, AtomicETHLen}, {HasAETH, AETHLen},
			{HasAtomicAckETH, AtomicAckETHLen}, {HasImm, ImmLen}, {HasIETH, IETHLen}, {hasCNP, cnpLen},
		} {
			if i.traits&h.has != 0 {
				n += h.len
			}
		}
		t[op] = uint8(n)
	}
	return t
}()

// Traits is what the table says of op; 0 for an unknown opcode.
func (op Opcode) Traits() Traits { return opcodes[op].traits }

// Service is RC, UC or UD for opcodes that are known, CNP's own value for it.
func (op Opcode) Service() Opcode { return op & 0xe0 }

// HeaderLen is the length in bytes of BTH and extended headers; 0 for an unknown opcode.
func (op Opcode) HeaderLen() int { return int(headers[op]) }

// hasPayload says whether anything may follow the headers: READ requests, atomics and
// acknowledgements end with them.
func (t Traits) hasPayload() bool {
	return t&(Send|Write) != 0 || t&(Read|Response) == Read|Response
}

func (op Opcode) String() string {
	if n := opcodes[op].name; n != "" {
		return n
	}
	return fmt.Sprintf("unknown opcode %#02x", uint8(op))
}
