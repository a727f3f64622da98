package backing

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// TestOnePieceIsAPwrite: a write of one piece does without pwritev, and one of several is a single call.
// In a thread where the kernel does not know one of the two calls, only what takes the other one goes on.
func TestOnePieceIsAPwrite(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "f"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	piece := make([]byte, 512)
	one, two := [][]byte{piece}, [][]byte{piece, piece}
	for _, tc := range []struct {
		name     string
		without  uintptr // system call
		one, two error
	}{
		{"without pwritev", unix.SYS_PWRITEV, nil, unix.ENOSYS},
		{"without pwrite", unix.SYS_PWRITE64, unix.ENOSYS, nil},
	} {
		var refused, errOne, errTwo error
		done := make(chan struct{})
		go func() {
			defer close(done)
			runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine, and the filter with it
			if refused = unknown(tc.without); refused != nil {
				return
			}
			_, errOne = linux.pwritev(int(f.Fd()), one, 0)
			_, errTwo = linux.pwritev(int(f.Fd()), two, 0)
		}()
		<-done
		if refused != nil {
			t.Skip("no seccomp filter here: ", refused)
		}
		if !errors.Is(errOne, tc.one) || !errors.Is(errTwo, tc.two) {
			t.Errorf("%s: one piece: %v, want %v; two pieces: %v, want %v", tc.name, errOne, tc.one, errTwo, tc.two)
		}
	}
}

// unknown has the kernel answer the calling thread's calls of that number with ENOSYS from now on.
func unknown(call uintptr) error {
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0}, // the number, first in struct seccomp_data
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: 1, K: uint32(call)},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	prog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	if _, _, e := unix.Syscall(unix.SYS_PRCTL, unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&prog))); e != 0 {
		return e
	}
	return nil
}
