package sockio

import (
	"net"
	"runtime"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// onThread runs f on a thread of its own, which ends with it: whatever f does to that is gone.
func onThread(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		f()
	}()
	<-done
}

// allowed is where the calling thread may run.
func allowed(t *testing.T) unix.CPUSet {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		t.Error(err)
	}
	return set
}

func here(t *testing.T) int {
	var cpu uint32
	if _, _, e := unix.RawSyscall(unix.SYS_GETCPU, uintptr(unsafe.Pointer(&cpu)), 0, 0); e != 0 {
		t.Error(e)
	}
	return int(cpu)
}

// held keeps the calling thread on the processor where it is, which is all that it is allowed then.
func held(t *testing.T) (cpu int, one unix.CPUSet) {
	cpu = here(t)
	one.Set(cpu)
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		t.Error(err)
	}
	return cpu, one
}

// everywhere skips a test where a thread may not run on two processors, or not on all.
func everywhere(t *testing.T) {
	if set := allowed(t); set.Count() < 2 || set.Count() != online() {
		t.Skipf("may run on %d processors of %d", set.Count(), online())
	}
}

// A thread is off the processor when leave returns, and may run on all afterwards.
func TestLeave(t *testing.T) {
	everywhere(t)
	onThread(func() {
		before := allowed(t)
		cpu := here(t)
		left, err := leave(cpu)
		if !left || err != nil {
			t.Errorf("leave: %v, %v", left, err)
		}
		if at := here(t); at == cpu {
			t.Errorf("still on processor %d", at)
		}
		if err := anywhere(); err != nil {
			t.Error(err)
		}
		if after := allowed(t); after != before {
			t.Errorf("may run on %v, before on %v", after, before)
		}
	})
}

// What somebody has allowed a thread is left as it is, and the thread where it is.
func TestLeaveNotAmongSome(t *testing.T) {
	everywhere(t)
	onThread(func() {
		cpu, one := held(t)
		if left, err := leave(cpu); left || err != nil {
			t.Errorf("leave: %v, %v", left, err)
		}
		if after := allowed(t); after != one {
			t.Errorf("may run on %v, was told %v", after, one)
		}
	})
}

// A move is followed by a rest that doubles, unless it has lasted.
func TestMovesRest(t *testing.T) {
	var a apart
	now := time.Second
	for want := apartRest; want < apartRestMax; want *= 2 {
		if a.moves(now); a.until != now+want {
			t.Fatalf("rests for %v, want %v", a.until-now, want)
		}
		now = a.until + apartWorth*want // not a moment longer than it is to last
	}
	a.moves(now)
	now = a.until
	if a.moves(now); a.until != now+apartRestMax {
		t.Errorf("rests for %v, want %v", a.until-now, apartRestMax)
	}
	now = a.until + apartWorth*apartRestMax + 1
	if a.moves(now); a.until != now+apartRest {
		t.Errorf("rests for %v after a move that has lasted, want %v", a.until-now, apartRest)
	}
}

// pairOverLoopback is both ends of a connection, and the descriptor of the second.
func pairOverLoopback(t *testing.T) (peer, nc net.Conn, fd int) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if peer, err = net.Dial("tcp", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { peer.Close() })
	if nc, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { nc.Close() })
	rc, err := nc.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	_ = rc.Control(func(p uintptr) { fd = int(p) })
	return peer, nc, fd
}

// A thread that shares its processor with the sender knows; where it may run on no other it stays,
// and where it may it moves once and rests then.
func TestMove(t *testing.T) {
	everywhere(t)
	peer, nc, fd := pairOverLoopback(t)
	var a, other apart
	a.beside(nc)
	other.beside(peer)
	if !a.local || !other.local || a.after == other.after {
		t.Fatalf("two ends on one machine: %+v and %+v", a, other)
	}
	onThread(func() {
		cpu, one := held(t)
		if _, err := peer.Write([]byte{1}); err != nil {
			t.Error(err)
		}
		if _, err := nc.Read(make([]byte, 1)); err != nil { // have come, so the socket knows by whom
			t.Error(err)
		}
		if at, same := together(fd); !same || at != cpu {
			t.Skipf("bytes sent on processor %d have come by another", cpu) // steered by the system's settings
		}
		if a.move(fd, time.Second) {
			t.Error("a thread that may run on one processor has moved")
		}
		if after := allowed(t); after != one {
			t.Errorf("may run on %v, was told %v", after, one)
		}
		if err := anywhere(); err != nil {
			t.Error(err)
		}
		all, now := allowed(t), a.until
		if moved := a.move(fd, now); moved && a.until == now { // the kernel may have moved it before
			t.Error("no rest after a move")
		}
		if after := allowed(t); after != all {
			t.Errorf("may run on %v, before on %v", after, all)
		}
		if at, same := together(fd); same && a.until > now && a.move(fd, now) {
			t.Errorf("moved again in the rest, from processor %d", at)
		}
	})
}

// Ends on two machines, and connections that are not TCP, are never moved.
func TestApartIsForOneMachine(t *testing.T) {
	_, nc, _ := pairOverLoopback(t)
	var a apart
	a.beside(far{nc})
	if a.local {
		t.Error("a peer on another machine counts as here")
	}
	a.beside(pipeEnd(t))
	if a.local {
		t.Error("a pipe counts as TCP")
	}
}

// far is a connection to another machine.
type far struct{ net.Conn }

func (far) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 3260} }

func pipeEnd(t *testing.T) net.Conn {
	a, b := net.Pipe()
	t.Cleanup(func() { a.Close(); b.Close() })
	return a
}
