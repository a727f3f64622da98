package pdustream_test

import (
	"slices"
	"testing"
	"time"

	"softiser/internal/loopback"
	"softiser/internal/sockio"
)

// newSending is an outbox over a socket whose other end reads everything.
func newSending(t *testing.T) (*outbox, *sockio.Conn) {
	t.Helper()
	a, b := loopback.Pair(t)
	sk, err := sockio.New(b, sockio.Options{})
	if err != nil {
		t.Fatal(err)
	}
	read := make(chan struct{})
	go func() {
		defer close(read)
		for buf := make([]byte, 1<<20); ; {
			if _, err := a.Read(buf); err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() { sk.Close(); a.Close(); <-read })
	return newOutbox(sk), sk
}

// TestNothingToDo: nobody transmits where nothing waits, or while somebody has seized the
// queue. There is no socket: who tried would crash.
func TestNothingToDo(t *testing.T) {
	o := newOutbox(nil)
	o.Turn(1)
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.HandOver(); o.drained || o.Busy() {
		t.Error("somebody has transmitted nothing")
	}
	o.Seize()
	if o.add(1); !o.Busy() || o.Sending() {
		t.Errorf("seized: busy %v, sending %v", o.Busy(), o.Sending())
	}
	o.HandOver()
	o.mu.Unlock()
	o.Turn(1)
	o.mu.Lock()
	if o.Empty() || !o.Busy() {
		t.Error("it was sent all the same")
	}
	o.Yield()
	o.Stop() // there is no goroutine
}

// TestHandOver: the transmit goroutine does it all, as often as it is asked to, and has the
// queue from then on.
func TestHandOver(t *testing.T) {
	o, _ := newSending(t)
	o.mu.Lock()
	defer o.mu.Unlock()
	for n := range 3 {
		o.add(n, make([]byte, 100))
		if o.HandOver(); !o.Busy() || len(o.gone) != n {
			t.Fatalf("busy %v, %d have gone", o.Busy(), len(o.gone))
		}
		o.Seize()
		if len(o.gone) != n+1 || o.Sending() {
			t.Errorf("%d of %d have gone, sending %v", len(o.gone), n+1, o.Sending())
		}
		o.Yield()
	}
	o.Stop()
	o.Stop()
}

// TestHandOverOfAClosedSocket: the transmit goroutine says that it could not wait, and lets go.
func TestHandOverOfAClosedSocket(t *testing.T) {
	o, sk := newSending(t)
	sk.Close()
	o.mu.Lock()
	defer o.mu.Unlock()
	o.add(1)
	o.HandOver()
	if o.Seize(); o.failed == nil || len(o.gone) != 0 {
		t.Errorf("%v, gone are %v", o.failed, o.gone)
	}
	o.Purge()
	o.Stop()
}

// TestYieldIsTold: who waits for the queue gets it.
func TestYieldIsTold(t *testing.T) {
	o := newOutbox(nil)
	o.mu.Lock()
	o.Seize()
	waits, has := make(chan struct{}), make(chan struct{})
	go func() {
		o.mu.Lock()
		close(waits)
		o.Seize()
		o.mu.Unlock()
		close(has)
	}()
	o.mu.Unlock()
	<-waits
	o.mu.Lock() // so it waits now
	o.Yield()
	o.mu.Unlock()
	select {
	case <-has:
	case <-time.After(20 * time.Second):
		t.Fatal("it does not get it")
	}
}

// TestEndOfACallIsTold: who waits for a system call to leave its memory is told when that ends,
// not when everything has been sent.
func TestEndOfACallIsTold(t *testing.T) {
	o, _ := newSending(t)
	told := make(chan struct{})
	o.sealing = func(p *item) {
		o.mu.Lock()
		if !o.Sending() || !o.Busy() {
			t.Errorf("PDU %d: sending %v, busy %v", p.number, o.Sending(), o.Busy())
		}
		if p.number == 1 {
			waits := make(chan struct{})
			go func() {
				o.mu.Lock()
				close(waits)
				o.cond.Wait()
				o.mu.Unlock()
				close(told)
			}()
			o.mu.Unlock()
			<-waits
			o.mu.Lock() // so it waits now
		}
		o.mu.Unlock()
		if p.number == 2 {
			select {
			case <-told:
			case <-time.After(20 * time.Second):
				t.Error("nobody is told of the end of the first call")
			}
		}
	}
	o.mu.Lock()
	o.add(1, make([]byte, 2<<20)) // a call of its own
	o.add(2)
	o.HandOver()
	o.Seize()
	if o.Sending() || len(o.gone) != 2 {
		t.Errorf("sending %v, gone are %v", o.Sending(), o.gone)
	}
	o.Stop()
	o.mu.Unlock()
	<-told
}

// TestSettle: up-calls come before what is sent next, and those that the end of the queue leads
// to may fill it again.
func TestSettle(t *testing.T) {
	o, _ := newSending(t)
	var did []string
	o.sealing = func(p *item) { did = append(did, "PDU") }
	o.settle = func() bool {
		switch {
		case len(did) == 0:
			did = append(did, "before")
			return true
		case o.drained && !slices.Contains(did, "behind"):
			did = append(did, "behind")
			o.add(2)
			return true
		}
		return false
	}
	o.mu.Lock()
	o.add(1)
	o.mu.Unlock()
	o.Turn(1 << 20)
	if !slices.Equal(did, []string{"before", "PDU", "behind", "PDU"}) || !o.Empty() {
		t.Errorf("%v", did)
	}
}
