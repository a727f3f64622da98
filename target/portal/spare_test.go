package portal

import (
	"net"
	"net/netip"
	"os"
	"syscall"
	"testing"

	"go.uber.org/zap"
)

// The last descriptor of all may go to somebody else between two connections. Then there
// is no spare one to accept with, and whoever waits for login in silence has to make room
// all the same: otherwise nobody gets in any more until somebody leaves by himself.
func TestSpareGoneElsewhere(t *testing.T) {
	ln, err := net.ListenTCP("tcp4", net.TCPAddrFromAddrPort(netip.MustParseAddrPort("127.0.0.1:0")))
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	s := &Server{log: zap.NewNop()}
	s.pending.limit(10, 10)
	p := newPortal(s, Config{})
	p.ln = ln
	for range 2 {
		caller, err := net.Dial("tcp", ln.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer caller.Close()
	}

	var taken []int
	take := func() {
		for {
			fd, err := syscall.Open(os.DevNull, syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
			if err != nil {
				return
			}
			taken = append(taken, fd)
		}
	}
	giveBack := func() {
		syscall.Close(taken[len(taken)-1])
		taken = taken[:len(taken)-1]
	}
	var had syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &had); err != nil {
		t.Fatal(err)
	}
	defer func() {
		for len(taken) > 0 {
			giveBack()
		}
		if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &had); err != nil {
			t.Error(err)
		}
	}()
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: 200, Max: had.Max}); err != nil {
		t.Fatal(err)
	}
	take()
	evicted := 0
	wait := func(i byte) *Place {
		place, _ := s.pending.add(netip.AddrFrom4([4]byte{127, 0, 0, i}), func() { evicted++; giveBack() })
		return place
	}

	var spare spareDescriptor
	defer spare.free()
	wait(1)
	talks := wait(2)
	talks.Talks()
	if c, err := p.acceptWith(&spare); c != nil || !noDescriptor(err) || evicted != 1 {
		t.Fatalf("without a spare descriptor: %v, %v, %d have given way", c, err, evicted)
	}
	spare.take() // as accept does before it tries again
	wait(3)
	c, err := p.acceptWith(&spare)
	if err != nil || c == nil || evicted != 2 {
		t.Fatalf("with one again: %v, %v, %d have given way", c, err, evicted)
	}
	c.Close()
	take()

	// Nobody is silent: a login that is under way is left alone.
	if c, err := p.acceptWith(&spare); c != nil || !noDescriptor(err) || evicted != 2 {
		t.Fatalf("where nobody is silent: %v, %v, %d have given way", c, err, evicted)
	}
}
