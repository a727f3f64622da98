package nvmetcp_test

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"testing"

	"softiser/internal/nvme"
	. "softiser/internal/nvmetcp"
	"softiser/internal/pcaptest"
)

// captured is one PDU of a captured stream.
type captured struct {
	header []byte
	data   []byte
}

func (p *captured) kind() Type { return Type(p.header[0]) }

// readStream cuts one direction of a captured connection into PDUs, checks their
// digests, and makes each header again from what was read of it.
func readStream(t *testing.T, b []byte, l *Limits) []captured {
	t.Helper()
	castagnoli := crc32.MakeTable(crc32.Castagnoli)
	var out []captured
	for len(b) > 0 {
		if len(b) < CHLen {
			t.Fatalf("%d bytes are left over", len(b))
		}
		h := (*CH)(b)
		lay, f := h.Check(l)
		if f != nil {
			t.Fatal(f)
		}
		if uint64(h.PLen()) > uint64(len(b)) {
			return out // the capture ends inside
		}
		p := captured{header: b[:lay.HLen]}
		if lay.Digest > 0 {
			if got, want := binary.LittleEndian.Uint32(b[lay.HLen:]), crc32.Checksum(p.header, castagnoli); got != want {
				t.Errorf("%s: header digest %08x, want %08x", h.Type(), got, want)
			}
		}
		if lay.Data > 0 {
			p.data = b[lay.PDO:][:lay.Data]
			if lay.DDigest > 0 {
				if got, want := binary.LittleEndian.Uint32(b[lay.PDO+int(lay.Data):]), crc32.Checksum(p.data, castagnoli); got != want {
					t.Errorf("%s: data digest %08x, want %08x", h.Type(), got, want)
				}
			}
		}
		if again := remake(t, &p, l.Digests); !bytes.Equal(again, p.header) {
			t.Errorf("%s was\n%x, made again it is\n%x", h.Type(), p.header, again)
		}
		if h.Type() == TypeICReq {
			r, _ := ParseICReq(p.header)
			l.Digests = r.Digests
		} else if h.Type() == TypeICResp {
			r, _ := ParseICResp(p.header)
			l.Digests = r.Digests
		}
		out = append(out, p)
		b = b[h.PLen():]
	}
	return out
}

// remake encodes what p's header says.
func remake(t *testing.T, p *captured, d Digests) []byte {
	switch p.kind() {
	case TypeICReq:
		r, f := ParseICReq(p.header)
		if f != nil {
			t.Fatal(f)
		}
		return r.AppendTo(nil)
	case TypeICResp:
		r, f := ParseICResp(p.header)
		if f != nil {
			t.Fatal(f)
		}
		return r.AppendTo(nil)
	case TypeCapsuleCmd:
		var c CapsuleCmd
		*c.SQE() = *(*CapsuleCmd)(p.header).SQE()
		c.SetHeader(d, uint32(len(p.data)), 0)
		return c[:]
	case TypeCapsuleResp:
		var c CapsuleResp
		*c.CQE() = *(*CapsuleResp)(p.header).CQE()
		c.SetHeader(d)
		return c[:]
	case TypeH2CData, TypeC2HData, TypeR2T:
		var n Data
		o := (*Data)(p.header)
		n.Set(p.kind(), o.CH().Flags()&(FlagLast|FlagSuccess), d, o.CCCID(), o.TTAG(), o.Offset(), o.Length(), 0)
		return n[:]
	}
	t.Fatalf("%s in the capture", p.kind())
	return nil
}

// Linux's host and target, kernel 6.1: discovery, and I/O queues without and with
// digests. What carries no nonzero field that has no name here is made again byte
// for byte.
func TestCapture(t *testing.T) {
	seen := map[Type]int{}
	pages, logs := map[nvme.CNS]int{}, map[nvme.LogID]int{}
	for _, c := range pcaptest.Open(t, "nvme-tcp") {
		if !c.Complete {
			continue
		}
		up := readStream(t, c.C2S, &Limits{FromHost: true, MaxData: 4 << 20})
		down := readStream(t, c.S2C, &Limits{MaxData: 4 << 20})
		asked := map[uint16]nvme.SQE{}
		admin := false
		for _, p := range up {
			seen[p.kind()]++
			if p.kind() == TypeCapsuleCmd {
				s := (*CapsuleCmd)(p.header).SQE()
				if admin && (s.Opcode() == nvme.AdminIdentify || s.Opcode() == nvme.AdminGetLogPage) {
					asked[s.CID()] = *s // Linux's identifiers have a generation in them
				}
				if s.Opcode() == nvme.OpFabrics && s.FabricsType() == nvme.FabricsConnect {
					checkConnect(t, s, p.data)
					admin = s.Connect().QID() == 0
				}
			}
		}
		for _, p := range down {
			seen[p.kind()]++
			if p.kind() != TypeC2HData {
				continue
			}
			if s, ok := asked[(*Data)(p.header).CCCID()]; ok {
				checkPage(t, &s, p.data, pages, logs)
			}
		}
	}
	for _, k := range []Type{TypeICReq, TypeICResp, TypeCapsuleCmd, TypeCapsuleResp, TypeH2CData, TypeC2HData, TypeR2T} {
		if seen[k] == 0 {
			t.Errorf("no %s in the capture", k)
		}
	}
	for _, c := range []nvme.CNS{nvme.CNSController, nvme.CNSNamespace, nvme.CNSDescriptors, nvme.CNSActiveNamespaces} {
		if pages[c] == 0 {
			t.Errorf("no Identify %02x in the capture", c)
		}
	}
	for _, l := range []nvme.LogID{nvme.LogANA, nvme.LogDiscovery, nvme.LogSMART} {
		if logs[l] == 0 {
			t.Errorf("no log page %02x in the capture", l)
		}
	}
}

func checkConnect(t *testing.T, s *nvme.SQE, data []byte) {
	t.Helper()
	d, err := nvme.ParseConnectData(data)
	if err != nil {
		t.Fatal(err)
	}
	if again := d.AppendTo(nil); !bytes.Equal(again, data) {
		t.Error("Connect's data, made again, is another one")
	}
	var n nvme.SQE
	c, o := n.NewConnect(), s.Connect()
	n.SetCID(s.CID())
	*n.SGL() = *s.SGL()
	c.SetQID(o.QID())
	c.SetSQSize(o.SQSize())
	c.SetAttributes(o.Attributes())
	c.SetKeepAlive(o.KeepAlive())
	if n != *s {
		t.Errorf("Connect was\n%x, made again it is\n%x", *s, n)
	}
}

// checkPage reads a page of Identify or a log, and makes it again.
func checkPage(t *testing.T, s *nvme.SQE, data []byte, pages map[nvme.CNS]int, logs map[nvme.LogID]int) {
	t.Helper()
	var again []byte
	var err error
	if s.Opcode() == nvme.AdminGetLogPage {
		logs[s.GetLogPage().ID()]++
		again, err = remakeLog(s.GetLogPage(), data)
	} else {
		pages[s.Identify().CNS()]++
		again, err = remakeIdentify(s.Identify(), data)
	}
	if err != nil {
		t.Fatal(err)
	}
	if again == nil {
		return
	}
	for i := range data {
		if i >= len(again) || again[i] != data[i] {
			t.Errorf("%s %x: byte %d was %02x and is not made again", s.Opcode().AdminName(), s.CDW(10), i, data[i])
			return
		}
	}
}

func remakeLog(c nvme.GetLogPage, data []byte) ([]byte, error) {
	switch c.ID() {
	case nvme.LogSMART:
		p, err := nvme.ParseSMART(data)
		if err != nil {
			return nil, err
		}
		return p.AppendTo(nil), nil
	case nvme.LogANA:
		n, g, err := nvme.ParseANA(data)
		if err != nil {
			return nil, err
		}
		return append(nvme.AppendANA(nil, n, g, c.ANAGroupsOnly()), make([]byte, 16<<10)...), nil
	case nvme.LogDiscovery:
		gen, n, err := nvme.ParseDiscoveryHeader(data)
		if err != nil {
			return nil, err
		}
		var es []nvme.DiscoveryEntry
		for i := range n {
			if len(data) < (i+2)*nvme.DiscoveryEntryLen {
				break // only the header was asked for
			}
			e, err := nvme.ParseDiscoveryEntry(data[(i+1)*nvme.DiscoveryEntryLen:])
			if err != nil {
				return nil, err
			}
			es = append(es, e)
		}
		if len(es) < n {
			return nil, nil
		}
		return nvme.AppendDiscovery(nil, gen, es), nil
	}
	return nil, nil
}

func remakeIdentify(c nvme.Identify, data []byte) ([]byte, error) {
	switch c.CNS() {
	case nvme.CNSController:
		p, err := nvme.ParseController(data)
		if err != nil {
			return nil, err
		}
		return p.AppendTo(nil), nil
	case nvme.CNSNamespace:
		p, err := nvme.ParseNamespace(data)
		if err != nil {
			return nil, err
		}
		return p.AppendTo(nil), nil
	case nvme.CNSDescriptors:
		p, err := nvme.ParseIdentifiers(data)
		if err != nil {
			return nil, err
		}
		return p.AppendTo(nil), nil
	case nvme.CNSActiveNamespaces:
		ids, err := nvme.ParseNSIDs(data)
		if err != nil {
			return nil, err
		}
		return nvme.AppendNSIDs(nil, ids, c.NSID()), nil
	case nvme.CNSCommandSetController:
		p, err := nvme.ParseCommandSetLimits(data)
		if err != nil {
			return nil, err
		}
		return p.AppendTo(nil), nil
	}
	return nil, nil
}

// A host is answered by the recorded controller, Linux' nvmet, with and without digests,
// its own commands in the place of those that were recorded: each gets what the other one
// got.
func TestHostReplay(t *testing.T) {
	reads, asked, ended := 0, 0, 0
	for _, c := range pcaptest.Open(t, "nvme-tcp") {
		if !c.Complete {
			continue
		}
		up := readStream(t, c.C2S, &Limits{FromHost: true, MaxData: 4 << 20})
		down := readStream(t, c.S2C, &Limits{MaxData: 4 << 20})
		ic, _ := ParseICReq(up[0].header)
		answers := map[uint16][]captured{} // by the recorded identifier
		var order []captured
		for _, p := range down[1:] {
			id := (*Data)(p.header).CCCID()
			if p.kind() == TypeCapsuleResp {
				id = (*CapsuleResp)(p.header).CQE().CID()
			}
			answers[id] = append(answers[id], p)
		}
		for _, p := range up[1:] {
			if p.kind() == TypeCapsuleCmd {
				order = append(order, p)
			}
		}
		q, p := script(t, HostConfig{Digests: ic.Digests}, 1)
		for _, k := range order {
			old := (*CapsuleCmd)(k.header).SQE()
			mine := q.Command(0)
			mine.SQE, mine.Data = *old, nil
			list := answers[old.CID()]
			if len(list) == 0 || old.Opcode() == nvme.AdminAsyncEvent && len(list) > 1 {
				continue // without an answer in the recording
			}
			n := int(old.SGL().Length())
			if n > 0 {
				mine.Data = [][]byte{make([]byte, n)}
			}
			if k.data != nil {
				copy(mine.Data[0], k.data)
			}
			q.H.Submit(mine)
			q.H.Push()
			s, data := p.command()
			if !bytes.Equal(data, k.data) {
				t.Fatalf("%s: %d bytes in the capsule, recorded were %d", old.Opcode().IOName(), len(data), len(k.data))
			}
			again := s
			again.SetCID(old.CID())
			if again != *old {
				t.Fatalf("command\n%x, recorded was\n%x", again, *old)
			}
			var want []byte
		answer:
			for i, a := range list {
				b := bytes.Clone(a.header)
				switch a.kind() {
				case TypeCapsuleResp:
					(*CapsuleResp)(b).CQE().SetCID(s.CID())
					p.write(pdu(b, nil))
					answers[old.CID()] = list[i+1:]
					break answer
				case TypeC2HData:
					binary.LittleEndian.PutUint16(b[AtCCCID:], s.CID())
					want = append(want, a.data...)
					p.write(pdu(b, a.data))
					reads++
				case TypeR2T:
					asked++
					binary.LittleEndian.PutUint16(b[AtCCCID:], s.CID())
					p.write(pdu(b, nil))
					for got := 0; got < n; {
						h, part := p.next()
						if d := (*Data)(h); int(d.Offset()) != got {
							t.Fatalf("%x behind %d bytes", h, got)
						}
						got += len(part)
					}
				}
			}
			mine = q.Wait()
			ended++
			if want != nil && (!bytes.Equal(mine.Data[0][:len(want)], want) || int(mine.Received) != len(want) || mine.Err != nil) {
				t.Fatalf("%d bytes came, recorded were %d: %v", mine.Received, len(want), mine.Err)
			}
		}
		p.nc.Close()
		if err := q.End(); err != nil {
			t.Error(err)
		}
	}
	if reads == 0 || asked == 0 || ended < 40 {
		t.Errorf("%d C2HData, %d R2Ts and %d commands were replayed", reads, asked, ended)
	}
}
