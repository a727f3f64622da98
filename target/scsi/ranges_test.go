package scsi

import (
	"bytes"
	"testing"
	"testing/synctest"
	"time"

	"softiser/internal/spc"

	"softiser/blockdev/faulty"
)

// TestCompareAndWriteIsSeenWhole changes 64 blocks over and over by COMPARE AND
// WRITE while others READ, VERIFY and copy them: each must see all of one
// value.
func TestCompareAndWriteIsSeenWhole(t *testing.T) { synctest.Test(t, testSeenWhole) }

func testSeenWhole(t *testing.T) {
	const blocks = 64
	slow := faulty.New(newNamed(t, "a"), 1, faulty.Rule{Op: faulty.Read, Delay: 50 * time.Microsecond, Chance: 0.3})
	r := newRig(t, Config{}, LUConfig{Volume: slow}, LUConfig{LUN: 1, Volume: newNamed(t, "b")})
	r.nexus(3)
	r.nexus(4)
	value := func(v int) []byte { return bytes.Repeat([]byte{byte(v)}, blocks*512) }
	whole := func(what string, p []byte) {
		t.Helper()
		for _, b := range p {
			if b != p[0] {
				t.Errorf("%s saw a COMPARE AND WRITE half done: %d and %d", what, p[0], b)
				return
			}
		}
	}
	stop := make(chan struct{})
	done := make(chan int)
	loop := func(n *Nexus, step func(*Nexus)) {
		for i := 0; ; i++ {
			select {
			case <-stop:
				done <- i
				return
			default:
				step(n)
			}
		}
	}
	read := spc.AppendRead(nil, 0, blocks, false)
	list := copyList(1, append(r.target(0), r.target(1)...), spc.CopySegment{Type: spc.CopyBlockToBlock, Dst: 1, Blocks: blocks, DstLBA: 8})
	go loop(r.nx[1], func(n *Nexus) { whole("READ", r.on(n, 0, read, nil, blocks*512).good().data) })
	go loop(r.nx[2], func(n *Nexus) {
		r.on(n, 0, xcopy(list), list, 0).good()
		whole("EXTENDED COPY", r.on(n, 1, spc.AppendRead(nil, 8, blocks, false), nil, blocks*512).good().data)
	})
	go loop(r.nx[3], func(n *Nexus) {
		got := r.on(n, 0, spc.AppendVerify(nil, 0, blocks, 1), value(7), 0)
		if got.status == spc.StatusCheckCondition && got.sd.Info != 0 {
			t.Errorf("VERIFY of one value found a difference at %d", got.sd.Info)
		}
	})
	for i := range 300 {
		r.do(spc.AppendCompareAndWrite(nil, 0, blocks, false), append(value(i), value(i+1)...), 0).good()
	}
	close(stop)
	for range 3 {
		if n := <-done; n == 0 {
			t.Error("an initiator got no command done")
		}
	}
	r.close()
	r.nx = nil
}

// TestExclusiveWaitsForRead: a READ that has begun is answered from before.
func TestExclusiveWaitsForRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := faulty.New(newVolume(t, 1<<20, 512), 1, faulty.Rule{Op: faulty.Read, Off: 0, Len: 4096, Delay: time.Second, Times: 1})
		r := newRig(t, Config{}, LUConfig{Volume: slow})
		c := r.start(r.nx[1], 0, spc.AppendRead(nil, 0, 8, false), nil, 4096)
		synctest.Wait()
		list := append(make([]byte, 4096), bytes.Repeat([]byte{1}, 4096)...)
		r.do(spc.AppendCompareAndWrite(nil, 0, 8, false), list, 0).good()
		select {
		case <-c.done:
		default:
			t.Error("COMPARE AND WRITE was done while a READ of its blocks was under way")
		}
		if !allZero(r.finish(c).good().data) {
			t.Error("the READ shows what was written after it had begun")
		}
		r.close()
		r.nx = nil
	})
}
