package iscsitcp

import (
	"errors"
	"net"
	"os"
	"testing"
	"time"

	"softiser/internal/await"
	"softiser/internal/iscsi"
	"softiser/internal/pdustream"
)

// pings are framed NOPs, asking for an answer.
func (r *peer) pings(n int) (all []byte) {
	var b iscsi.BHS
	if r.c.role == iscsi.RoleTarget {
		p := b.NewNopOut()
		p.SetITT(1)
		p.SetTTT(iscsi.ReservedTag)
	} else {
		p := b.NewNopIn()
		p.SetITT(iscsi.ReservedTag)
		p.SetTTT(1)
	}
	one := r.frame(b, nil, nil)
	for range n {
		all = append(all, one...)
	}
	return all
}

// A target that sends pings and never reads makes our initiator stop reading it; the
// answers that wait are bounded, and all are sent when it reads.
func TestTargetThatNeverReads(t *testing.T) {
	r := newPeer(t, iscsi.RoleInitiator, nil)
	// Our side of the socket is kept short, not the target's: a receive window that shrinks
	// makes TCP drop what has been sent, and the acknowledgements with it, so that both
	// directions may stand still before we have anything that waits.
	if err := r.c.Net().(*net.TCPConn).SetWriteBuffer(16 << 10); err != nil {
		t.Fatal(err)
	}
	go func() { // the initiator above, as long as the connection has up-calls to make
		for {
			select {
			case p := <-r.up.PDUs:
				var out iscsi.PDU
				q := out.BHS.NewNopOut()
				q.SetITT(iscsi.ReservedTag)
				q.SetTTT(p.BHS.TTT())
				p.Release()
				_ = r.c.SendControl(&out)
				r.c.Push()
			case <-r.c.Ended():
				return
			}
		}
	}()
	batch := r.pings(512)
	rest := batch
	for n := 0; ; n++ {
		if n == 1<<13 {
			t.Fatal("the whole flood was taken")
		}
		_ = r.nc.SetWriteDeadline(time.Now().Add(200 * time.Millisecond))
		k, err := r.nc.Write(rest)
		if rest = rest[k:]; len(rest) == 0 {
			rest = batch
		}
		waiting := r.c.Backlog().Answers
		if waiting > 1<<20 {
			t.Fatalf("%d bytes of answers wait for a target that does not read", waiting)
		}
		if errors.Is(err, os.ErrDeadlineExceeded) && waiting > 16<<10 {
			break
		} else if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatal(err)
		}
	}
	go func() {
		buf := make([]byte, 64<<10)
		for {
			if _, err := r.nc.Read(buf); err != nil {
				return
			}
		}
	}()
	await.True(t, "the answers have been sent", func() bool { return r.c.Backlog().Answers == 0 })
}

// A connection that has failed is not read on, however much its peer sends.
func TestFloodBehindAFailure(t *testing.T) {
	r := newPeer(t, iscsi.RoleTarget, nil)
	const sent = 1 << 14
	flood := r.pings(sent)
	flooded := make(chan struct{})
	go func() {
		defer close(flooded)
		_, _ = r.nc.Write(flood)
	}()
	// The receive goroutine is stuck in an up-call while the connection fails and the
	// socket fills.
	await.True(t, "the upper layer holds PDUs up", func() bool { return len(r.up.PDUs) == cap(r.up.PDUs) })
	r.c.Terminate(errors.New("it has failed"))
	r.up.Release()
	if err := r.up.End(t); err == nil {
		t.Fatal("no reason")
	}
	<-flooded // the socket is closed
	// What had been read by then is all that is looked at.
	if n := r.c.Stats().PDUsIn; n > pdustream.ReadAhead/iscsi.BHSLen+uint64(cap(r.up.PDUs))+10 {
		t.Errorf("%d PDUs of %d were read, most of them behind the end", n, sent)
	}
}
