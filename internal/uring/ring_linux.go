package uring

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Numbers of the io_uring interface (include/uapi/linux/io_uring.h).
const (
	OpNop  = 0
	OpRead = 22
	OpCmd  = 46 // IORING_OP_URING_CMD

	setupClamp  = 1 << 4
	setupSQE128 = 1 << 10

	enterGetEvents = 1 << 0

	offsetSQ   = 0
	offsetCQ   = 0x8000000
	offsetSQEs = 0x10000000
)

// Entry is one submission: struct io_uring_sqe, 128 bytes.
type Entry struct {
	Op       uint8
	Flags    uint8
	IOPrio   uint16
	FD       int32
	CmdOp    uint64 // the file offset, or the driver's command in the lower half
	Addr     uint64
	Len      uint32
	OpFlags  uint32
	UserData uint64
	_        uint64   // buffer index, personality, file index
	Cmd      [80]byte // the driver's command
}

// Completion is the end of one submission: struct io_uring_cqe.
type Completion struct {
	UserData uint64 // of the Entry
	Res      int32  // result, or a negative error number
	Flags    uint32
}

// params is struct io_uring_params.
type params struct {
	sqEntries, cqEntries, flags, cpu, idle, features, wq uint32
	_                                                    [3]uint32
	sq                                                   sqOffsets
	cq                                                   cqOffsets
}

type sqOffsets struct {
	head, tail, mask, entries, flags, dropped, array, _ uint32
	_                                                   uint64
}

type cqOffsets struct {
	head, tail, mask, entries, overflow, cqes, flags, _ uint32
	_                                                   uint64
}

// Ring is one io_uring instance. It is not safe for concurrent use.
type Ring struct {
	fd                  int
	sqMem, cqMem, eMem  []byte
	sqHead, sqTail      *uint32
	cqHead, cqTail      *uint32
	entries             []Entry
	completions         []Completion
	tail, submitted     uint32 // entries filled, and of these given to the kernel
	sqMask, cqMask, cap uint32
}

// ErrUnavailable says that this system gives no io_uring.
var ErrUnavailable = errors.New("io_uring is not available (kernel 5.19 or later; sysctl kernel.io_uring_disabled=0, and no seccomp filter against it)")

// New makes a ring for at least n submissions under way. Close gives it back.
func New(n int) (_ *Ring, err error) {
	p := &params{flags: setupClamp | setupSQE128}
	fd, _, e := unix.Syscall(unix.SYS_IO_URING_SETUP, uintptr(n), uintptr(unsafe.Pointer(p)), 0)
	runtime.KeepAlive(p)
	switch e {
	case 0:
	case unix.ENOSYS, unix.EPERM, unix.EINVAL:
		return nil, fmt.Errorf("%w: %w", ErrUnavailable, e)
	default:
		return nil, os.NewSyscallError("io_uring_setup", e)
	}
	r := &Ring{fd: int(fd)}
	unix.CloseOnExec(r.fd)
	defer func() {
		if err != nil {
			err = errors.Join(err, r.Close())
		}
	}()
	if int(p.sqEntries) < n {
		return nil, fmt.Errorf("io_uring: %d entries wanted, the system gives %d", n, p.sqEntries)
	}
	const size = int(unsafe.Sizeof(Entry{}))
	if r.sqMem, err = r.mapping(offsetSQ, int(p.sq.array+4*p.sqEntries)); err != nil {
		return nil, err
	}
	if r.cqMem, err = r.mapping(offsetCQ, int(p.cq.cqes)+int(p.cqEntries)*int(unsafe.Sizeof(Completion{}))); err != nil {
		return nil, err
	}
	if r.eMem, err = r.mapping(offsetSQEs, int(p.sqEntries)*size); err != nil {
		return nil, err
	}
	r.sqHead, r.sqTail = word(r.sqMem, p.sq.head), word(r.sqMem, p.sq.tail)
	r.cqHead, r.cqTail = word(r.cqMem, p.cq.head), word(r.cqMem, p.cq.tail)
	r.sqMask, r.cqMask, r.cap = *word(r.sqMem, p.sq.mask), *word(r.cqMem, p.cq.mask), p.sqEntries
	r.entries = unsafe.Slice((*Entry)(unsafe.Pointer(&r.eMem[0])), p.sqEntries)
	r.completions = unsafe.Slice((*Completion)(unsafe.Pointer(&r.cqMem[p.cq.cqes])), p.cqEntries)
	for i := range p.sqEntries { // entries are used in their order
		*word(r.sqMem, p.sq.array+4*i) = i
	}
	r.tail = atomic.LoadUint32(r.sqTail)
	r.submitted = r.tail
	return r, nil
}

func word(mem []byte, off uint32) *uint32 { return (*uint32)(unsafe.Pointer(&mem[off])) }

func (r *Ring) mapping(off int64, n int) ([]byte, error) {
	b, err := unix.Mmap(r.fd, off, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE)
	if err != nil {
		return nil, fmt.Errorf("io_uring: mapping: %w", err)
	}
	return b, nil
}

// Next returns a zeroed entry to fill in, which the next Enter submits; nil when the ring
// is full of such.
func (r *Ring) Next() *Entry {
	if r.tail-atomic.LoadUint32(r.sqHead) == r.cap {
		return nil
	}
	e := &r.entries[r.tail&r.sqMask]
	*e = Entry{}
	r.tail++
	return e
}

// Enter submits the entries since the last one and waits until at least wait completions
// are there. It returns early, without an error, when a signal came in or the system was
// short of memory: what is to be submitted stays so. With wait 0 it returns when all is
// submitted.
func (r *Ring) Enter(wait int) error {
	atomic.StoreUint32(r.sqTail, r.tail)
	flags := uintptr(0)
	if wait > 0 {
		flags = enterGetEvents
	}
	for tries := 0; ; tries++ {
		n, _, e := unix.Syscall6(unix.SYS_IO_URING_ENTER, uintptr(r.fd), uintptr(r.tail-r.submitted), uintptr(wait), flags, 0, 0)
		switch e {
		case 0:
			r.submitted += uint32(n)
		case unix.EINTR, unix.EAGAIN, unix.EBUSY:
			if tries == maxTries {
				return os.NewSyscallError("io_uring_enter", e)
			}
		default:
			return os.NewSyscallError("io_uring_enter", e)
		}
		if wait > 0 || r.tail == r.submitted {
			return nil
		}
	}
}

// maxTries bounds how often a submission is tried that the system has no memory for.
const maxTries = 1000

// Take moves completions to dst, as many as there are and fit, and returns their number.
func (r *Ring) Take(dst []Completion) int {
	head := atomic.LoadUint32(r.cqHead)
	n := 0
	for tail := atomic.LoadUint32(r.cqTail); head != tail && n < len(dst); head++ {
		dst[n] = r.completions[head&r.cqMask]
		n++
	}
	atomic.StoreUint32(r.cqHead, head)
	return n
}

// Close gives the ring back; what is under way is cancelled.
func (r *Ring) Close() error {
	err := unix.Close(r.fd)
	for _, m := range [][]byte{r.sqMem, r.cqMem, r.eMem} {
		if m != nil {
			err = errors.Join(err, unix.Munmap(m))
		}
	}
	return err
}
