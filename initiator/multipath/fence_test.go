package multipath

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"softiser/blockdev"
	"softiser/initiator/blockio"
)

// A path of several sessions is up while one of them works: what a lost one was carrying may
// still take effect, and waits all the same.
func TestWriteOfALostSessionWaitsForItsFence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := newStorage()
		a := st.path("a")
		a.lag = 20 * time.Second
		v := open(t, Config{}, a)
		w := start(v, write(0, 1))
		time.Sleep(time.Millisecond)
		a.halve()
		time.Sleep(10 * time.Second)
		pending(t, "the write of the lost session", w)
		do(t, v, write(512, 2)) // by the other session
		a.restore()
		if err := <-w; err != nil {
			t.Fatal(err)
		}
		do(t, v, write(0, 3))
		time.Sleep(a.lag)
		if got := st.get(0); got != 3 {
			t.Errorf("the block holds %d: the first copy of a write that was repeated and acknowledged has undone a later one", got)
		}
	})
}

// endsWithItsFence checks that w, a write of block 0 that has timed out on a, ends when that path is fenced, and does
// not undo a later one then.
func endsWithItsFence(t *testing.T, v *Volume, a *fakePath, w <-chan error) {
	t.Helper()
	time.Sleep(10 * time.Second) // in virtual time, as below
	pending(t, "the write that has timed out", w)
	do(t, v, write(512, 2)) // others are not held up
	a.restore()
	if err := <-w; !errors.Is(err, blockio.ErrTimeout) {
		t.Fatalf("after the fence: %v", err)
	}
	do(t, v, write(0, 3))
	time.Sleep(a.lag) // until the late copy has taken effect
	if got := a.st.get(0); got != 3 {
		t.Errorf("the block holds %d: a write that has failed has undone a later one", got)
	}
}

// A write that has timed out with its session ends when nothing of it can come late any more: who has
// written anew since would find it undone.
func TestTimedOutWriteEndsWithItsFence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := newStorage()
		a, b := st.path("a"), st.path("b")
		b.access = blockio.AccessNonOptimized
		a.lag = 20 * time.Second
		a.loses = blockio.ErrTimeoutUnknown
		v := open(t, Config{}, a, b)
		w, r := start(v, write(0, 1)), start(v, read(512))
		time.Sleep(time.Millisecond)
		a.cut()
		if err := <-r; !errors.Is(err, blockio.ErrTimeout) {
			t.Errorf("a read that has timed out: %v", err)
		}
		endsWithItsFence(t, v, a, w)
	})
}

// The same on a path that stays up by another session, and has never been lost or was lost long ago: how long the write
// waits for its fence counts from the loss of its own session.
func TestTimedOutWriteOfALostSessionEndsWithItsFence(t *testing.T) {
	for name, before := range map[string]time.Duration{"never lost": 0, "lost long ago": time.Hour} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				st := newStorage()
				a := st.path("a")
				v := open(t, Config{}, a)
				if before > 0 {
					a.cut()
					time.Sleep(time.Second)
					a.restore()
					time.Sleep(before)
				}
				a.change(func() { a.lag, a.loses = 20*time.Second, blockio.ErrTimeoutUnknown })
				w := start(v, write(0, 1))
				time.Sleep(time.Millisecond)
				a.halve()
				endsWithItsFence(t, v, a, w)
			})
		})
	}
}

// Of a write that a path has failed in one part, another one may come late when it was lost with the path. What was
// refused is repeated behind the fence; with another error the write ends there.
func TestWriteWithALostPartWaitsForItsFence(t *testing.T) {
	for _, why := range []error{blockio.ErrInaccessible, blockdev.ErrMedium} {
		synctest.Test(t, func(t *testing.T) {
			st := newStorage()
			a, b := st.path("a"), st.path("b")
			b.access = blockio.AccessNonOptimized
			a.lag, a.loses = 20*time.Second, blockio.Unknown(why)
			v := open(t, Config{}, a, b)
			w := start(v, write(0, 1))
			time.Sleep(time.Millisecond)
			a.cut()
			time.Sleep(10 * time.Second)
			pending(t, "the write of which a part was lost", w)
			do(t, v, write(512, 2))
			a.restore()
			switch err := <-w; {
			case why == blockio.ErrInaccessible && (err != nil || st.get(0) != 1):
				t.Fatalf("it was not repeated: %v", err)
			case why == blockdev.ErrMedium && !errors.Is(err, why):
				t.Fatalf("after the fence: %v", err)
			}
			do(t, v, write(0, 3))
			time.Sleep(a.lag)
			if got := st.get(0); got != 3 {
				t.Errorf("%v: the block holds %d: a part of an earlier write has undone a later one", why, got)
			}
		})
	}
}

// A write that is lost while its path is being fenced for others waits for the next time.
func TestWhatIsLostWhileAPathIsFencedWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := newStorage()
		a := st.path("a")
		a.fences, a.lag = true, 20*time.Second
		v := open(t, Config{}, a)
		var late <-chan error
		a.inFence = func() { // behind the fence, the sessions having come back
			late = start(v, write(0, 2))
			a.change(func() { a.fences = false })
			a.halve()
		}
		w := start(v, write(512, 1))
		time.Sleep(time.Millisecond)
		a.halve()
		if err := <-w; err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		if late == nil {
			t.Fatal("nobody has fenced the path")
		}
		pending(t, "the write that was lost behind the fence", late)
		a.restore()
		if err := <-late; err != nil || st.get(0) != 2 {
			t.Errorf("%v, %d", err, st.get(0))
		}
	})
}

// A write that its fence lets go when requests fail for want of a path fails too: nothing
// would end its wait.
func TestFencedWriteWithoutAPathFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := newStorage()
		a := st.path("a")
		a.latency = time.Hour
		v := open(t, Config{NoPathRetry: 30 * time.Second}, a)
		w := start(v, write(0, 1))
		time.Sleep(time.Millisecond)
		a.set(blockio.AccessInaccessible)
		time.Sleep(20 * time.Second)
		a.cut()
		time.Sleep(15 * time.Second)
		if err := <-start(v, read(512)); !errors.Is(err, ErrNoPath) {
			t.Fatalf("a read after the wait for a path: %v", err)
		}
		pending(t, "the write, whose path is not fenced", w)
		a.restore() // and does not serve the volume
		time.Sleep(time.Second)
		select {
		case err := <-w:
			if !errors.Is(err, ErrNoPath) {
				t.Error(err)
			}
		default:
			t.Error("the write waits for ever")
		}
	})
}
