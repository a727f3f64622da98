package wire

// Opcode is the RDMAP message type, the low four bits of the RDMAP control byte
// (RFC 5040 §4.1, RFC 7306 §4 and §5 figure 1).
type Opcode uint8

// RDMAP opcodes. 12 to 14 are unassigned, 15 is for experiments (RFC 6580).
const (
	Write        Opcode = 0
	ReadRequest  Opcode = 1
	ReadResponse Opcode = 2
	Send         Opcode = 3
	SendInv      Opcode = 4
	SendSE       Opcode = 5
	SendSEInv    Opcode = 6
	Terminate    Opcode = 7
	Immediate    Opcode = 8
	ImmediateSE  Opcode = 9
	AtomicReq    Opcode = 10
	AtomicResp   Opcode = 11
)

// Queue numbers of untagged messages (RFC 5040 §4.1, RFC 7306 §4).
const (
	QNSend       = 0
	QNRead       = 1
	QNTerminate  = 2
	QNAtomicResp = 3
)

// Info is what the engine needs to know about an opcode before it looks at a
// header.
type Info struct {
	Name   string
	Tagged bool
	QN     uint32 // untagged messages only
	Ext    int    // bytes of RDMAP header behind the DDP header
	Hdr    int    // DDP header + Ext: everything in the ULPDU before the payload
	Data   bool   // payload may follow the header; without it, the header is all
}

// Ops is indexed by Opcode. Entries without a name are unknown opcodes.
var Ops = [16]Info{
	Write:        {Name: "RDMA Write", Tagged: true, Hdr: TaggedLen, Data: true},
	ReadRequest:  {Name: "RDMA Read Request", QN: QNRead, Ext: ReadReqLen, Hdr: UntaggedLen + ReadReqLen},
	ReadResponse: {Name: "RDMA Read Response", Tagged: true, Hdr: TaggedLen, Data: true},
	Send:         {Name: "Send", QN: QNSend, Hdr: UntaggedLen, Data: true},
	SendInv:      {Name: "Send with Invalidate", QN: QNSend, Hdr: UntaggedLen, Data: true},
	SendSE:       {Name: "Send with Solicited Event", QN: QNSend, Hdr: UntaggedLen, Data: true},
	SendSEInv:    {Name: "Send with Solicited Event and Invalidate", QN: QNSend, Hdr: UntaggedLen, Data: true},
	// The Terminate header has a variable part; it is read as payload.
	Terminate:   {Name: "Terminate", QN: QNTerminate, Hdr: UntaggedLen, Data: true},
	Immediate:   {Name: "Immediate Data", QN: QNSend, Ext: ImmLen, Hdr: UntaggedLen + ImmLen},
	ImmediateSE: {Name: "Immediate Data with Solicited Event", QN: QNSend, Ext: ImmLen, Hdr: UntaggedLen + ImmLen},
	AtomicReq:   {Name: "Atomic Request", QN: QNRead, Ext: AtomicReqLen, Hdr: UntaggedLen + AtomicReqLen},
	AtomicResp:  {Name: "Atomic Response", QN: QNAtomicResp, Ext: AtomicRespLen, Hdr: UntaggedLen + AtomicRespLen},
}

// Known reports whether o is a message type of RFC 5040 or RFC 7306.
func (o Opcode) Known() bool { return Ops[o&15].Name != "" }

func (o Opcode) String() string {
	if o.Known() {
		return Ops[o&15].Name
	}
	return "unknown RDMAP opcode " + string("0123456789abcdef"[o&15])
}

// IsSend reports whether o is one of the four Sends.
func (o Opcode) IsSend() bool { return o >= Send && o <= SendSEInv }

// Invalidates reports whether the message carries an STag to invalidate.
func (o Opcode) Invalidates() bool { return o == SendInv || o == SendSEInv }

// Solicited reports whether the message asks for a solicited event.
func (o Opcode) Solicited() bool { return o == SendSE || o == SendSEInv || o == ImmediateSE }
