package initiator

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"softiser/blockdev"
	"softiser/internal/iscsi"
	"softiser/internal/iscsitcp"
	"softiser/internal/leaktest"
	"softiser/internal/spc"
)

func TestMain(m *testing.M) {
	if ChildMain != nil && ChildMain() {
		return
	}
	leaktest.Main(m, leaktest.Processes(), leaktest.Pool("bytes of staging memory", blockdev.DefaultPool().Out),
		leaktest.Pool("receive buffers", iscsitcp.BuffersOut))
}

// events collects what a session reports.
type events struct {
	mu   sync.Mutex
	list []Event
}

func (e *events) add(ev Event) {
	e.mu.Lock()
	e.list = append(e.list, ev)
	e.mu.Unlock()
}

func (e *events) count(k EventKind) (n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, ev := range e.list {
		if ev.Kind == k {
			n++
		}
	}
	return n
}

func dialLUN(t *testing.T, cfg Config) *LUN {
	t.Helper()
	l, err := Open(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// bubble runs f in a synctest bubble with a fake target; the LUN is closed at
// the end.
func bubble(t *testing.T, f func(t *testing.T, ft *fakeTarget)) {
	synctest.Test(t, func(t *testing.T) { f(t, newFakeTarget(t, 1<<20)) })
}

func TestReadWrite(t *testing.T) {
	bubble(t, func(t *testing.T, ft *fakeTarget) {
		l := dialLUN(t, ft.config())
		want := bytes.Repeat([]byte("abcdefgh"), 1024)
		if _, err := l.WriteAt(want, 4096); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(ft.disk[4096:4096+8192], want) {
			t.Fatal("the target's disk does not hold what was written")
		}
		got := make([]byte, 8192)
		if _, err := l.ReadAt(got, 4096); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Fatal("read something else")
		}
		info := l.Info()
		if info.Size != 1<<20 || info.BlockSize != 512 || !info.WriteCache || !info.Discard || info.ReadOnly {
			t.Fatalf("info %+v", info)
		}
		if id := l.Identity(); id.Name() != "naa.600102030405060708090a0b0c0d0e01" || id.Vendor != "FAKE" {
			t.Fatalf("identity %+v", id)
		}
	})
}

// A request longer than Block Limits allow becomes several commands, whose
// data comes from scattered slices that end anywhere.
func TestSplit(t *testing.T) {
	bubble(t, func(t *testing.T, ft *fakeTarget) {
		l := dialLUN(t, ft.config())
		data := make([]byte, 300<<10)
		for i := range data {
			data[i] = byte(i * 7 / 3)
		}
		segs := [][]byte{data[:1000], data[1000:1001], nil, data[1001:70000], data[70000:]}
		n := len(ft.logged())
		if err := l.Do(context.Background(), &Request{Op: OpWrite, Off: 512, Segs: segs}); err != nil {
			t.Fatal(err)
		}
		if got := len(ft.logged()) - n; got != 5 {
			t.Fatalf("%d commands for 300 KiB with at most 64 KiB each, want 5", got)
		}
		if !bytes.Equal(ft.disk[512:512+len(data)], data) {
			t.Fatal("scattered data arrived wrong")
		}
		back := make([]byte, len(data))
		if err := l.Do(context.Background(), &Request{Op: OpRead, Off: 512, Segs: [][]byte{back[:511], back[511:]}}); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(back, data) {
			t.Fatal("scattered read is wrong")
		}
	})
}

// FUA where the command has no such bit becomes a flush behind the data.
func TestForceUnitAccess(t *testing.T) {
	for _, c := range []struct {
		name  string
		noFUA bool
		r     Request
		want  []string
	}{
		{"FUA bit", false, Request{Op: OpWrite, Buf: make([]byte, 128<<10), FUA: true}, []string{"WRITE(10)", "WRITE(10)"}},
		{"no FUA bit", true, Request{Op: OpWrite, Buf: make([]byte, 128<<10), FUA: true}, []string{"WRITE(10)", "WRITE(10)", "SYNCHRONIZE CACHE(10)"}},
		{"not wanted", true, Request{Op: OpWrite, Buf: make([]byte, 512)}, []string{"WRITE(10)"}},
		{"zeroes", false, Request{Op: OpWriteZeroes, Len: 512, FUA: true}, []string{"WRITE SAME(16)", "SYNCHRONIZE CACHE(10)"}},
		{"compare", true, Request{Op: OpCompareAndWrite, Buf: make([]byte, 1024), FUA: true}, []string{"COMPARE AND WRITE", "SYNCHRONIZE CACHE(10)"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, ft *fakeTarget) {
				ft.noFUA = c.noFUA
				l := dialLUN(t, ft.config())
				n := len(ft.logged())
				r := c.r
				for range 2 { // the request is reused
					if err := l.Do(context.Background(), &r); err != nil {
						t.Fatal(err)
					}
				}
				if got := ft.logged()[n:]; !slices.Equal(got, append(c.want, c.want...)) {
					t.Fatalf("commands %v, want %v twice", got, c.want)
				}
				// A failed write is not flushed, and fails.
				ft.hook = func(d *fakeDM, p *iscsi.PDU) bool {
					d.check(p, spc.Sense{Key: spc.KeyMedium, ASC: spc.ASCWriteError})
					return true
				}
				n = len(ft.logged())
				if err := l.Do(context.Background(), &r); !errors.Is(err, blockdev.ErrMedium) || len(ft.logged()) != n {
					t.Fatalf("%v, then %v", err, ft.logged()[n:])
				}
				ft.hook = nil
			})
		})
	}
}

func TestPrepareRefuses(t *testing.T) {
	bubble(t, func(t *testing.T, ft *fakeTarget) {
		l := dialLUN(t, ft.config())
		before := len(ft.logged())
		buf := make([]byte, 1024)
		for _, c := range []struct {
			r    Request
			want error
		}{
			{Request{Op: OpRead, Off: 1, Buf: buf}, blockdev.ErrUnaligned},
			{Request{Op: OpRead, Off: 0, Buf: buf[:100]}, blockdev.ErrUnaligned},
			{Request{Op: OpRead, Off: 1 << 20, Buf: buf}, blockdev.ErrOutOfRange},
			{Request{Op: OpWrite, Off: 1<<63 - 512, Buf: buf}, blockdev.ErrOutOfRange},
			{Request{Op: OpWrite, Off: -512, Buf: buf}, blockdev.ErrOutOfRange},
			{Request{Op: OpDiscard, Off: 0, Len: -512}, blockdev.ErrOutOfRange},
			{Request{Op: OpCompareAndWrite, Off: 0, Buf: buf[:512]}, blockdev.ErrUnaligned},
			{Request{Op: OpCompareAndWrite, Off: 0, Buf: buf[:511]}, ErrInvalid},
			{Request{Op: OpCompareAndWrite, Off: 0, Buf: make([]byte, 2*512*9)}, ErrInvalid},
			{Request{Op: OpCDB, CDB: []byte{1, 2}}, ErrInvalid},
			{Request{Op: 99}, ErrInvalid},
			{Request{Op: OpCDB + 1}, ErrInvalid}, // a raw command of NVMe
			{Request{Op: OpRead, Off: 0}, nil},
		} {
			r := c.r
			if err := l.Do(context.Background(), &r); !errors.Is(err, c.want) {
				t.Errorf("op %d, off %d, len %d, %d bytes: %v, want %v", c.r.Op, c.r.Off, c.r.Len, len(c.r.Buf), err, c.want)
			}
		}
		if got := len(ft.logged()); got != before {
			t.Errorf("%d commands reached the target", got-before)
		}
	})
}

// What the window and the queue depth do not permit waits, and leaves as
// answers come in.
func TestWindow(t *testing.T) {
	bubble(t, func(t *testing.T, ft *fakeTarget) {
		ft.window = 4
		l := dialLUN(t, ft.config())
		var held []*iscsi.PDU
		var conn *fakeDM
		ft.hook = func(c *fakeDM, p *iscsi.PDU) bool { held, conn = append(held, p), c; return true }
		buf := make([]byte, 512)
		done := 0
		reqs := make([]*Request, 10)
		for i := range reqs {
			reqs[i] = &Request{Op: OpRead, Off: int64(i) * 512, Buf: buf, Done: func(r *Request) {
				if r.Err != nil {
					t.Error(r.Err)
				}
				done++
			}}
		}
		l.SubmitBatch(reqs)
		synctest.Wait()
		if len(held) != 4 {
			t.Fatalf("%d commands at a target whose window is 4", len(held))
		}
		if st := l.Stats(); st.Outstanding != 4 || st.Waiting != 6 {
			t.Fatalf("stats %+v", st)
		}
		ft.hook = nil
		for _, p := range held {
			conn.execute(p)
		}
		synctest.Wait()
		if done != 10 {
			t.Fatalf("%d of 10 requests ended", done)
		}
	})
}

// Commands that Done callbacks submit leave in one push per batch of answers.
func TestSubmitInDoneIsPushedOnce(t *testing.T) {
	bubble(t, func(t *testing.T, ft *fakeTarget) {
		l := dialLUN(t, ft.config())
		var held []*iscsi.PDU
		var conn *fakeDM
		ft.hook = func(c *fakeDM, p *iscsi.PDU) bool { held, conn = append(held, p), c; return true }
		buf := make([]byte, 512)
		left := 8
		again := func(r *Request) {
			if left > 0 {
				left--
				r.Done = func(*Request) {}
				l.Submit(r)
			}
		}
		reqs := make([]*Request, 8)
		for i := range reqs {
			reqs[i] = &Request{Op: OpRead, Buf: buf, Done: again}
		}
		l.SubmitBatch(reqs)
		synctest.Wait()
		conn.mu.Lock()
		pushes := conn.pushes
		conn.mu.Unlock()
		first := held
		held = nil
		// All eight answers are there before the receive goroutine looks.
		conn.mu.Lock()
		for _, p := range first {
			var r iscsi.PDU
			r.BHS.NewSCSIResponse()
			r.BHS.SetITT(p.BHS.ITT())
			r.BHS.SetSequence(iscsi.Sequence{StatSN: conn.statSN, ExpCmdSN: conn.win.ExpCmdSN, MaxCmdSN: conn.win.MaxCmdSN})
			conn.statSN++
			conn.outbox = append(conn.outbox, &r)
		}
		conn.cond.Broadcast()
		conn.mu.Unlock()
		synctest.Wait()
		conn.mu.Lock()
		defer conn.mu.Unlock()
		if len(held) != 8 || conn.pushes != pushes+1 {
			t.Fatalf("%d commands in %d pushes, want 8 in 1", len(held), conn.pushes-pushes)
		}
		ft.hook = nil
		for _, p := range held {
			go conn.execute(p)
		}
	})
}

func TestRetries(t *testing.T) {
	ua := spc.Sense{Key: spc.KeyUnitAttention, ASC: spc.ASCPowerOnReset}
	cases := []struct {
		name   string
		answer func(c *fakeDM, p *iscsi.PDU) // to the first attempts
		times  int
		want   error
	}{
		{"unit attention", func(c *fakeDM, p *iscsi.PDU) { c.check(p, ua) }, 3, nil},
		{"busy", func(c *fakeDM, p *iscsi.PDU) { c.status(p, spc.StatusBusy, nil, 512) }, 5, nil},
		{"task set full", func(c *fakeDM, p *iscsi.PDU) { c.status(p, spc.StatusTaskSetFull, nil, 512) }, 5, nil},
		{"becoming ready", func(c *fakeDM, p *iscsi.PDU) {
			c.check(p, spc.Sense{Key: spc.KeyNotReady, ASC: spc.ASCBecomingReady})
		}, 4, nil},
		{"aborted command", func(c *fakeDM, p *iscsi.PDU) { c.check(p, spc.Sense{Key: spc.KeyAborted, ASC: 0x4705}) }, 2, nil},
		{"task aborted", func(c *fakeDM, p *iscsi.PDU) { c.status(p, spc.StatusTaskAborted, nil, 512) }, 1, nil},
		{"busy for ever", func(c *fakeDM, p *iscsi.PDU) { c.status(p, spc.StatusBusy, nil, 512) }, 1 << 30, ErrBusy},
		{"reservation", func(c *fakeDM, p *iscsi.PDU) { c.status(p, spc.StatusReservationConflict, nil, 512) }, 1 << 30, ErrReservation},
		{"medium error", func(c *fakeDM, p *iscsi.PDU) {
			c.check(p, spc.Sense{Key: spc.KeyMedium, ASC: spc.ASCUnrecoveredRead})
		}, 1 << 30, blockdev.ErrMedium},
		{"no space", func(c *fakeDM, p *iscsi.PDU) {
			c.check(p, spc.Sense{Key: spc.KeyDataProtect, ASC: spc.ASCSpaceAllocFailed})
		}, 1 << 30, blockdev.ErrNoSpace},
		{"write protected", func(c *fakeDM, p *iscsi.PDU) {
			c.check(p, spc.Sense{Key: spc.KeyDataProtect, ASC: spc.ASCWriteProtected})
		}, 1 << 30, blockdev.ErrReadOnly},
		{"out of range", func(c *fakeDM, p *iscsi.PDU) {
			c.check(p, spc.Sense{Key: spc.KeyIllegalRequest, ASC: spc.ASCLBAOutOfRange})
		}, 1 << 30, blockdev.ErrOutOfRange},
		{"short", func(c *fakeDM, p *iscsi.PDU) { c.status(p, spc.StatusGood, nil, 100) }, 1 << 30, ErrShort},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, ft *fakeTarget) {
				cfg := ft.config()
				cfg.CommandTimeout = 10 * time.Second
				l := dialLUN(t, cfg)
				n := 0
				ft.hook = func(d *fakeDM, p *iscsi.PDU) bool {
					if n++; n <= c.times {
						c.answer(d, p)
						return true
					}
					return false
				}
				_, err := l.ReadAt(make([]byte, 512), 0)
				if !errors.Is(err, c.want) {
					t.Fatalf("got %v, want %v", err, c.want)
				}
				if c.want == nil && n != c.times+1 {
					t.Fatalf("%d attempts, want %d", n, c.times+1)
				}
				ft.hook = nil
			})
		})
	}
}

// Unit attentions end at some point, and a raw CDB gets its sense as it is.
func TestUnitAttentionForEver(t *testing.T) {
	bubble(t, func(t *testing.T, ft *fakeTarget) {
		l := dialLUN(t, ft.config())
		n := 0
		ft.hook = func(d *fakeDM, p *iscsi.PDU) bool {
			n++
			d.check(p, spc.Sense{Key: spc.KeyUnitAttention, ASC: spc.ASCNexusLoss})
			return true
		}
		_, err := l.ReadAt(make([]byte, 512), 0)
		var se *spc.SenseError
		if !errors.As(err, &se) || !se.IsUnitAttention() || n != maxAgain+1 {
			t.Fatalf("%v after %d attempts", err, n)
		}
		n = 0
		err = l.Do(context.Background(), &Request{Op: OpCDB, CDB: spc.AppendTestUnitReady(nil)})
		if !errors.As(err, &se) || n != 1 {
			t.Fatalf("raw CDB: %v after %d attempts", err, n)
		}
		ft.hook = nil
	})
}

func TestResize(t *testing.T) {
	bubble(t, func(t *testing.T, ft *fakeTarget) {
		l := dialLUN(t, ft.config())
		sizes := make(chan int64, 4)
		cancel := l.OnResize(func(i blockdev.Info) { sizes <- i.Size })
		ft.mu.Lock()
		ft.disk = append(ft.disk, make([]byte, 1<<20)...)
		ft.mu.Unlock()
		var once sync.Once
		ft.hook = func(d *fakeDM, p *iscsi.PDU) bool {
			told := false
			once.Do(func() { d.check(p, spc.Sense{Key: spc.KeyUnitAttention, ASC: spc.ASCCapacityChanged}); told = true })
			return told
		}
		if _, err := l.ReadAt(make([]byte, 512), 0); err != nil {
			t.Fatal(err)
		}
		if n := <-sizes; n != 2<<20 {
			t.Fatalf("told %d", n)
		}
		if _, err := l.ReadAt(make([]byte, 512), 2<<20-512); err != nil {
			t.Fatal(err)
		}
		cancel()
	})
}

func TestPingKeepsAndKills(t *testing.T) {
	bubble(t, func(t *testing.T, ft *fakeTarget) {
		var ev events
		cfg := ft.config()
		cfg.OnEvent = ev.add
		l := dialLUN(t, cfg)
		time.Sleep(time.Minute)
		if n := l.Stats().Pings; n < 6 || n > 13 {
			t.Fatalf("%d pings in a minute of silence, want one about every 5 s", n)
		}
		ft.mu.Lock()
		ft.deaf = true
		ft.mu.Unlock()
		time.Sleep(13 * time.Second)
		if ev.count(EventLost) == 0 {
			t.Fatal("a target that does not answer pings is still connected after 13 s")
		}
		ft.mu.Lock()
		ft.deaf = false
		ft.mu.Unlock()
		if _, err := l.ReadAt(make([]byte, 512), 0); err != nil {
			t.Fatal(err)
		}
		if ev.count(EventRecovered) == 0 {
			t.Fatal("not recovered")
		}
	})
}

func TestTargetPing(t *testing.T) {
	bubble(t, func(t *testing.T, ft *fakeTarget) {
		dialLUN(t, ft.config())
		d := ft.last()
		ping := func(ttt uint32) {
			var p iscsi.PDU
			p.BHS.NewNopIn()
			p.BHS.SetITT(iscsi.ReservedTag)
			p.BHS.SetTTT(ttt)
			p.BHS.SetLUN(7 << 48)
			p.BHS.SetSequence(iscsi.Sequence{StatSN: d.statSN, ExpCmdSN: d.win.ExpCmdSN, MaxCmdSN: d.win.MaxCmdSN})
			d.raw(&p)
			synctest.Wait()
		}
		ping(iscsi.ReservedTag) // asks for nothing
		ping(0x1234)
		if len(ft.pongs) != 1 {
			t.Fatalf("%d answers, want 1", len(ft.pongs))
		}
		if b := ft.pongs[0]; b.TTT() != 0x1234 || b.LUN() != 7<<48 || !b.Immediate() || !b.Final() {
			t.Fatalf("answer % x", b)
		}
	})
}
