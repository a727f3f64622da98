package loopback

import (
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// MTU is what loopback has by default, in bytes.
const MTU = 65536

// Namespace puts a test into a network namespace of its own, with a loopback of an MTU:
// all ports of 127.0.0.1 and ::1 are free there. Where that is not allowed, the test is
// skipped. Sockets must be made on the goroutine of the test.
func Namespace(t testing.TB, mtu int) {
	t.Helper()
	runtime.LockOSThread() // for good: the thread ends with the goroutine
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Skipf("a network namespace of its own: %v", err)
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(fd) }()
	ifr, err := unix.NewIfreq("lo")
	if err != nil {
		t.Fatal(err)
	}
	ifr.SetUint32(uint32(mtu))
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFMTU, ifr); err != nil {
		t.Fatal(err)
	}
	ifr.SetUint16(unix.IFF_UP)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, ifr); err != nil {
		t.Fatal(err)
	}
}
