// Package congestion chooses the TCP congestion control of a connection.
//
// A name such as "cubic" is what the kernel calls an algorithm
// (/proc/sys/net/ipv4/tcp_available_congestion_control). Two words mean something
// else: "host" leaves the host's default alone, and "auto", or nothing, does so too
// except between two ends on the same host. There is nothing to be congested
// there, but an algorithm that paces, as bbr does, halves the bandwidth and costs
// a timer per burst; reno does neither, and every process may select it.
//
// The time of the choice matters. A pacing algorithm marks the socket when the
// connection is established, and that mark stays when another algorithm replaces
// it: Linux then paces by its own estimate. So the choice is made before connect,
// and on the listening socket, whose children inherit it; a connection from
// another host gets the host's default back when it has been accepted.
package congestion

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"unsafe"
)

// Names that are not algorithms.
const (
	Auto = "auto" // reno on the same host, else the host's default; "" means the same
	Host = "host" // the host's default
)

// local is for connections that never leave the host. The kernel has it built in,
// and lets everybody use it.
const local = "reno"

func automatic(name string) bool { return name == "" || name == Auto }

// Dialing is for net.Dialer.Control: it sets the congestion control of a socket
// that is about to connect.
func Dialing(name string) func(network, addr string, rc syscall.RawConn) error {
	return func(_, addr string, rc syscall.RawConn) error {
		switch {
		case name == Host:
			return nil
		case !automatic(name):
			return set(rc, name)
		}
		if a, err := netip.ParseAddrPort(addr); err == nil && ours(a.Addr()) {
			_ = set(rc, local) // a matter of speed alone
		}
		return nil
	}
}

// Listening is for net.ListenConfig.Control. Every connection that is accepted is
// then to be given to Accepted.
func Listening(name string) func(network, addr string, rc syscall.RawConn) error {
	return func(_, _ string, rc syscall.RawConn) error {
		switch {
		case name == Host:
			return nil
		case !automatic(name):
			return set(rc, name)
		}
		if hostDefault() != "" { // else a peer elsewhere could not be given it back
			_ = set(rc, local)
		}
		return nil
	}
}

// Accepted sets the congestion control of a connection that has been accepted,
// where name need not be what Listening had: a connection that inherited reno and
// should not have it gets the host's default back.
func Accepted(name string, nc net.Conn) error {
	t, ok := nc.(*net.TCPConn)
	if !ok {
		return nil
	}
	return accepted(name, t, SameHost(nc))
}

func accepted(name string, t *net.TCPConn, same bool) error {
	if name != Host && (!automatic(name) || same) {
		return Apply(name, t)
	}
	rc, err := t.SyscallConn()
	if err != nil {
		return err
	}
	if cc := hostDefault(); cc != "" && cc != local && get(rc) == local {
		_ = set(rc, cc)
	}
	return nil
}

// Apply sets the congestion control of an open connection, for those who have not
// had the chance before. It is late for "auto", see above, but better than never.
func Apply(name string, nc net.Conn) error {
	t, ok := nc.(*net.TCPConn)
	if !ok || name == Host || automatic(name) && !SameHost(nc) {
		return nil
	}
	rc, err := t.SyscallConn()
	if err != nil {
		return err
	}
	if automatic(name) {
		_ = set(rc, local)
		return nil
	}
	return set(rc, name)
}

// SameHost reports whether both ends of nc are on this host: its addresses are
// equal, or one is of the loopback network.
func SameHost(nc net.Conn) bool {
	l, ok1 := nc.LocalAddr().(*net.TCPAddr)
	r, ok2 := nc.RemoteAddr().(*net.TCPAddr)
	return ok1 && ok2 && (r.IP.IsLoopback() || l.IP.IsLoopback() || r.IP.Equal(l.IP))
}

// ours reports whether a is an address of this host.
func ours(a netip.Addr) bool {
	a = a.Unmap().WithZone("")
	if a.IsLoopback() || a.IsUnspecified() { // connecting to the latter means loopback
		return true
	}
	own, err := net.InterfaceAddrs()
	if err != nil {
		return false
	}
	for _, o := range own {
		if n, ok := o.(*net.IPNet); ok && n.IP.Equal(a.AsSlice()) {
			return true
		}
	}
	return false
}

// hostDefault is what new connections of this host get, "" when that is unknown.
func hostDefault() string {
	b, err := os.ReadFile("/proc/sys/net/ipv4/tcp_congestion_control")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

func set(rc syscall.RawConn, name string) error {
	var serr error
	err := rc.Control(func(fd uintptr) {
		serr = syscall.SetsockoptString(int(fd), syscall.IPPROTO_TCP, syscall.TCP_CONGESTION, name)
	})
	if err == nil {
		err = serr
	}
	if err != nil {
		return fmt.Errorf("congestion control %q: %w; use auto, host, or a name in /proc/sys/net/ipv4/tcp_available_congestion_control", name, err)
	}
	return nil
}

// get names the algorithm of a socket, "" when it cannot be read.
func get(rc syscall.RawConn) string {
	var b [16]byte // TCP_CA_NAME_MAX
	n := uint32(len(b))
	var e syscall.Errno
	err := rc.Control(func(fd uintptr) {
		_, _, e = syscall.Syscall6(syscall.SYS_GETSOCKOPT, fd, syscall.IPPROTO_TCP, syscall.TCP_CONGESTION,
			uintptr(unsafe.Pointer(&b)), uintptr(unsafe.Pointer(&n)), 0)
	})
	if err != nil || e != 0 {
		return ""
	}
	s, _, _ := strings.Cut(string(b[:n]), "\x00")
	return s
}
