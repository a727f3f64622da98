package initiator

import (
	"errors"
	"io"

	"softiser/blockdev"
	"softiser/internal/spc"
)

// The LUN as a blockdev.Device. Synchronous calls wait for the answer, through
// reconnects if need be; they allocate nothing.

// Info returns geometry and capabilities as the target last told them.
func (l *LUN) Info() blockdev.Info { return l.geo.Load().info }

// call runs one operation and waits for its end.
func (l *LUN) call(set Request) error {
	w := l.waiters.Get().(*waiter)
	w.req.Set(set)
	w.req.Done = w.done
	if l.closed.Load() {
		l.waiters.Put(w)
		return blockdev.ErrClosed
	}
	l.Submit(&w.req)
	<-w.ch
	err := w.req.Err
	w.req.Set(Request{})
	l.waiters.Put(w)
	if errors.Is(err, ErrClosed) {
		err = blockdev.ErrClosed
	}
	return err
}

// ReadAt reads len(p) bytes at off.
func (l *LUN) ReadAt(p []byte, off int64) (int, error) {
	if err := l.call(Request{Op: OpRead, Off: off, Buf: p}); err != nil {
		if errors.Is(err, ErrShort) {
			err = errors.Join(err, io.ErrUnexpectedEOF)
		}
		return 0, err
	}
	return len(p), nil
}

// WriteAt writes p at off.
func (l *LUN) WriteAt(p []byte, off int64) (int, error) {
	if err := l.call(Request{Op: OpWrite, Off: off, Buf: p}); err != nil {
		return 0, err
	}
	return len(p), nil
}

// Flush makes every completed write durable.
func (l *LUN) Flush() error { return l.call(Request{Op: OpFlush}) }

// FlushRange makes completed writes of one range durable.
func (l *LUN) FlushRange(off, n int64) error {
	g := l.geo.Load()
	if err := blockdev.CheckRange(off, n, g.info.Size, g.info.BlockSize); err != nil || n == 0 {
		return err
	}
	return l.call(Request{Op: OpFlush, Off: off, Len: n})
}

// Discard deallocates a range.
func (l *LUN) Discard(off, n int64) error { return l.call(Request{Op: OpDiscard, Off: off, Len: n}) }

// WriteZeroes makes a range read as zeroes, by WRITE SAME where the target has
// it.
func (l *LUN) WriteZeroes(off, n int64, mayUnmap bool) error {
	req := Request{Op: OpWriteZeroes, Off: off, Len: n, MayUnmap: mayUnmap}
	err := l.call(req)
	if errors.Is(err, blockdev.ErrNotSupported) && l.geo.Load().maxSame == 0 {
		err = l.call(req) // the target has no WRITE SAME: this call writes zeroes
	}
	return err
}

// Extents reports the allocation of [off, off+n) by GET LBA STATUS. A target
// without it has data everywhere.
func (l *LUN) Extents(off, n int64) ([]blockdev.Extent, error) {
	if l.closed.Load() {
		return nil, blockdev.ErrClosed
	}
	g := l.geo.Load()
	bs := int64(g.info.BlockSize)
	if err := blockdev.CheckRange(off, n, g.info.Size, g.info.BlockSize); err != nil {
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
	w := l.waiters.Get().(*waiter)
	defer l.waiters.Put(w)
	r := &Request{Op: OpCDB, CDB: spc.AppendGetLBAStatus(nil, lba, uint32(len(buf))), Buf: buf, DataIn: true}
	r.Done = w.done
	q, done := l.prepare(r)
	if done {
		return nil, r.Err
	}
	q.once = false // a unit attention is not our caller's affair
	l.path().submit(q)
	<-w.ch
	if r.Err != nil {
		return nil, r.Err
	}
	return spc.ParseLBAStatus(buf[:len(buf)-int(r.Residual)])
}

// LeaseRead fills l with pool memory that holds the range. Reading takes the
// network's time: NoWait fails with ErrWouldBlock.
func (l *LUN) LeaseRead(ls *blockdev.Lease, off int64, n int, m blockdev.Mode) error {
	if err := l.lend(ls, off, n, m); err != nil || n == 0 {
		return err
	}
	if err := l.call(Request{Op: OpRead, Off: off, Segs: ls.Segs}); err != nil {
		ls.Release()
		return err
	}
	return nil
}

// LeaseWrite fills l with pool memory; Commit writes it.
func (l *LUN) LeaseWrite(ls *blockdev.Lease, off int64, n int, m blockdev.Mode) error {
	if l.geo.Load().info.ReadOnly {
		return blockdev.ErrReadOnly
	}
	if err := l.lend(ls, off, n, m); err != nil {
		return err
	}
	ls.Write = true
	return nil
}

// lend takes staging memory for a range.
func (l *LUN) lend(ls *blockdev.Lease, off int64, n int, m blockdev.Mode) (err error) {
	if l.closed.Load() {
		return blockdev.ErrClosed
	}
	g := l.geo.Load()
	if err := blockdev.CheckRange(off, int64(n), g.info.Size, g.info.BlockSize); err != nil {
		return err
	}
	if m == blockdev.NoWait {
		return blockdev.ErrWouldBlock
	}
	segs, err := l.paths[0].cfg.Pool.Get(ls.Segs[:0], n, m)
	if err != nil {
		return err
	}
	ls.Segs, ls.Off, ls.Len, ls.Write, ls.Direct, ls.Owner = segs, off, n, false, false, l
	return nil
}

// CommitLease writes a filled lease.
func (l *LUN) CommitLease(ls *blockdev.Lease, fua bool) error {
	if ls.Len == 0 {
		return nil
	}
	return l.call(Request{Op: OpWrite, Off: ls.Off, Segs: ls.Segs, FUA: fua})
}

// CommitBlocks is true: a commit waits for the target.
func (l *LUN) CommitBlocks(*blockdev.Lease, bool) bool { return true }

// ReleaseLease gives the memory back.
func (l *LUN) ReleaseLease(ls *blockdev.Lease) {
	l.paths[0].cfg.Pool.Put(ls.Segs)
	ls.Segs = ls.Segs[:0]
}
