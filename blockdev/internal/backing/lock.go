package backing

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"softiser/blockdev"
)

// Lock takes the file for this open alone (or together with other readers).
// flock, not fcntl: it also keeps two opens within one process apart, and
// closing some other descriptor of the file does not drop it.
func Lock(f *os.File, shared bool) error {
	how := unix.LOCK_EX
	if shared {
		how = unix.LOCK_SH
	}
	err := unix.Flock(int(f.Fd()), how|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return fmt.Errorf("locked by %s; a file is served as one volume, by one target: %w", holder(f), blockdev.ErrInUse)
	}
	if err != nil {
		return fmt.Errorf("locking: %w", err)
	}
	return nil
}

// holder names who has the lock, from /proc/locks:
//
//	1: FLOCK  ADVISORY  WRITE 708 fe:00:1234 0 EOF
func holder(f *os.File) string {
	var st unix.Stat_t
	locks, err := os.Open("/proc/locks")
	if err != nil || unix.Fstat(int(f.Fd()), &st) != nil {
		return "another process"
	}
	defer locks.Close()
	id := fmt.Sprintf("%02x:%02x:%d", unix.Major(st.Dev), unix.Minor(st.Dev), st.Ino)
	for sc := bufio.NewScanner(locks); sc.Scan(); {
		w := strings.Fields(sc.Text())
		if len(w) < 6 || w[1] != "FLOCK" || w[5] != id {
			continue
		}
		if w[4] == strconv.Itoa(os.Getpid()) {
			return "this process, for another volume"
		}
		name, err := os.ReadFile("/proc/" + w[4] + "/comm")
		if errors.Is(err, os.ErrNotExist) { // the lock stays with the open file, which it has handed over
			return "the process that has taken over from process " + w[4]
		}
		if err != nil {
			return "process " + w[4]
		}
		return fmt.Sprintf("process %s (%s)", w[4], strings.TrimSpace(string(name)))
	}
	return "another process"
}

// Rotational reports whether the block device with this number
// says that seeks cost.
func Rotational(dev uint64) bool {
	base := fmt.Sprintf("/sys/dev/block/%d:%d/", unix.Major(dev), unix.Minor(dev))
	// A partition has its queue in the disk above it.
	for _, p := range []string{"queue/rotational", "../queue/rotational"} {
		if b, err := os.ReadFile(base + p); err == nil {
			return strings.TrimSpace(string(b)) == "1"
		}
	}
	return false
}
