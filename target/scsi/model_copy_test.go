package scsi

import (
	"bytes"
	"encoding/binary"

	"softiser/internal/spc"
)

// The steps of the property test that copy blocks, or concern all of them.

// copied notes that blocks from..from+n have been copied to..to+n by a command
// with result got.
func (m *model) copied(got *result, from, to, n, bs int) {
	switch got.status {
	case spc.StatusGood:
		copy(m.data[to*bs:(to+n)*bs], bytes.Clone(m.data[from*bs:(from+n)*bs]))
		copy(m.known[to:to+n], append([]bool(nil), m.known[from:from+n]...))
	case spc.StatusTaskAborted:
		clear(m.known[to : to+n])
	default:
		m.t.Errorf("% x: %v, %v", got.cdb, got.status, got.sd)
	}
}

// xcopy copies by EXTENDED COPY in one or two segments.
func (m *model) xcopy(from, to, n, bs int) {
	lu := m.r.dev.lookup(0)
	unit := spc.AppendCopyTarget(nil, spc.Designator{CodeSet: spc.CodeSetBinary, Type: spc.DesignatorNAA, ID: lu.vol.Identity().NAA}, uint32(bs))
	seg := spc.CopySegment{Type: spc.CopyBlockToBlock, Blocks: uint16(n), SrcLBA: m.base + uint64(from), DstLBA: m.base + uint64(to)}
	if m.rnd.IntN(2) == 0 {
		seg.Type, seg.Bytes = spc.CopyBlockOffset, uint32(n*bs)
	}
	list := copyList(byte(m.rnd.IntN(256)), unit, seg)
	m.copied(m.send(xcopy(list), list, 0), from, to, n, bs)
}

func tokenCDB(sa byte, id uint32, list []byte) []byte {
	cdb := make([]byte, 16)
	cdb[0], cdb[1] = byte(spc.OpThirdPartyOut), sa
	binary.BigEndian.PutUint32(cdb[6:], id)
	binary.BigEndian.PutUint32(cdb[10:], uint32(len(list)))
	return cdb
}

// token copies by a token, or writes zeroes by the zero token.
func (m *model) token(from, to, n, bs int) {
	w := spc.WriteUsingToken{Ranges: []spc.Range{{LBA: m.base + uint64(to), Blocks: uint32(n)}}}
	if m.rnd.IntN(3) > 0 {
		z := spc.RODToken{Type: spc.RODZero}
		w.Token = z.Append(nil)
		list := w.Append(nil)
		m.wrote(m.send(tokenCDB(spc.SAWriteUsingToken, 1, list), list, 0), to, n, bs, make([]byte, n*bs))
		return
	}
	// Longer than all the commands that may come in between can take, however slow
	// the machine: TestTokenExpires has the end of a token.
	p := spc.PopulateToken{Timeout: maxTokenSeconds, Ranges: []spc.Range{{LBA: m.base + uint64(from), Blocks: uint32(n)}}}
	list := p.Append(nil)
	if got := m.send(tokenCDB(spc.SAPopulateToken, 2, list), list, 0); got.status != spc.StatusGood {
		if got.status != spc.StatusTaskAborted {
			m.t.Errorf("POPULATE TOKEN: %v, %v", got.status, got.sd)
		}
		return
	}
	cdb := make([]byte, 16)
	cdb[0], cdb[1], cdb[5] = byte(spc.OpThirdPartyIn), spc.SARODTokenInfo, 2
	binary.BigEndian.PutUint32(cdb[10:], 1024)
	got := m.send(cdb, nil, 1024)
	if got.status != spc.StatusGood {
		if got.status != spc.StatusTaskAborted {
			m.t.Errorf("RECEIVE ROD TOKEN INFORMATION: %v, %v", got.status, got.sd)
		}
		return
	}
	info, err := spc.ParseRODInfo(got.data)
	if err != nil || len(info.Token) != spc.RODTokenLen {
		m.t.Errorf("ROD TOKEN INFORMATION: %+v, %v", info, err)
		return
	}
	w.Token = info.Token
	list = w.Append(nil)
	m.copied(m.send(tokenCDB(spc.SAWriteUsingToken, 3, list), list, 0), from, to, n, bs)
}

// status checks GET LBA STATUS: what it calls deallocated reads as zeroes.
func (m *model) status(k, n, bs int) {
	got := m.send(spc.AppendGetLBAStatus(nil, m.base+uint64(k), 512), nil, 512)
	if got.status != spc.StatusGood {
		return
	}
	runs, err := spc.ParseLBAStatus(got.data)
	if err != nil || len(runs) == 0 || runs[0].LBA != m.base+uint64(k) {
		m.t.Errorf("GET LBA STATUS: %+v, %v", runs, err)
		return
	}
	for i := range min(n, int(runs[0].Blocks)) {
		if runs[0].Status == spc.LBADeallocated && m.known[k+i] && !allZero(m.data[(k+i)*bs:][:bs]) {
			m.t.Errorf("block %d holds data and is told to be deallocated", m.base+uint64(k+i))
		}
	}
}

// format makes the whole unit hold one pattern, by FORMAT UNIT or SANITIZE, while
// nobody else uses it.
func (m *model) format(all []*model, bs int) {
	p := byte(1 + m.rnd.IntN(255))
	f := spc.FormatList{Flags: spc.FormatFOV | spc.FormatIP, PatternType: 1, Pattern: []byte{p}}
	cdb, list := []byte{0x04, 0x10, 0, 0, 0, 0}, f.Append(nil, false)
	if m.rnd.IntN(2) == 0 {
		cdb, list = []byte{0x48, 0x01, 0, 0, 0, 0, 0, 0, 5, 0}, []byte{0x01, 0, 0, 1, p}
	}
	c := m.r.start(m.n, 0, cdb, list, 0)
	for got := m.r.finish(c); got.status != spc.StatusGood; got = m.r.finish(m.r.start(m.n, 0, cdb, list, 0)) {
		if got.sd.Key != spc.KeyUnitAttention {
			m.t.Errorf("% x: %v, %v", cdb, got.status, got.sd)
			return
		}
	}
	for _, x := range all {
		for i := range x.data {
			x.data[i] = p
		}
		for i := range x.known {
			x.known[i] = true
		}
	}
	got := m.send(spc.AppendRead(nil, m.base, modelBlocks, false), nil, modelBlocks*bs)
	if got.status == spc.StatusGood {
		m.compare(got.data, 0, bs, "READ after formatting")
	}
}
