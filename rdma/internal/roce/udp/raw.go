package udp

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// mmsghdr is struct mmsghdr of sendmmsg(2) and recvmmsg(2).
type mmsghdr struct {
	hdr unix.Msghdr
	n   uint32 // bytes moved
}

// mmsg is sendmmsg or recvmmsg, without blocking: how many messages were moved, or why
// the first could not be.
func mmsg(call uintptr, fd uintptr, m []mmsghdr) (int, error) {
	passed.Release()
	defer passed.Acquire()
	for {
		n, _, e := unix.Syscall6(call, fd, uintptr(unsafe.Pointer(unsafe.SliceData(m))), uintptr(len(m)), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, 0, 0)
		switch e {
		case 0:
			return int(n), nil
		case unix.EINTR:
		default:
			return 0, e
		}
	}
}

// await is recvmmsg that waits for the first message, as long as the socket's reads may; the
// scheduler is not told.
func await(fd uintptr, m []mmsghdr) (int, error) {
	passed.Release()
	defer passed.Acquire()
	n, _, e := unix.RawSyscall6(unix.SYS_RECVMMSG, fd, uintptr(unsafe.Pointer(unsafe.SliceData(m))), uintptr(len(m)), unix.MSG_WAITFORONE, 0, 0)
	switch e {
	case 0:
		return int(n), nil
	case unix.EINTR:
		return 0, ErrAgain
	}
	return 0, e
}

// Space for a control message of one int: UDP_SEGMENT's has two bytes, UDP_GRO's four, IPv4's
// type of service one or four, and IPv6's traffic class four.
const cmsgSpace = (unix.SizeofCmsghdr + 4 + 7) &^ 7

// cmsgBuf is for both that a message may have: how it is cut, and what routers may do to it.
type cmsgBuf [2 * cmsgSpace]byte

// add puts a control message of size bytes behind the n bytes of others, and says how many
// bytes there are now.
func (c *cmsgBuf) add(n int, level, option int32, size int, value uint32) int {
	h := (*unix.Cmsghdr)(unsafe.Pointer(&c[n]))
	h.Level, h.Type = level, option
	h.SetLen(unix.SizeofCmsghdr + size)
	if data := unsafe.Pointer(&c[n+unix.SizeofCmsghdr]); size == 2 {
		*(*uint16)(data) = uint16(value)
	} else {
		*(*uint32)(data) = value
	}
	return n + cmsgSpace
}

// received reads what the kernel says of a message in n bytes: the size of the packets that
// it was joined from, or 0, and the bits of ECN in their IP headers, which are the same in all.
func (c *cmsgBuf) received(n int) (segment int, ecn uint8) {
	const least = unix.SizeofCmsghdr + 1
	for at := 0; at+least <= min(n, len(c)); at += cmsgSpace {
		h := (*unix.Cmsghdr)(unsafe.Pointer(&c[at]))
		data := c[at+unix.SizeofCmsghdr:]
		switch whole := h.Len >= unix.SizeofCmsghdr+4; {
		case h.Level == unix.SOL_UDP && h.Type == unix.UDP_GRO && whole:
			segment = int(*(*int32)(unsafe.Pointer(&data[0])))
		case h.Level == unix.IPPROTO_IP && h.Type == unix.IP_TOS:
			ecn = data[0] & 3
		case h.Level == unix.IPPROTO_IPV6 && h.Type == unix.IPV6_TCLASS && whole:
			ecn = uint8(*(*int32)(unsafe.Pointer(&data[0]))) & 3
		}
	}
	return segment, ecn
}

// drops is how many packets a socket has dropped (SO_MEMINFO); 0 before Linux 4.12.
func drops(fd uintptr) uint32 {
	const skMeminfoDrops, skMeminfoVars = 8, 9
	var info [skMeminfoVars]uint32
	n := uint32(unsafe.Sizeof(info))
	_, _, e := unix.Syscall6(unix.SYS_GETSOCKOPT, fd, unix.SOL_SOCKET, unix.SO_MEMINFO, uintptr(unsafe.Pointer(&info)), uintptr(unsafe.Pointer(&n)), 0)
	if e != 0 {
		return 0
	}
	return info[skMeminfoDrops]
}
