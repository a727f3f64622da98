package target

import (
	"fmt"
	"os"
	"syscall"
)

// Every connection is a file descriptor, and a process has only so many. Connections
// must not take those that volumes, state files and the administrator need, and among
// connections, those that have not logged in must not take those of sessions: so the
// limits are cut down to what the process may open.

// descriptorBudget returns how many sessions and pending logins fit into a process that
// may have limit file descriptors and has used of them open. A sixteenth, at least 32, is
// left to what is no connection; of the rest at most a quarter is for pending logins.
func descriptorBudget(limit, used uint64, l Limits) (sessions, pending int) {
	reserve := used + max(limit/16, 32)
	room := 2
	if limit > reserve+2 {
		room = int(min(limit-reserve, 1<<30))
	}
	pending = min(l.PendingLogins, max(room/4, 1))
	return min(l.Sessions, max(room-pending, 1)), pending
}

// fit cuts the limits down to what the process may open; it reports whether it had to.
func (l *Limits) fit() bool {
	limit, used, err := openFiles()
	if err != nil {
		return false // without /proc nobody knows
	}
	asked := *l
	if l.Sessions, l.PendingLogins = descriptorBudget(limit, used, *l); l.Sessions < asked.Sessions {
		l.SessionsPerAddress = min(l.SessionsPerAddress, defaultShare(l.Sessions))
		l.ReservedSessions = min(l.ReservedSessions, l.Sessions/8)
	}
	if l.PendingLogins < asked.PendingLogins {
		l.PendingPerAddress = min(l.PendingPerAddress, defaultShare(l.PendingLogins))
	}
	return l.Sessions < asked.Sessions || l.PendingLogins < asked.PendingLogins
}

// openFiles returns how many file descriptors the process may have, and has.
func openFiles() (limit, used uint64, err error) {
	var r syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &r); err != nil {
		return 0, 0, fmt.Errorf("limit of open files: %w", err)
	}
	names, err := os.ReadDir("/proc/self/fd")
	return r.Cur, uint64(len(names)), err
}
