package portal

import (
	"syscall"
	"testing"
)

// soProtocol is SO_PROTOCOL (socket(7)), which the syscall package does not name.
const soProtocol = 38

// A portal speaks TCP, not Multipath TCP, which Go gives to listeners where the kernel has it.
func TestPlainTCP(t *testing.T) {
	p := &Portal{cfg: Config{Listen: "127.0.0.1:0"}}
	if err := p.listen(); err != nil {
		t.Fatal(err)
	}
	defer p.ln.Close()
	rc, err := p.ln.SyscallConn()
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
