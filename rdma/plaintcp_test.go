package rdma

import (
	"net"
	"syscall"
	"testing"
)

// soProtocol is SO_PROTOCOL (socket(7)), which the syscall package does not name.
const soProtocol = 38

// A listener of iWARP speaks TCP, not Multipath TCP, which Go gives to listeners where the kernel has it.
func TestPlainTCP(t *testing.T) {
	a, err := new(overTCP).listen("tcp", "127.0.0.1:0", nil)
	if err != nil {
		t.Fatal(err)
	}
	l := a.(*tcpAcceptor)
	defer l.close()
	rc, err := l.ln.(*net.TCPListener).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if err := rc.Control(func(fd uintptr) {
		if proto, err := syscall.GetsockoptInt(int(fd), syscall.SOL_SOCKET, soProtocol); err != nil || proto != syscall.IPPROTO_TCP {
			t.Errorf("protocol %d, %v", proto, err)
		}
	}); err != nil {
		t.Fatal(err)
	}
}
