package systemd

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// Socket is one that the manager has opened for the process. Its descriptor is the caller's.
type Socket struct {
	FD   int
	Name string // FileDescriptorName= of the unit
}

// firstSocket is the descriptor that sd_listen_fds(3) begins with.
const firstSocket = 3

// Sockets returns what the manager has opened for this process (sd_listen_fds(3)), none
// without a manager, or when that was another process. Children do not get them.
func Sockets() ([]Socket, error) {
	pid, count := os.Getenv("LISTEN_PID"), os.Getenv("LISTEN_FDS")
	names := strings.Split(os.Getenv("LISTEN_FDNAMES"), ":")
	for _, name := range []string{"LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"} {
		if err := os.Unsetenv(name); err != nil {
			return nil, err
		}
	}
	if pid != strconv.Itoa(os.Getpid()) {
		return nil, nil
	}
	n, err := strconv.ParseUint(count, 10, 16)
	if err != nil {
		return nil, fmt.Errorf("LISTEN_FDS: %w", err)
	}
	all := make([]Socket, n)
	for i := range all {
		all[i].FD = firstSocket + i
		syscall.CloseOnExec(all[i].FD)
		if i < len(names) {
			all[i].Name = names[i]
		}
	}
	return all, nil
}
