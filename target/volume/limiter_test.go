package volume

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// copies starts a copy of n bytes within the volume, for a client.
func (b *bench) copies(c *Client, n int64) (*Copy, chan error) {
	b.t.Helper()
	r, _ := b.start(nil, c, Simple, 0, ^uint64(0), HoldNone)
	x := b.v.NewCopy(&r.op)
	ended := make(chan error, 1)
	go func() {
		_, _, err := x.Bytes(b.v, 0, b.v, 512<<10, n)
		x.End()
		r.end()
		ended <- err
	}()
	return x, ended
}

// A copy pays for what it reads and for what it writes, one piece after the other.
func TestCopyIsLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := serve(t, new(Registry), Config{Device: newDevice(t, "a"), QoS: QoS{BytesPerSec: 128 << 10, BurstBytes: 1}}, "x")
		began := time.Now()
		_, ended := b.copies(new(Client), 512<<10)
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
		// What is written at last leaves a debt.
		if d := time.Since(began); d < 3900*time.Millisecond || d > 4100*time.Millisecond {
			t.Errorf("512 KiB were copied in %v at 128 KiB/s, 4 s are what reading them costs", d)
		}
		_, ended = b.copies(new(Client), 512)
		<-ended
		if d := time.Since(began); d < 7900*time.Millisecond || d > 8100*time.Millisecond {
			t.Errorf("a second copy has ended after %v; writing what the first one wrote costs 4 s more", d)
		}
		b.v.SetQoS(QoS{})
		began = time.Now()
		_, ended = b.copies(new(Client), 512<<10)
		if err := <-ended; err != nil || time.Since(began) != 0 {
			t.Errorf("without a limit: %v after %v", err, time.Since(began))
		}
	})
}

// A copy that waits for its turn takes turns with other clients, and leaves when it is
// aborted.
func TestCopyWaitsItsTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := serve(t, new(Registry), Config{Device: newDevice(t, "a"), QoS: QoS{IOPS: 1, BurstIOs: 1}}, "x")
		first, _ := b.start(nil, new(Client), Simple, 0, 1, HoldRead)
		if b.v.Throttle(&first.op) {
			t.Fatal("the first command waits")
		}
		first.end()
		x, ended := b.copies(new(Client), 512)
		synctest.Wait()
		var waiting []*req
		other := new(Client)
		for range 2 {
			r, _ := b.start(nil, other, Simple, 0, 1, HoldRead)
			if !b.v.Throttle(&r.op) {
				t.Fatal("a command goes ahead of the copy")
			}
			waiting = append(waiting, r)
		}
		// The copy's read at once, for the first command has left no debt; then one a second: the
		// other's first, the copy's write.
		began := time.Now()
		<-waiting[0].steps
		if d := time.Since(began).Round(time.Second); d != time.Second {
			t.Errorf("the other client's first command went after %v", d)
		}
		b.v.stopCopies()
		if err := <-ended; !errors.Is(err, ErrAborted) || !x.Stopped() || time.Since(began).Round(time.Second) != time.Second {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		<-waiting[1].steps
		if d := time.Since(began).Round(time.Second); d != 2*time.Second {
			t.Errorf("the other's second command went after %v: the copy's turn was not given up", d)
		}
		// The read of the copy for a moment, its write for one second; the commands for one and two.
		if got := b.v.Stats().Throttling; got.Commands != 4 || got.Waiting != 0 || got.Waited.Round(time.Second) != 4*time.Second {
			t.Errorf("throttled: %+v", got)
		}
	})
}
