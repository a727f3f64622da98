package nvmf_test

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"softiser/blockdev"
	"softiser/initiator/blockio"
	. "softiser/initiator/nvmf"
	"softiser/internal/await"
	"softiser/internal/nvme"
)

// A controller that grants fewer, more, shorter or longer queues after a reconnect than
// before gets what was waiting, and what comes.
func TestOtherQueuesAfterReconnect(t *testing.T) {
	for _, c := range []struct {
		first, then     int32 // queues
		entries, deeper int32
		want            int32 // queues afterwards, of 4
	}{
		{4, 1, 0, 0, 1}, {4, 3, 0, 0, 3}, {1, 4, 0, 0, 4}, {2, 9, 0, 0, 4}, {4, 4, 64, 8, 4}, {4, 2, 64, 2, 2}, {2, 3, 8, 64, 3},
	} {
		t.Run(fmt.Sprintf("%d-%d_%d-%d", c.first, c.then, c.entries, c.deeper), func(t *testing.T) {
			f := newFake(t)
			f.grant.Store(c.first)
			f.entries.Store(c.entries)
			cfg := f.config()
			cfg.Queues = 4
			n := open(t, cfg)
			// Enough that every queue has commands outstanding and others waiting.
			f.set(func(q *fakeQueue, k *nvme.Command, e *nvme.CQE) bool { return q.id == 0 })
			const many = 700
			done := make(chan *blockio.Request, many)
			var rs []*blockio.Request
			for i := range many {
				r := &blockio.Request{Op: blockio.OpWrite, Off: int64(i) << 10, Buf: bytes.Repeat([]byte{byte(i)}, 1<<10), Done: func(r *blockio.Request) { done <- r }}
				switch i % 50 {
				case 7:
					r.Op, r.Buf = blockio.OpRead, make([]byte, 1<<10)
				case 9:
					r.Op, r.Buf = blockio.OpFlush, nil
				case 11:
					r.Op, r.Off, r.Len, r.Buf, r.FUA = blockio.OpDiscard, 800<<10, 1<<10, nil, true
				}
				rs = append(rs, r)
			}
			n.SubmitBatch(rs)
			await.True(t, "the controller has the write", func() bool { return f.count("Write") > 0 })
			f.grant.Store(c.then)
			f.entries.Store(c.deeper)
			f.set(nil)
			f.drop()
			for range many {
				if r := <-done; r.Err != nil {
					t.Fatal(r.Err)
				}
			}
			for i, r := range rs {
				if got := f.mem[i<<10]; r.Op == blockio.OpWrite && got != byte(i) {
					t.Fatalf("block %d has %d", i, got)
				}
			}
			if s := n.Describe(); !strings.Contains(s, fmt.Sprintf(" %d I/O queues", c.want)) {
				t.Errorf("%s", s)
			}
			if d, first := n.QueueDepth(), max(c.entries, 128*min(1, 1-c.entries)); d < int(c.want) || first > 0 && d > int(c.want*first) {
				t.Errorf("%d commands at once", d)
			}
			// The requests are used again, whatever queue they were with.
			for _, r := range rs {
				if r.Op == blockio.OpWrite {
					n.Submit(r)
					if x := <-done; x.Err != nil {
						t.Fatal(x.Err)
					}
				}
			}
			if s := n.Stats(); s.Losses != 1 || s.Outstanding != 0 || s.Waiting != 0 {
				t.Errorf("%+v", s)
			}
		})
	}
}

// There are no more queues than the controller has granted of either kind.
func TestFewerCompletionQueues(t *testing.T) {
	f := newFake(t)
	f.grant.Store(4)
	f.completions.Store(2)
	cfg := f.config()
	cfg.Queues = 4
	open(t, cfg)
	if n := f.count("Connect"); n != 3 {
		t.Errorf("%d queues, want the admin queue and 2", n)
	}
}

// A controller that takes shorter transfers after a reconnect than before gets what was
// outstanding, and what waited, in commands that it takes.
func TestShorterTransfersAfterReconnect(t *testing.T) {
	f := newFake(t)
	f.entries.Store(5)
	n := open(t, f.config())
	f.set(func(q *fakeQueue, k *nvme.Command, e *nvme.CQE) bool { return q.id == 0 })
	const many, length = 12, 64 << 10
	done := make(chan *blockio.Request, many)
	var rs []*blockio.Request
	for i := range many {
		r := &blockio.Request{Op: blockio.OpWrite, Off: int64(i) * length, Buf: random(length), Done: func(r *blockio.Request) { done <- r }}
		if i%4 == 3 {
			r.Op = blockio.OpRead
		}
		rs = append(rs, r)
	}
	n.SubmitBatch(rs)
	await.True(t, "the controller has as many as it takes", func() bool { return f.count("Write")+f.count("Read") == 4 })
	f.mu.Lock()
	f.ident.MDTS = 1
	f.mu.Unlock()
	f.set(func(q *fakeQueue, k *nvme.Command, e *nvme.CQE) bool {
		if op := k.SQE.Opcode(); q.id != 0 && (op == nvme.OpWrite || op == nvme.OpRead) && k.SQE.SGL().Length() > 8<<10 {
			e.SetStatus(nvme.InvalidField | nvme.DoNotRetry)
		}
		return true
	})
	f.drop()
	for range many {
		if r := <-done; r.Err != nil {
			t.Errorf("operation %d at %d: %v", r.Op, r.Off, r.Err)
		}
	}
	for i, r := range rs {
		if r.Op == blockio.OpWrite && !bytes.Equal(f.mem[i*length:][:length], r.Buf) {
			t.Errorf("blocks of write %d have something else", i)
		}
	}
}

// A request that was moved to another queue can still be given up, and one that is moved
// while it ends ends once.
func TestMovedAndAbandoned(t *testing.T) {
	f := newFake(t)
	cfg := f.config()
	cfg.Queues = 3
	n := open(t, cfg)
	f.set(func(q *fakeQueue, k *nvme.Command, e *nvme.CQE) bool {
		return q.id == 0 && k.SQE.Opcode() != nvme.AdminAbort
	})
	enough := errors.New("enough")
	const many = 90
	done := make(chan error, many)
	var rs []*blockio.Request
	for range many {
		rs = append(rs, &blockio.Request{Op: blockio.OpRead, Buf: make([]byte, 512), Done: func(r *blockio.Request) { done <- r.Err }})
	}
	n.SubmitBatch(rs)
	await.True(t, "the controller has the reads", func() bool { return f.count("Read") == many })
	f.grant.Store(1)
	f.drop()
	for _, r := range rs[:many/2] { // at any point of the move
		n.Cancel(r, enough)
	}
	f.set(nil)
	await.True(t, "the association is lost", func() bool { return n.Stats().Losses > 0 })
	f.drop() // those that are held are sent again
	for range many {
		if err := <-done; err != nil && !errors.Is(err, enough) {
			t.Error(err)
		}
	}
}

// A controller with room for a single command cannot have a pair.
func TestNoRoomForPair(t *testing.T) {
	f := newFake(t)
	cfg := f.config()
	cfg.QueueDepth = 1
	n := open(t, cfg)
	caw := blockio.Request{Op: blockio.OpCompareAndWrite, Buf: make([]byte, 1024)}
	if err := n.Do(t.Context(), &caw); !errors.Is(err, blockdev.ErrNotSupported) {
		t.Error(err)
	}
	if _, err := n.WriteAt(make([]byte, 4096), 0); err != nil {
		t.Error(err)
	}
}

// A refusal that the controller calls final ends the association when its time is over, with
// the reason; one that comes and goes does not.
func TestRefusedForGood(t *testing.T) {
	for name, tc := range map[string]struct {
		status nvme.Status
		result uint64
		want   string
	}{
		"subsystem gone":   {nvme.ConnectInvalidParameters | nvme.DoNotRetry, nvme.InvalidParameter(true, nvme.ConnectDataAtSubsystem), "there is no such subsystem"},
		"host not allowed": {nvme.ConnectInvalidHost | nvme.DoNotRetry, 0, "this host may not use the subsystem"},
		"keep alive":       {nvme.KeepAliveInvalid | nvme.DoNotRetry, 0, "choose another keep alive timeout"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake(t)
			cfg := f.config()
			cfg.CtrlLossTimeout, cfg.ReconnectDelay = 400*time.Millisecond, 50*time.Millisecond
			n := open(t, cfg)
			var refused atomic.Bool
			f.set(func(q *fakeQueue, k *nvme.Command, e *nvme.CQE) bool {
				if k.SQE.Opcode() == nvme.OpFabrics && k.SQE.FabricsType() == nvme.FabricsConnect {
					refused.Store(true)
					e.SetStatus(tc.status)
					e.SetResult(tc.result)
				}
				return true
			})
			begin := time.Now()
			f.drop()
			// Before that a read may still count as one that the connection was lost under.
			await.True(t, "the controller refuses", refused.Load)
			_, err := n.ReadAt(make([]byte, 4096), 0)
			var ce *ConnectError
			if !errors.Is(err, blockio.ErrSessionLost) || !errors.As(err, &ce) || !ce.DoNotRetry || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%v", err)
			}
			if took := time.Since(begin); took < 300*time.Millisecond {
				t.Errorf("believed after %v", took)
			}
			if s, _ := n.Association().State(); s != StateFailed {
				t.Error(s)
			}
		})
	}
}

// When the association is looked for for ever, a final refusal is believed after a while.
func TestGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gone, busy := &ConnectError{DoNotRetry: true}, &ConnectError{}
		if !Final(gone) || Final(busy) || Final(errors.New("x")) || !Final(fmt.Errorf("y: %w", gone)) {
			t.Error("final")
		}
		now := time.Now()
		time.Sleep(time.Minute)
		for _, c := range []struct {
			limit   time.Duration
			path    bool
			err     error
			down    time.Duration
			refused time.Time
			want    bool
		}{
			{-1, false, gone, time.Minute, now, true}, {-1, false, gone, time.Minute, time.Now(), false}, {-1, false, busy, time.Hour, time.Time{}, false},
			{-1, true, gone, time.Minute, now, false}, {time.Minute, false, gone, time.Second, now, false}, {time.Minute, false, busy, time.Minute, time.Time{}, true},
			{time.Minute, true, busy, time.Hour, time.Time{}, false}, {-1, true, ErrChanged, 0, time.Time{}, false}, {-1, false, ErrChanged, 0, time.Time{}, true},
		} {
			if err := GivesUp(c.limit, c.path, c.err, c.down, c.refused); (err != nil) != c.want || err != nil && !errors.Is(err, c.err) {
				t.Errorf("%+v: %v", c, err)
			}
		}
	})
}

// A path is not taken for fenced before the controller has ended the association, whose keep
// alive timeout may be longer than was asked for.
func TestFenceByGrantedKeepAlive(t *testing.T) {
	for _, c := range []struct {
		kas    uint16
		ms     uint32
		fenced time.Duration // after the loss, at the earliest
	}{{1, 0, 3800 * time.Millisecond}, {100, 0, 23 * time.Second}, {1, 30_000, 63 * time.Second}, {1, 100, 3800 * time.Millisecond}} {
		f := newFake(t)
		f.ident.KAS = c.kas
		f.kato.Store(c.ms)
		cfg := f.config()
		cfg.KeepAlive, cfg.Path = 400*time.Millisecond, true
		begun := time.Now() // no loss is older
		n := open(t, cfg)
		f.ln.Close()
		f.wg.Wait() // nobody connects after the drop
		f.drop()
		await.True(t, "the loss is seen", func() bool { up, _ := n.Connected(); return !up })
		var left time.Duration
		err := n.Fence(t.Context(), nil)
		if err != nil {
			_, s, _ := strings.Cut(err.Error(), "another ")
			if left, err = time.ParseDuration(s); err != nil {
				t.Fatal(err)
			}
		}
		if whole := left + time.Since(begun); whole < c.fenced {
			t.Errorf("%+v: fenced %v after the loss, or sooner", c, whole)
		}
	}
}
