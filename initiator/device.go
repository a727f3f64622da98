package initiator

import (
	"errors"

	"softiser/blockdev"
	"softiser/internal/spc"
)

// The LUN as a blockdev.Device, as far as SCSI has ways of its own; see syncio for the rest.

// Info returns geometry and capabilities as the target last told them.
func (l *LUN) Info() blockdev.Info { return l.geo.Load().info }

// Extents reports the allocation of [off, off+n) by GET LBA STATUS. A target
// without it has data everywhere.
func (l *LUN) Extents(off, n int64) ([]blockdev.Extent, error) {
	if l.closed.Load() {
		return nil, blockdev.ErrClosed
	}
	g := l.geo.Load()
	bs := int64(g.info.BlockSize)
	if err := g.info.Check(off, n); err != nil {
		return nil, err
	}
	if n == 0 {
		return []blockdev.Extent{{Off: off, Data: true}}, nil
	}
	var ext []blockdev.Extent
	add := func(from, to int64, data bool) {
		if k := len(ext) - 1; k >= 0 && ext[k].Data == data {
			ext[k].Len += to - from
			return
		}
		ext = append(ext, blockdev.Extent{Off: from, Len: to - from, Data: data})
	}
	buf := make([]byte, 4<<10)
	for at := off; at < off+n; {
		runs, err := l.lbaStatus(uint64(at/bs), buf)
		if err != nil {
			var se *spc.SenseError
			if !errors.As(err, &se) || se.Sense.Key != spc.KeyIllegalRequest {
				return nil, err
			}
			runs = nil
		}
		before := at
		for _, r := range runs {
			from, to := int64(r.LBA)*bs, int64(r.LBA+uint64(r.Blocks))*bs
			if from > at || to <= at || at >= off+n {
				break // the descriptors have a gap or make no sense: take the rest for data
			}
			to = min(to, off+n)
			add(at, to, r.Status != spc.LBADeallocated)
			at = to
		}
		if at == before {
			add(at, off+n, true)
			break
		}
	}
	return ext, nil
}

// lbaStatus asks for the allocation from lba on.
func (l *LUN) lbaStatus(lba uint64, buf []byte) ([]spc.LBAStatus, error) {
	ended := make(chan struct{})
	r := &Request{Op: OpCDB, CDB: spc.AppendGetLBAStatus(nil, lba, uint32(len(buf))), Buf: buf, DataIn: true, Done: func(*Request) { close(ended) }}
	q, done := l.prepare(r)
	if done {
		return nil, r.Err
	}
	q.once = false // a unit attention is not our caller's affair
	l.path().submit(q)
	<-ended
	if r.Err != nil {
		return nil, r.Err
	}
	return spc.ParseLBAStatus(buf[:len(buf)-int(r.Residual)])
}
