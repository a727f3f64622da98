package raw

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// queue is what sysfs says of a block device's request queue.
type queue struct {
	rotational         bool
	discardMax         int // bytes per discard; 0: no discard
	discardGranularity int // bytes
}

func queueOf(fd int) (q queue) {
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil {
		return q
	}
	base := fmt.Sprintf("/sys/dev/block/%d:%d/", unix.Major(st.Rdev), unix.Minor(st.Rdev))
	read := func(name string) int {
		// A partition has its queue in the disk above it.
		for _, dir := range []string{"queue/", "../queue/"} {
			if b, err := os.ReadFile(base + dir + name); err == nil {
				n, _ := strconv.Atoi(strings.TrimSpace(string(b)))
				return n
			}
		}
		return 0
	}
	q.rotational = read("rotational") == 1
	q.discardMax = read("discard_max_bytes")
	q.discardGranularity = read("discard_granularity")
	return q
}
