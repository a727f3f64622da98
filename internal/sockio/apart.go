package sockio

import (
	"net"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Limits of apart.
const (
	apartAfter   = 20 * time.Microsecond // a look that has lasted so long asks where the peer runs,
	apartLater   = 40 * time.Microsecond // at the other end, or both would move
	apartRest    = 2 * time.Millisecond  // first rest after a move
	apartRestMax = 320 * time.Millisecond
	apartWorth   = 16 // rests that a move has to last to have been worth it
)

// apart keeps a receiver that looks off the processor of its peer, where that runs on the same
// machine. With both on one processor a look keeps the peer from answering, so it is always in
// vain; and the kernel puts them there: it wakes a thread up beside the one that has sent to it,
// as if that were about to sleep, above all in virtual machines, where it holds an idle processor
// for one that the host has taken away.
//
// The thread is told to keep off its processor, which moves it at once, and then that it may run
// on all again. So nothing is left of it but its place. That is done only where all processors
// of the machine are allowed: what a cgroup allows may become more later, and would not for a
// thread that has been given a list.
//
// Each move is followed by a rest, which doubles until moves last: on a machine with other work
// the kernel may have its reasons.
type apart struct {
	local bool          // both ends are on this machine, and it has several processors
	until time.Duration // when the rest ends
	rest  time.Duration // length of the last one
	after time.Duration // a look that has lasted so long asks where the peer runs
}

// beside makes a for the socket nc.
func (a *apart) beside(nc net.Conn) {
	l, lok := nc.LocalAddr().(*net.TCPAddr)
	r, rok := nc.RemoteAddr().(*net.TCPAddr)
	a.local = lok && rok && (l.IP.Equal(r.IP) || l.IP.IsLoopback() && r.IP.IsLoopback()) && online() > 1
	a.after = apartAfter
	if a.local && l.Port > r.Port {
		a.after = apartLater
	}
}

// move moves the calling thread if the peer of the socket fd runs on its processor, and reports
// whether it has.
func (a *apart) move(fd int, now time.Duration) bool {
	if !a.local || now < a.until {
		return false
	}
	cpu, ok := together(fd)
	if !ok {
		return false
	}
	a.moves(now)
	runtime.LockOSThread() // nobody else meanwhile, and no new thread that inherits the list
	defer runtime.UnlockOSThread()
	moved, err := leave(cpu)
	if err != nil {
		a.local = false // not allowed here
	}
	return moved && anywhere() == nil
}

// moves enters a move, and how long there is to be none.
func (a *apart) moves(now time.Duration) {
	if a.rest == 0 || now-a.until > apartWorth*a.rest {
		a.rest = apartRest
	} else {
		a.rest = min(2*a.rest, apartRestMax)
	}
	a.until = now + a.rest
}

// together reports whether the calling thread runs on the processor by which the last bytes of
// the socket came, which over loopback is the sender's; and which one that is.
func together(fd int) (cpu int, ok bool) {
	var here, from uint32
	n := uint32(4)
	_, _, e := unix.RawSyscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, unix.SO_INCOMING_CPU, uintptr(unsafe.Pointer(&from)), uintptr(unsafe.Pointer(&n)), 0)
	if e != 0 {
		return 0, false
	}
	if _, _, e = unix.RawSyscall(unix.SYS_GETCPU, uintptr(unsafe.Pointer(&here)), 0, 0); e != 0 {
		return 0, false
	}
	return int(here), here == from
}

// leave keeps the calling thread off cpu, until anywhere, if it may run on all others.
func leave(cpu int) (left bool, err error) {
	var set unix.CPUSet
	if err = unix.SchedGetaffinity(0, &set); err != nil || set.Count() != online() {
		return false, err
	}
	set.Clear(cpu)
	err = unix.SchedSetaffinity(0, &set)
	return err == nil, err
}

// anywhere lets the calling thread run on all processors, those that come to be included.
func anywhere() error {
	var set unix.CPUSet
	set.Fill()
	return unix.SchedSetaffinity(0, &set)
}

// online is how many processors the machine has; 0 when that is not known.
var online = sync.OnceValue(func() int {
	b, err := os.ReadFile("/sys/devices/system/cpu/online") // such as 0-3,6
	if err != nil {
		return 0
	}
	n := 0
	for _, span := range strings.Split(strings.TrimSpace(string(b)), ",") {
		first, last, found := strings.Cut(span, "-")
		if !found {
			last = first
		}
		from, err := strconv.Atoi(first)
		to, err2 := strconv.Atoi(last)
		if err != nil || err2 != nil {
			return 0
		}
		n += to - from + 1
	}
	return n
})
