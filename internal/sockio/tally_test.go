package sockio

import (
	"testing"

	"golang.org/x/sys/unix"

	"softiser/internal/await"
	"softiser/internal/loopback"
)

// What a connection has sent again counts while it is open and after it has ended, once. The
// segments are lost by a filter on the peer's socket, which lets nothing pass.
func TestTally(t *testing.T) {
	var sum Tally
	nc, peer := loopback.Pair(t)
	a, err := New(nc, Options{Tally: &sum})
	if err != nil {
		t.Fatal(err)
	}
	if n := sum.Retransmits(); n != 0 {
		t.Errorf("%d segments were sent again before any was sent", n)
	}
	rc, err := peer.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	drop := []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K}} // of each packet, nothing is kept
	if cerr := rc.Control(func(fd uintptr) {
		err = unix.SetsockoptSockFprog(int(fd), unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: 1, Filter: &drop[0]})
	}); cerr != nil || err != nil {
		t.Skip("no socket filter: ", cerr, err)
	}
	if _, err := a.Writev(vecs([]byte("lost")), false); err != nil {
		t.Fatal(err)
	}
	await.True(t, "TCP has sent again", func() bool { return sum.Retransmits() > 0 })
	n := sum.Retransmits()
	a.Close()
	a.Close() //nolint:errcheck // the second is the test
	if past := sum.Retransmits(); past < n || past > n+3 {
		t.Errorf("%d segments were sent again, %d when the connection has ended", n, past)
	}
	if len(sum.live) != 0 {
		t.Error("the connection is still asked")
	}
	if (*Tally)(nil).Retransmits() != 0 {
		t.Error("nobody has sent again")
	}
}
