package scsi

import (
	"testing"
	"testing/synctest"
	"time"

	"softiser/blockdev/faulty"
	"softiser/internal/spc"
)

// TestRateLimit runs in fake time: 100 commands at 100 a second with a burst of
// 10 take 0.9 seconds, and two nexuses with queues of different depth get the
// same share.
func TestRateLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Config{}, LUConfig{Volume: newNamed(t, "a"), QoS: QoS{IOPS: 100}})
		began := time.Now()
		var cs []*call
		read := spc.AppendRead(nil, 0, 1, false)
		for range 90 {
			cs = append(cs, r.start(r.nx[0], 0, read, nil, 512))
		}
		for range 10 {
			cs = append(cs, r.start(r.nx[1], 0, read, nil, 512))
		}
		for _, c := range cs[90:] {
			<-c.done
		}
		if d := time.Since(began); d > 300*time.Millisecond {
			t.Errorf("the shallow queue took %v, its half of the rate would have been 0.2s", d)
		}
		for _, c := range cs {
			r.finish(c).good()
		}
		if d := time.Since(began); d < 850*time.Millisecond || d > 950*time.Millisecond {
			t.Errorf("100 commands took %v, want 0.9s", d)
		}
		// An aborted command leaves its queue at once.
		for range 20 {
			cs = append(cs, r.start(r.nx[0], 0, read, nil, 512))
		}
		began = time.Now()
		if x := r.manage(r.nx[0], AbortTaskSet, 0, nil); x != TMFComplete || time.Since(began) != 0 {
			t.Errorf("%v after %v", x, time.Since(began))
		}
		for _, c := range cs[100:] {
			r.finish(c)
		}
		r.close()
		r.nx = nil
	})
}

// TestBurst: what was not used is there for a burst, of each kind its own, and of
// two initiators that burst at once each gets half of what is left.
func TestBurst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Config{}, LUConfig{Volume: newNamed(t, "a"),
			QoS: QoS{IOPS: 100, BurstIOs: 50, BytesPerSec: 10 << 20, BurstBytes: 1 << 20}})
		time.Sleep(10 * time.Second) // the buckets are full, and no fuller
		began := time.Now()
		read := spc.AppendRead(nil, 0, 1, false)
		for range 50 {
			r.do(read, nil, 512).good()
		}
		if d := time.Since(began); d != 0 {
			t.Errorf("a burst of 50 commands took %v", d)
		}
		var cs []*call
		for _, n := range r.nx {
			for range 20 {
				cs = append(cs, r.start(n, 0, read, nil, 512))
			}
		}
		time.Sleep(210 * time.Millisecond)
		done := [2]int{}
		for i, c := range cs {
			select {
			case <-c.done:
				done[i/20]++
			default:
			}
		}
		if done[0] < 9 || done[0] > 12 || done[1] < 9 || done[1] > 12 {
			t.Errorf("after 210 ms at 100 a second %v commands of the two initiators have ended", done)
		}
		for _, c := range cs {
			r.finish(c).good()
		}
		r.close()
		r.nx = nil
	})
}

func TestByteRateLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Config{}, LUConfig{Volume: newNamed(t, "a"), QoS: QoS{BytesPerSec: 1 << 20, BurstBytes: 1 << 16}})
		began := time.Now()
		for range 16 {
			r.do(spc.AppendWrite(nil, 0, 256, false), make([]byte, 128<<10), 0).good()
		}
		// 2 MiB at 1 MiB/s; the last one leaves a debt, the burst pays 1/16 s.
		if d := time.Since(began); d < 1700*time.Millisecond || d > 2100*time.Millisecond {
			t.Errorf("2 MiB at 1 MiB/s took %v", d)
		}
		r.close()
		r.nx = nil
	})
}

// TestLimitsOfARunningUnit: new rates hold for what waits already, and a unit gets
// more and fewer workers while it has work.
func TestLimitsOfARunningUnit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := faulty.New(newNamed(t, "a"), 1, faulty.Rule{Op: faulty.Read, Delay: time.Second})
		r := newRig(t, Config{}, LUConfig{Volume: slow, Workers: 1}, LUConfig{LUN: 1, Volume: newNamed(t, "b"), QoS: QoS{IOPS: 1}})
		lus := r.dev.LUs()
		read := spc.AppendRead(nil, 0, 1, false)
		var cs []*call
		run := func(lun uint16, n int) {
			cs = cs[:0]
			for range n {
				cs = append(cs, r.start(r.nx[0], lun, read, nil, 512))
			}
		}
		took := func(want time.Duration, what string, change func()) {
			t.Helper()
			began := time.Now()
			change()
			for _, c := range cs {
				r.finish(c).good()
			}
			if d := time.Since(began); d < want*95/100 || d > want*105/100+10*time.Millisecond {
				t.Errorf("%s: %v, want %v", what, d, want)
			}
		}
		run(0, 8)
		synctest.Wait()
		took(2*time.Second, "eight reads of a second each, four at a time after the first", func() { lus[0].vol.SetWorkers(4) })
		run(0, 4)
		synctest.Wait()
		took(time.Second, "four that run", func() { lus[0].vol.SetWorkers(2) })
		run(0, 4)
		took(2*time.Second, "four reads, two at a time", func() {})

		run(1, 101)
		synctest.Wait()
		took(time.Second, "the rate is a hundredfold", func() { lus[1].vol.SetQoS(QoS{IOPS: 100, BurstIOs: 1}) })
		run(1, 50)
		synctest.Wait()
		took(0, "no limit", func() { lus[1].vol.SetQoS(QoS{}) })
		run(1, 3)
		took(0, "no limit", func() {})
		lus[1].vol.SetQoS(QoS{IOPS: 1})
		run(1, 3)
		took(time.Second, "a limit again", func() {})
		r.close()
		r.nx = nil
	})
}
