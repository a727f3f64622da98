package backing

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// wideWindow is a read-ahead, bytes, from which on short reads of data that is not in memory are
// fetched without it. A narrower one, Linux' default of 128 KiB above all, costs a fault little,
// and brings what the next reads find in memory.
const wideWindow = 1 << 20

// readAhead returns the window that a fault on a mapping of the file reads, bytes: that of the
// device below its file system. 0: there is none, or nobody knows.
func readAhead(fd int) int64 {
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil {
		return 0
	}
	dev := fmt.Sprintf("/sys/dev/block/%d:%d", unix.Major(st.Dev), unix.Minor(st.Dev))
	for _, queue := range []string{"/queue", "/../queue"} { // of a disk; of a partition's disk
		b, err := os.ReadFile(dev + queue + "/read_ahead_kb")
		if err != nil {
			continue
		}
		n, _ := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 53)
		return n << 10
	}
	return 0
}
