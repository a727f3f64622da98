package sockio

import (
	"encoding/binary"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// MSG_ZEROCOPY: the kernel sends from the caller's pages and says later, in the
// error queue of the socket, when it no longer needs them. Each successful call
// has a number, counted from 0; a notice is about a range of them.

// EnableZerocopy prepares the socket; false when the system cannot.
func (c *Conn) EnableZerocopy() bool {
	return unix.SetsockoptInt(c.fd, unix.SOL_SOCKET, unix.SO_ZEROCOPY, 1) == nil
}

// WritevZerocopy is Writev by reference. The memory must stay as it is until
// Notices has told of this call.
func (c *Conn) WritevZerocopy(v []Vec) (int, error) {
	if t := tapping.Load(); t != nil {
		if i := t.of(c); i >= 0 {
			return t.send(c, i, v, (*Conn).writevZerocopy, false)
		}
	}
	return c.writevZerocopy(v, false)
}

func (c *Conn) writevZerocopy(v []Vec, soon bool) (int, error) {
	c.byRef.Add(1) // before the notice can come
	n, err := c.send(v, sendFlags|unix.MSG_ZEROCOPY, soon)
	if err != nil {
		c.byRef.Add(-1)
	}
	return n, err
}

// ErrNoBufs: too much is pinned or in flight (RLIMIT_MEMLOCK, optmem_max).
var ErrNoBufs error = unix.ENOBUFS

// Notice ends the calls numbered Lo to Hi, both included.
type Notice struct {
	Lo, Hi uint32
	Copied bool // the kernel made a copy after all
}

// Notices empties the error queue into f. It is called by the reader.
func (c *Conn) Notices(f func(Notice)) {
	// sock_extended_err behind a cmsghdr; with room for the peer's address.
	var ctl [128]byte
	for {
		msg := unix.Msghdr{Control: &ctl[0]}
		msg.SetControllen(len(ctl))
		_, _, e := unix.Syscall(unix.SYS_RECVMSG, uintptr(c.fd), uintptr(unsafe.Pointer(&msg)), unix.MSG_DONTWAIT|unix.MSG_ERRQUEUE)
		if e == unix.EINTR {
			continue
		}
		if e != 0 {
			return
		}
		hdr := unix.SizeofCmsghdr
		if int(msg.Controllen) < hdr+16 {
			continue
		}
		ee := ctl[hdr:]
		const originZerocopy, codeCopied = 5, 1
		if ee[4] != originZerocopy || binary.NativeEndian.Uint32(ee) != 0 {
			continue
		}
		c.byRef.Add(-1 - int64(binary.NativeEndian.Uint32(ee[12:])-binary.NativeEndian.Uint32(ee[8:])))
		f(Notice{Lo: binary.NativeEndian.Uint32(ee[8:]), Hi: binary.NativeEndian.Uint32(ee[12:]), Copied: ee[6]&codeCopied != 0})
	}
}

// IsNotPollable reports whether err is what the Go poller says when an event
// brought nothing but a notice.
func IsNotPollable(err error) bool { return err != nil && unwrapped(err) == "not pollable" }

func unwrapped(err error) string {
	for {
		u, ok := err.(interface{ Unwrap() error })
		if !ok {
			return err.Error()
		}
		err = u.Unwrap()
	}
}

// Reset makes Close drop what is not sent yet, so that the kernel lets go of the
// memory.
func (c *Conn) Reset() {
	_ = unix.SetsockoptLinger(c.fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
}

// Pause is how long to wait before polling a socket again that cannot be waited
// for at the moment.
const Pause = 200 * time.Microsecond
