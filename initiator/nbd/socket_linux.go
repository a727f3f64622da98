package nbd

import (
	"errors"
	"io"
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// reader is the read-ahead of one connection. Its calls wait in the Go poller.
type reader struct {
	raw  syscall.RawConn
	buf  []byte
	r, w int // unread bytes are buf[r:w]

	// One readv at a time: its arguments and its result, beside a function
	// made once so that nothing is allocated per call.
	iov   [2]unix.Iovec
	iovN  int
	n     int
	errno syscall.Errno
	once  bool // it does not wait
	read  func(fd uintptr) bool

	ahead []byte      // comes before what is in the socket: another process has read it
	left  int         // of the payload that is being read
	stall func() bool // called when a deadline has passed: whether to read on
	midst func()      // called when a part of a long payload has come, and much is missing; or nil
}

// readAhead holds many small requests; directRead is the payload from which
// reading straight into place beats copying out of the read-ahead.
const (
	readAhead  = 256 << 10
	directRead = 32 << 10
)

func (r *reader) init(raw syscall.RawConn) {
	r.raw, r.buf = raw, make([]byte, readAhead)
	r.read = func(fd uintptr) bool {
		for {
			n, _, e := syscall.RawSyscall(unix.SYS_READV, fd, uintptr(unsafe.Pointer(&r.iov[0])), uintptr(r.iovN))
			if e == syscall.EINTR {
				continue
			}
			if e == syscall.EAGAIN && !r.once {
				return false
			}
			r.n, r.errno = int(n), e
			return true
		}
	}
}

func (r *reader) buffered() int { return r.w - r.r }

// readv fills dst (which may be empty) and then the read-ahead, in one call.
func (r *reader) readv(dst []byte) (int, error) {
	r.iovN = 0
	for _, b := range [2][]byte{dst, r.buf[r.w:]} {
		if len(b) > 0 {
			r.iov[r.iovN].Base = &b[0]
			r.iov[r.iovN].SetLen(len(b))
			r.iovN++
		}
	}
	if len(r.ahead) > 0 {
		n := 0
		for _, b := range [2][]byte{dst, r.buf[r.w:]} {
			k := copy(b, r.ahead)
			n, r.ahead = n+k, r.ahead[k:]
		}
		return n, nil
	}
	for {
		err := r.raw.Read(r.read)
		if err == nil {
			break
		}
		if r.once || !errors.Is(err, os.ErrDeadlineExceeded) || !r.stall() {
			return 0, err
		}
	}
	if r.errno != 0 {
		return 0, r.errno
	}
	if r.n == 0 {
		return 0, io.EOF
	}
	return r.n, nil
}

// roomFor makes sure that n ≤ len(buf) bytes fit behind r.
func (r *reader) roomFor(n int) {
	if r.r == r.w {
		r.r, r.w = 0, 0
	} else if len(r.buf)-r.r < n {
		r.w = copy(r.buf, r.buf[r.r:r.w])
		r.r = 0
	}
}

// peek returns the next n ≤ len(buf) bytes without consuming them. io.EOF means
// that the stream ended before the first of them.
func (r *reader) peek(n int) ([]byte, error) {
	r.roomFor(n)
	for r.w-r.r < n {
		k, err := r.readv(nil)
		if err == io.EOF && r.w > r.r {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return nil, err
		}
		r.w += k
	}
	return r.buf[r.r : r.r+n], nil
}

// gets reports whether n bytes, fewer than directRead, are there, with what can be read without
// waiting.
func (r *reader) gets(n int) bool {
	if n >= directRead || len(r.ahead) > 0 {
		return false
	}
	r.roomFor(n)
	r.once = true
	if k, err := r.readv(nil); err == nil { // else whoever waits for them will meet it
		r.w += k
	}
	r.once = false
	return r.buffered() >= n
}

func (r *reader) discard(n int) { r.r += n }

// readInto fills p: from the read-ahead, and a large rest straight from the
// socket together with what follows it.
func (r *reader) readInto(p []byte) error {
	for len(p) > 0 {
		if n := copy(p, r.buf[r.r:r.w]); n > 0 {
			r.r += n
			p = p[n:]
			continue
		}
		r.r, r.w, r.left = 0, 0, len(p)
		dst := p
		if len(p) < directRead {
			dst = nil
		}
		n, err := r.readv(dst)
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return err
		}
		direct := min(n, len(dst))
		p = p[direct:]
		r.w = n - direct
		if len(p) >= directRead && r.midst != nil {
			r.midst()
		}
	}
	return nil
}

// skip reads n bytes, which are left, away.
func (r *reader) skip(n int) error {
	for n > 0 {
		if r.r == r.w {
			if _, err := r.peek(1); err != nil {
				if err == io.EOF {
					err = io.ErrUnexpectedEOF
				}
				return err
			}
		}
		k := min(n, r.w-r.r)
		r.r += k
		n -= k
		r.left = n // also when none is: the answer may wait for a slot, and rest there
	}
	return nil
}

// socketBuffer lets a whole batch of large replies leave in one call; the
// default of a unix socket is a fifth of one 1 MiB reply, and every refill costs
// a wake-up.
const socketBuffer = 4 << 20

// enlarge sets the socket's send buffer, as far as the system lets us.
func enlarge(raw syscall.RawConn) {
	_ = raw.Control(func(fd uintptr) {
		if unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, socketBuffer) != nil {
			_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_SNDBUF, socketBuffer) // up to wmem_max
		}
	})
}

// errFull says that the socket takes no more at the moment.
var errFull = errors.New("nbd: socket is full")

// maxIov is the kernel's limit on one vectored call.
const maxIov = 1024

// sender is the vectored write of one connection. One goroutine at a time uses
// it (replies.sending).
type sender struct {
	raw   syscall.RawConn
	iov   []unix.Iovec // not yet written
	queue replyQueue   // slots in iov, in order
	done  replyQueue   // slots that have been written
	n     int
	errno syscall.Errno
	wait  bool
	full  bool // the socket takes no more now
	store [maxIov]unix.Iovec
	write func(fd uintptr) bool
}

func (t *sender) init(raw syscall.RawConn) {
	t.raw = raw
	t.iov = t.store[:0]
	t.write = func(fd uintptr) bool {
		for {
			n, _, e := syscall.RawSyscall(unix.SYS_WRITEV, fd, uintptr(unsafe.Pointer(&t.iov[0])), uintptr(len(t.iov)))
			if e == syscall.EINTR {
				continue
			}
			if e == syscall.EAGAIN {
				t.full = true
				return !t.wait
			}
			t.n, t.errno, t.full = int(n), e, false
			return true
		}
	}
}

func (t *sender) pending() bool { return len(t.iov) > 0 }

// room reports whether another reply fits into the vector.
func (t *sender) room() bool { return cap(t.iov)-len(t.iov) >= 2 }

// add appends a reply to the vector.
func (t *sender) add(s *slot) {
	t.queue.push(s)
	t.append(s.head[:s.headN])
	if len(s.body) > 0 {
		t.append(s.body)
	}
}

func (t *sender) append(b []byte) {
	v := unix.Iovec{Base: &b[0]}
	v.SetLen(len(b))
	t.iov = append(t.iov, v)
}

// flush writes until the vector is empty, the socket is full (errFull, unless
// wait) or broken.
func (t *sender) flush(wait bool) error {
	t.wait = wait
	for len(t.iov) > 0 {
		t.full = false
		if err := t.raw.Write(t.write); err != nil {
			return err
		}
		if t.full {
			return errFull
		}
		if t.errno != 0 {
			return t.errno
		}
		t.advance(t.n)
	}
	t.iov = t.store[:0]
	t.done, t.queue = t.queue, replyQueue{}
	return nil
}

// advance removes n written bytes from the vector.
func (t *sender) advance(n int) {
	for n > 0 {
		v := &t.iov[0]
		if l := int(v.Len); n >= l {
			n -= l
			t.iov = t.iov[1:]
			continue
		}
		v.Base = (*byte)(unsafe.Add(unsafe.Pointer(v.Base), n))
		v.SetLen(int(v.Len) - n)
		return
	}
}

// rest returns what has not been written of the vector.
func (t *sender) rest() (all [][]byte) {
	for _, v := range t.iov {
		all = append(all, unsafe.Slice(v.Base, v.Len))
	}
	return all
}

// finished returns the next slot whose reply has been written.
func (t *sender) finished() *slot {
	if t.done.head == nil {
		return nil
	}
	return t.done.pop()
}

// abandon gives up everything in the vector: its slots count as finished.
func (t *sender) abandon() {
	t.iov = t.store[:0]
	t.done, t.queue = t.queue, replyQueue{}
}
