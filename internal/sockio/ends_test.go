package sockio

import (
	"net"
	"slices"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// pairsOf are n TCP connections: the ends that are asked about, and the others.
func pairsOf(t testing.TB, n int) (rcs []syscall.RawConn, ours, theirs []*net.TCPConn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for range n {
		peer, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		c, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		rc, err := c.(*net.TCPConn).SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		rcs, ours, theirs = append(rcs, rc), append(ours, c.(*net.TCPConn)), append(theirs, peer.(*net.TCPConn))
		t.Cleanup(func() { c.Close(); peer.Close() })
	}
	return rcs, ours, theirs
}

// Of many connections those are found, and no others, that their peers have closed, reset or
// half closed, or that have been closed here, with bytes before the end or without; for each
// 256 there is one system call.
func TestPeersClosed(t *testing.T) {
	const n = askedAtOnce + 20
	rcs, ours, theirs := pairsOf(t, n)
	var want []int
	for i := range n {
		switch i % 19 {
		case 3:
			theirs[i].Write([]byte("bytes that nobody has read"))
			theirs[i].Close()
		case 5:
			theirs[i].SetLinger(0)
			theirs[i].Close()
		case 7:
			theirs[i].CloseWrite()
		case 11:
			ours[i].Close()
		case 13:
			ours[i].CloseWrite() // does not count
			continue
		case 17:
			theirs[i].Write([]byte("neither do bytes"))
			continue
		default:
			continue
		}
		want = append(want, i)
	}
	var got []int
	if calls := PeersClosed(rcs, func(i int) { got = append(got, i) }); calls != 2 {
		t.Errorf("%d calls for %d connections", calls, n)
	}
	if !slices.Equal(got, want) {
		t.Errorf("closed are %v, told of %v", want, got)
	}
	if PeersClosed(nil, func(int) { t.Error("told of one that is not there") }) != 0 {
		t.Error("a call for no connection")
	}
}

// What it costs to find out that none of 256 connections has been closed, beside a question
// to each.
func BenchmarkPeersClosed(b *testing.B) {
	rcs, _, _ := pairsOf(b, askedAtOnce)
	b.Run("one call", func(b *testing.B) {
		for b.Loop() {
			PeersClosed(rcs, func(int) { b.Fatal("closed") })
		}
	})
	b.Run("TCP_INFO of each", func(b *testing.B) {
		for b.Loop() {
			for _, rc := range rcs {
				_ = rc.Control(func(fd uintptr) {
					if info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO); err != nil || info.State != unix.BPF_TCP_ESTABLISHED {
						b.Fatal("closed")
					}
				})
			}
		}
	})
}
