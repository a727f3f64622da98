package iser

import (
	"bytes"
	"encoding/binary"
	"testing"

	"softiser/internal/iscsi"
	"softiser/internal/iscsi/datamovertest"
	"softiser/internal/pcaptest"
)

// message is one RDMAP message of a captured stream.
type message struct {
	op      byte // RDMAP opcode
	inv     uint32
	stag    uint32 // tagged
	to      uint64
	payload []byte
}

// RDMAP opcodes (RFC 5040 §4.1).
const (
	rdmapWrite   = 0
	rdmapReadReq = 1
	rdmapSend    = 3
	rdmapSendInv = 4
)

// messages takes one direction apart: the MPA frame, then FPDUs, put together to
// messages.
func messages(b []byte) (private []byte, ms []message) {
	n := int(binary.BigEndian.Uint16(b[18:]))
	private, b = b[20:20+n], b[20+n:]
	open := map[bool]*message{} // by tagged
	for len(b) > 0 {
		n := int(binary.BigEndian.Uint16(b))
		u := b[2 : 2+n]
		b = b[(2+n+3)&^3+4:]
		tagged, last := u[0]&0x80 != 0, u[0]&0x40 != 0
		m := open[tagged]
		if m == nil {
			m = &message{op: u[1] & 0xf}
			open[tagged] = m
			if tagged {
				m.stag, m.to = binary.BigEndian.Uint32(u[2:]), binary.BigEndian.Uint64(u[6:])
			} else {
				m.inv = binary.BigEndian.Uint32(u[2:])
			}
		}
		if tagged {
			m.payload = append(m.payload, u[14:]...)
		} else {
			m.payload = append(m.payload, u[18:]...)
		}
		if last {
			ms = append(ms, *m)
			open[tagged] = nil
		}
	}
	return private, ms
}

// capturedTask is a command on its way through a capture.
type capturedTask struct {
	ref         stags
	edtl        uint32
	write, read bool
	unsolicited uint32
	fetched     uint32
}

// Everything that ib_iser and isert say to each other is decoded and encoded
// again to the same bytes, and follows the rules that this package follows: the
// private data, the base of the write buffer, which STag a response closes, how
// long data segments are.
func TestCaptures(t *testing.T) {
	seen := map[iscsi.Opcode]int{}
	reads, writes, invalidated, unsolicited := 0, 0, 0, 0
	for _, name := range pcaptest.Names(t, "iser-siw") {
		t.Run(name, func(t *testing.T) {
			for _, c := range pcaptest.Open(t, name) {
				if !bytes.HasPrefix(c.C2S, []byte("MPA ID Req Frame")) || !bytes.HasPrefix(c.S2C, []byte("MPA ID Rep Frame")) {
					continue
				}
				reqPriv, up := messages(c.C2S)
				repPriv, down := messages(c.S2C)
				if !bytes.Equal(reqPriv[4:], privateData(true)) || !bytes.Equal(repPriv[4:], privateData(allowsInvalidate(reqPriv[4:]))) {
					t.Errorf("private data % x, % x", reqPriv[4:], repPriv[4:])
				}
				tasks := map[uint32]*capturedTask{}
				byWrite, byRead := map[uint32]*capturedTask{}, map[uint32]*capturedTask{}
				discovery := false
				for _, m := range up {
					if m.op != rdmapSend {
						continue
					}
					h, bhs, data := reencode(t, m.payload)
					seen[bhs.Opcode()]++
					switch bhs.Opcode() {
					case iscsi.OpLoginRequest:
						discovery = discovery || bytes.Contains(data, []byte("SessionType=Discovery"))
					case iscsi.OpSCSICommand:
						cmd := bhs.SCSICommand()
						k := &capturedTask{ref: h.stags, edtl: cmd.EDTL(), write: cmd.Write(), read: cmd.Read(), unsolicited: uint32(len(data))}
						tasks[bhs.ITT()] = k
						// Tags and STags are used again and again; what follows is looked up by the
						// STag, which is fresh for every command.
						if h.wsv {
							byWrite[h.WriteSTag] = k
						}
						if h.rsv {
							byRead[h.ReadSTag] = k
						}
					case iscsi.OpDataOut:
						if bhs.TTT() != iscsi.ReservedTag {
							t.Error("solicited Data-Out over iSER")
						}
						k := tasks[bhs.ITT()]
						if bhs.DataOut().Offset() != k.unsolicited {
							t.Errorf("Data-Out at %d after %d bytes", bhs.DataOut().Offset(), k.unsolicited)
						}
						k.unsolicited += uint32(len(data))
						unsolicited++
					}
				}
				for _, m := range down {
					switch m.op {
					case rdmapSend, rdmapSendInv:
						h, bhs, data := reencode(t, m.payload)
						seen[bhs.Opcode()]++
						if h.wsv || h.rsv {
							t.Error("the target advertises a buffer")
						}
						login := bhs.Opcode() == iscsi.OpLoginResponse
						if len(data) > linuxControlData && !login && !discovery {
							t.Errorf("%s with %d bytes of data in the full feature phase", bhs.Opcode(), len(data))
						}
						if m.op == rdmapSendInv {
							if byRead[m.inv] == nil && byWrite[m.inv] == nil || bhs.Opcode() != iscsi.OpSCSIResponse {
								t.Errorf("%s invalidates STag %#x, which no command has", bhs.Opcode(), m.inv)
							}
							invalidated++
						}
					case rdmapWrite:
						k := byRead[m.stag]
						if k == nil {
							t.Errorf("RDMA Write to unknown STag %#x", m.stag)
							continue
						}
						if off := m.to - k.ref.ReadBase; off > uint64(k.edtl) || uint64(len(m.payload)) > uint64(k.edtl)-off {
							t.Errorf("RDMA Write of %d bytes at %d of %d", len(m.payload), off, k.edtl)
						}
						writes++
					case rdmapReadReq:
						size, stag, to := binary.BigEndian.Uint32(m.payload[12:]), binary.BigEndian.Uint32(m.payload[16:]), binary.BigEndian.Uint64(m.payload[20:])
						k := byWrite[stag]
						if k == nil {
							t.Errorf("RDMA Read from unknown STag %#x", stag)
							continue
						}
						// The base is the first byte behind the unsolicited data.
						if to != k.ref.WriteBase+uint64(k.fetched) {
							t.Errorf("RDMA Read at %#x, base %#x", to, k.ref.WriteBase)
						}
						if k.fetched += size; k.fetched > k.edtl-k.unsolicited {
							t.Errorf("RDMA Reads of %d bytes, %d are solicited", k.fetched, k.edtl-k.unsolicited)
						}
						reads++
					}
				}
				for stag, k := range byWrite {
					if k.fetched != k.edtl-k.unsolicited {
						t.Errorf("STag %#x: %d of %d solicited bytes were fetched", stag, k.fetched, k.edtl-k.unsolicited)
					}
				}
			}
		})
	}
	t.Log(seen, reads, "Reads", writes, "Writes", invalidated, "invalidations", unsolicited, "Data-Outs")
	if reads == 0 || writes == 0 || invalidated == 0 || unsolicited == 0 {
		t.Errorf("%d Reads, %d Writes, %d invalidations, %d Data-Outs", reads, writes, invalidated, unsolicited)
	}
	for _, op := range []iscsi.Opcode{iscsi.OpLoginRequest, iscsi.OpLoginResponse, iscsi.OpSCSICommand, iscsi.OpSCSIResponse,
		iscsi.OpDataOut, iscsi.OpTextRequest, iscsi.OpTextResponse, iscsi.OpLogoutReq, iscsi.OpLogoutResp, iscsi.OpNopOut, iscsi.OpNopIn, iscsi.OpTaskRequest, iscsi.OpTaskResponse} {
		if seen[op] == 0 {
			t.Errorf("no %s in the captures", op)
		}
	}
}

// reencode takes a message apart and checks that it is put together to the same
// bytes.
func reencode(t *testing.T, msg []byte) (header, *iscsi.BHS, []byte) {
	t.Helper()
	h, bhs, ahs, data, err := split(msg)
	if err != nil {
		t.Fatal(err)
	}
	re := datamovertest.Reencode(bhs)
	out := append(append(append(h.append(nil), re[:]...), ahs...), data...)
	if pad := msg[len(out):]; len(pad) > 3 || len(bytes.Trim(pad, "\x00")) != 0 {
		t.Errorf("padding % x", pad)
	}
	if !bytes.Equal(out, msg[:len(out)]) {
		t.Errorf("%s encoded again differs:\n% x\n% x", bhs.Opcode(), out[:HeaderLen+iscsi.BHSLen], msg[:HeaderLen+iscsi.BHSLen])
	}
	return h, bhs, data
}
