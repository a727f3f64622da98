package pcaptest

import "encoding/binary"

// Message is one RDMAP message of a captured stream.
type Message struct {
	Op      byte   // RDMAP opcode (RFC 5040 §4.1)
	Inv     uint32 // untagged: the STag to invalidate
	STag    uint32 // tagged
	TO      uint64 // tagged
	Payload []byte
}

// RDMAP opcodes.
const (
	OpWrite   = 0
	OpReadReq = 1
	OpSend    = 3
	OpSendInv = 4
)

// Messages takes one direction of a connection apart: the private data of its MPA frame,
// then FPDUs with CRC fields and without markers, put together to messages.
func Messages(b []byte) (private []byte, ms []Message) {
	n := int(binary.BigEndian.Uint16(b[18:]))
	private, b = b[20:20+n], b[20+n:]
	open := map[bool]*Message{} // by tagged
	for len(b) > 0 {
		n := int(binary.BigEndian.Uint16(b))
		u := b[2 : 2+n]
		b = b[(2+n+3)&^3+4:]
		tagged, last := u[0]&0x80 != 0, u[0]&0x40 != 0
		m := open[tagged]
		if m == nil {
			m = &Message{Op: u[1] & 0xf}
			open[tagged] = m
			if tagged {
				m.STag, m.TO = binary.BigEndian.Uint32(u[2:]), binary.BigEndian.Uint64(u[6:])
			} else {
				m.Inv = binary.BigEndian.Uint32(u[2:])
			}
		}
		if tagged {
			m.Payload = append(m.Payload, u[14:]...)
		} else {
			m.Payload = append(m.Payload, u[18:]...)
		}
		if last {
			ms = append(ms, *m)
			open[tagged] = nil
		}
	}
	return private, ms
}
