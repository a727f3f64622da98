package initiator

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"softiser/internal/alloctest"
	"softiser/internal/iscsi"
)

// echoDM answers every command with GOOD from inside Push and allocates
// nothing, so that what is measured is the session.
type echoDM struct {
	*fakeDM
	pushing sync.Mutex // one Push at a time: the session's watchman pushes too
	lock    sync.Mutex // guards sent and expCmd
	sent    []uint32
	resp    iscsi.PDU
	expCmd  uint32
	statSN2 uint32
	live    atomic.Bool
}

func (d *echoDM) SendControl(p *iscsi.PDU) error {
	if !d.live.Load() {
		return d.fakeDM.SendControl(p)
	}
	d.lock.Lock()
	defer d.lock.Unlock()
	d.sent = append(d.sent, p.BHS.ITT())
	if p.Bufs != nil {
		p.Bufs.InLen = p.BHS.SCSICommand().EDTL()
	}
	d.expCmd = p.BHS.CmdSN() + 1
	return nil
}

func (d *echoDM) ReleaseTask(*iscsi.TaskBuffers) {}

func (d *echoDM) Push() {
	if !d.live.Load() {
		d.fakeDM.Push()
		return
	}
	d.pushing.Lock()
	defer d.pushing.Unlock()
	for i := 0; ; i++ { // answering may send more
		d.lock.Lock()
		if i == len(d.sent) {
			d.sent = d.sent[:0]
			d.lock.Unlock()
			return
		}
		itt, exp := d.sent[i], d.expCmd
		d.lock.Unlock()
		r := d.resp.BHS.NewSCSIResponse()
		r.SetITT(itt)
		d.resp.BHS.SetSequence(iscsi.Sequence{StatSN: d.statSN2, ExpCmdSN: exp, MaxCmdSN: exp + 63})
		d.statSN2++
		d.up.ControlNotify(&d.resp)
	}
}

// echoLUN opens a LUN of the fake and then replaces the target by the echo.
func echoLUN(tb testing.TB) *LUN {
	ft := newFakeTarget(tb, 1<<20)
	var dm *echoDM
	cfg := ft.config()
	cfg.NopInterval = -1
	cfg.ResetTimeout = 4 * time.Millisecond // the watchman looks every millisecond: it takes part
	cfg.dial = func(ctx context.Context, c *Config, addr string) (iscsi.Datamover, error) {
		d, err := ft.dial(ctx, c, addr)
		dm = &echoDM{fakeDM: d.(*fakeDM)}
		return dm, err
	}
	l, err := Open(context.Background(), cfg)
	if err != nil {
		tb.Fatal(err)
	}
	s := l.Sessions()[0]
	s.mu.Lock()
	dm.statSN2 = s.conn.expStatSN
	dm.sent = make([]uint32, 0, 256)
	dm.live.Store(true)
	s.mu.Unlock()
	tb.Cleanup(func() {
		s.mu.Lock()
		dm.live.Store(false)
		s.mu.Unlock()
		dm.cut(nil)
		l.Close()
	})
	return l
}

func TestNoAllocations(t *testing.T) {
	l := echoLUN(t)
	buf := make([]byte, 256<<10)
	// The session's watchman pushes too, and so may end a request that was submitted here.
	var ended sync.WaitGroup
	done := func(*Request) { ended.Done() }
	r := &Request{Done: done}
	submit := func(op Op, n int) func() {
		return func() {
			r.Op, r.Off, r.Buf, r.Len = op, 4096, buf[:n], int64(n)
			ended.Add(1)
			l.Submit(r)
			ended.Wait()
			if r.Err != nil {
				t.Fatal(r.Err)
			}
		}
	}
	batch := make([]*Request, 32)
	for i := range batch {
		batch[i] = &Request{Op: OpRead, Buf: buf[:4096], Done: done}
	}
	for name, f := range map[string]func(){
		"read 4 KiB":              submit(OpRead, 4096),
		"write 4 KiB":             submit(OpWrite, 4096),
		"read 256 KiB in 4":       submit(OpRead, 256<<10),
		"write 256 KiB in 4":      submit(OpWrite, 256<<10),
		"discard":                 submit(OpDiscard, 64<<10),
		"write zeroes":            submit(OpWriteZeroes, 64<<10),
		"flush":                   submit(OpFlush, 0),
		"batch of 32":             func() { ended.Add(len(batch)); l.SubmitBatch(batch); ended.Wait() },
		"ReadAt, synchronous":     func() { l.ReadAt(buf[:4096], 0) },
		"WriteAt, synchronous":    func() { l.WriteAt(buf[:4096], 0) },
		"Do with a context":       func() { r.Op, r.Buf = OpRead, buf[:4096]; l.Do(context.Background(), r); r.Done = done },
		"Flush as a block device": func() { l.Flush() },
	} {
		f() // warm
		if n := alloctest.PerRun(200, f); n > 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

// BenchmarkSubmit measures what a session costs per command, without transport.
func BenchmarkSubmit(b *testing.B) {
	l := echoLUN(b)
	buf := make([]byte, 4096)
	var ended sync.WaitGroup
	done := func(*Request) { ended.Done() }
	b.Run("one", func(b *testing.B) {
		r := &Request{Op: OpRead, Buf: buf, Done: done}
		b.ReportAllocs()
		b.SetBytes(4096)
		for b.Loop() {
			ended.Add(1)
			l.Submit(r)
			ended.Wait()
		}
	})
	b.Run("batch32", func(b *testing.B) {
		rs := make([]*Request, 32)
		for i := range rs {
			rs[i] = &Request{Op: OpRead, Buf: buf, Done: done}
		}
		b.ReportAllocs()
		b.SetBytes(32 * 4096)
		for b.Loop() {
			ended.Add(len(rs))
			l.SubmitBatch(rs)
			ended.Wait()
		}
	})
}
