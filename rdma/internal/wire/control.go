package wire

// Control is the first two bytes of every ULPDU: the DDP control byte (RFC 5041
// §4.1) and the RDMAP control byte (RFC 5040 §4.1).
//
//	  DDP control          RDMAP control
//	 7 6 5 4 3 2 1 0      7 6 5 4 3 2 1 0
//	+-+-+-------+---+    +---+---+-------+
//	|T|L| Rsvd  |DV |    |RV |Rsv| Opcode|
//	+-+-+-------+---+    +---+---+-------+
//
// Reserved bits are sent as zero and not checked.
type Control uint16

// Bits and versions of Control.
const (
	CtrlTagged Control = 0x8000
	CtrlLast   Control = 0x4000
	ctrlDV     Control = 0x0300
	ctrlRV     Control = 0x00c0
	ctrlOp     Control = 0x000f

	DDPVersion   = 1 // RFC 5041 §4.1
	RDMAPVersion = 1 // RFC 5040 §4.1
)

// Ctrl builds the control word of op.
func Ctrl(op Opcode, last bool) Control {
	c := Control(DDPVersion<<8|RDMAPVersion<<6) | Control(op)
	if Ops[op].Tagged {
		c |= CtrlTagged
	}
	if last {
		c |= CtrlLast
	}
	return c
}

// Tagged is the T bit.
func (c Control) Tagged() bool { return c&CtrlTagged != 0 }

// Last is the L bit: this segment ends its message.
func (c Control) Last() bool { return c&CtrlLast != 0 }

// DV is the DDP version.
func (c Control) DV() int { return int(c & ctrlDV >> 8) }

// RV is the RDMAP version.
func (c Control) RV() int { return int(c & ctrlRV >> 6) }

// Op is the RDMAP opcode, known or not.
func (c Control) Op() Opcode { return Opcode(c & ctrlOp) }
