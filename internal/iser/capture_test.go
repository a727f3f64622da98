package iser

import (
	"bytes"
	"encoding/binary"
	"testing"

	"softiser/internal/iscsi"
	"softiser/internal/iscsi/datamovertest"
	"softiser/internal/pcaptest"
)

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
				reqPriv, up := pcaptest.Messages(c.C2S)
				repPriv, down := pcaptest.Messages(c.S2C)
				if !bytes.Equal(reqPriv[4:], privateData(true)) || !bytes.Equal(repPriv[4:], privateData(allowsInvalidate(reqPriv[4:]))) {
					t.Errorf("private data % x, % x", reqPriv[4:], repPriv[4:])
				}
				tasks := map[uint32]*capturedTask{}
				byWrite, byRead := map[uint32]*capturedTask{}, map[uint32]*capturedTask{}
				discovery := false
				for _, m := range up {
					if m.Op != pcaptest.OpSend {
						continue
					}
					h, bhs, data := reencode(t, m.Payload)
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
					switch m.Op {
					case pcaptest.OpSend, pcaptest.OpSendInv:
						h, bhs, data := reencode(t, m.Payload)
						seen[bhs.Opcode()]++
						if h.wsv || h.rsv {
							t.Error("the target advertises a buffer")
						}
						login := bhs.Opcode() == iscsi.OpLoginResponse
						if len(data) > linuxControlData && !login && !discovery {
							t.Errorf("%s with %d bytes of data in the full feature phase", bhs.Opcode(), len(data))
						}
						if m.Op == pcaptest.OpSendInv {
							if byRead[m.Inv] == nil && byWrite[m.Inv] == nil || bhs.Opcode() != iscsi.OpSCSIResponse {
								t.Errorf("%s invalidates STag %#x, which no command has", bhs.Opcode(), m.Inv)
							}
							invalidated++
						}
					case pcaptest.OpWrite:
						k := byRead[m.STag]
						if k == nil {
							t.Errorf("RDMA Write to unknown STag %#x", m.STag)
							continue
						}
						if off := m.TO - k.ref.ReadBase; off > uint64(k.edtl) || uint64(len(m.Payload)) > uint64(k.edtl)-off {
							t.Errorf("RDMA Write of %d bytes at %d of %d", len(m.Payload), off, k.edtl)
						}
						writes++
					case pcaptest.OpReadReq:
						size, stag, to := binary.BigEndian.Uint32(m.Payload[12:]), binary.BigEndian.Uint32(m.Payload[16:]), binary.BigEndian.Uint64(m.Payload[20:])
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
