package ud

import (
	"bytes"
	"encoding/binary"
	"testing"

	"softiser/internal/pcaptest"
	"softiser/rdma/internal/roce/mad"
	"softiser/rdma/internal/roce/message"
	"softiser/rdma/internal/roce/packet"
	"softiser/rdma/internal/verbs"
	"softiser/rdma/internal/verbstest"
)

// Every datagram of the captured programs but those of connection managers is received,
// with the network header that it had, and comes out as it was when it is sent.
func TestAsLinux(t *testing.T) {
	for name, want := range map[string]int{"udaddy-sidr": 6, "mckey-multicast": 5, "ibv_ud_pingpong": 6, "ib_send_bw-ud": 20} {
		n := 0
		for i, d := range pcaptest.RoCE(t, name) {
			p, err := packet.Parse(d.Payload())
			if err != nil {
				t.Fatal(err)
			}
			if p.Op.Service() != packet.UD || p.QPN == mad.GSIQPN {
				continue
			}
			n++
			cfg := Params{QPN: p.DETH.SrcQPN, QKey: p.DETH.QKey, MTU: packet.MTU4096, PSN: p.PSN}
			v := verbstest.NewQP(t)
			v.Connect()
			rx, tx := NewReceiver(v.QP, cfg), NewSender(v.QP, cfg)
			buf := v.Buffer(t, GRHLen+len(p.Payload))
			rx.Receive(d.Src().Addr(), d.Dst().Addr(), &p)
			wcs := rx.TakeWCs(nil)
			if len(wcs) != 1 || wcs[0].Status != verbs.StatusSuccess || int(wcs[0].ByteLen) != len(buf) || wcs[0].SrcQPN != p.DETH.SrcQPN {
				t.Fatalf("%s: packet %d: %+v", name, i, wcs)
			}
			if !bytes.Equal(buf[GRHLen:], p.Payload) || !bytes.Equal(buf[:GRHLen], asDelivered(d.IP)) {
				t.Errorf("%s: packet %d delivered behind\n%x", name, i, buf[:GRHLen])
			}
			op := verbs.OpSend
			if p.Op.Traits()&packet.HasImm != 0 {
				op = verbs.OpSendImm
				if wcs[0].Imm != uint64(p.Imm) || wcs[0].Flags&verbs.WCWithImm == 0 {
					t.Errorf("%s: packet %d: immediate data %+v", name, i, wcs[0])
				}
			}
			ah := &verbs.AddressHandle{Addr: d.Dst().Addr()}
			v.Queue(op, bytes.Clone(p.Payload), func(e *verbs.WQE) {
				e.Dest, e.Imm = verbs.Destination{AH: ah, QPN: p.QPN, QKey: p.DETH.QKey}, uint64(p.Imm)
				if p.Solicited {
					e.Flags = verbs.FlagSolicited
				}
			})
			var out message.Outgoing
			if to, ok := tx.Next(&out); !ok || to != ah {
				t.Fatalf("%s: packet %d is not sent", name, i)
			}
			out.Packet.AckReq = p.AckReq // rxe asks for one on some, which a datagram does not get
			if got, want := packet.Append(nil, &out.Packet, out.N), d.Payload()[:p.Op.HeaderLen()]; !bytes.Equal(got, want) {
				t.Errorf("%s: packet %d begins with\n%x, was\n%x", name, i, got, want)
			}
		}
		if n < want {
			t.Errorf("%s: %d datagrams", name, n)
		}
		t.Log(name, n, "datagrams")
	}
}

// rxe's server of udaddy answers with the buffer that it has received into, so that the
// network header that rxe wrote there is on the wire.
func TestGRHAsLinux(t *testing.T) {
	var asked []byte
	for _, d := range pcaptest.RoCE(t, "udaddy-sidr") {
		p, err := packet.Parse(d.Payload())
		if err != nil {
			t.Fatal(err)
		}
		switch {
		case p.QPN == mad.GSIQPN:
		case asked == nil:
			asked = asDelivered(d.IP)
		case bytes.HasPrefix(p.Payload[20:], []byte{0x45}):
			if got := asDelivered(p.Payload[20:40]); !bytes.Equal(got, asked) || !bytes.Equal(p.Payload[:20], make([]byte, 20)) {
				t.Errorf("%x, want %x", got, asked)
			}
			return
		}
	}
	t.Error("no answer")
}

// asDelivered is an IP header in a receive buffer, but for what a socket is not told.
func asDelivered(ip []byte) []byte {
	if ip[0]>>4 == 6 {
		h := bytes.Clone(ip[:40])
		h[0], h[1], h[2], h[3], h[7] = 0x60, 0, 0, 0, 64
		return h
	}
	h := make([]byte, GRHLen)
	copy(h[20:], ip[:20])
	was := checksum(h[20:])
	h[21], h[24], h[25], h[28], h[30], h[31] = 0, 0, 0, 64, 0, 0
	if was != 0 { // with the checksum in it: it was not right
		return nil
	}
	binary.BigEndian.PutUint16(h[30:], checksum(h[20:]))
	return h
}

func checksum(b []byte) uint16 {
	sum := 0
	for i := 0; i < len(b); i += 2 {
		sum += int(b[i])<<8 | int(b[i+1])
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}
