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

// Space for a control message of one int: UDP_SEGMENT's has two bytes, UDP_GRO's four.
const cmsgLen = (unix.SizeofCmsghdr + 4 + 7) &^ 7

type cmsgBuf [cmsgLen]byte

// setSegment makes c say that the message is to be cut into packets of size bytes.
func (c *cmsgBuf) setSegment(size int) {
	h := (*unix.Cmsghdr)(unsafe.Pointer(c))
	h.Level, h.Type = unix.SOL_UDP, unix.UDP_SEGMENT
	h.SetLen(unix.SizeofCmsghdr + 2)
	*(*uint16)(unsafe.Pointer(&c[unix.SizeofCmsghdr])) = uint16(size)
}

// segment is the size of the packets that were joined into the message, or 0.
func (c *cmsgBuf) segment(n int) int {
	h := (*unix.Cmsghdr)(unsafe.Pointer(c))
	if n < unix.SizeofCmsghdr+4 || h.Level != unix.SOL_UDP || h.Type != unix.UDP_GRO {
		return 0
	}
	return int(*(*int32)(unsafe.Pointer(&c[unix.SizeofCmsghdr])))
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
