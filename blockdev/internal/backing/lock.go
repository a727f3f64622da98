package backing

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"softiser/blockdev"
	"softiser/internal/filelock"
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
		who, own := filelock.Holder(f)
		if own {
			who += ", for another volume"
		}
		return fmt.Errorf("locked by %s; a file is served as one volume, by one target: %w", who, blockdev.ErrInUse)
	}
	if err != nil {
		return fmt.Errorf("locking: %w", err)
	}
	return nil
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
