// Package filelock says who has a file locked by flock(2), for the message of whoever cannot lock it.
package filelock

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// Holder names who has f locked, and says whether that is this process, by another open of the file. It is from
// /proc/locks:
//
//	1: FLOCK  ADVISORY  WRITE 708 fe:00:1234 0 EOF
func Holder(f *os.File) (who string, own bool) {
	var st syscall.Stat_t
	locks, err := os.Open("/proc/locks")
	if err != nil {
		return "another process", false
	}
	defer locks.Close()
	if syscall.Fstat(int(f.Fd()), &st) != nil {
		return "another process", false
	}
	major, minor := st.Dev>>8&0xFFF|st.Dev>>32&^0xFFF, st.Dev&0xFF|st.Dev>>12&^0xFF // makedev(3)
	id := fmt.Sprintf("%02x:%02x:%d", uint32(major), uint32(minor), st.Ino)
	for sc := bufio.NewScanner(locks); sc.Scan(); {
		w := strings.Fields(sc.Text())
		if len(w) < 6 || w[1] != "FLOCK" || w[5] != id {
			continue
		}
		if w[4] == strconv.Itoa(os.Getpid()) {
			return "this process", true
		}
		switch name, ended := process(w[4]); {
		case ended: // the lock stays with the open file, which it has handed over
			return "the process that has taken over from process " + w[4], false
		case name == "":
			return "process " + w[4], false
		default:
			return fmt.Sprintf("process %s (%s)", w[4], name), false
		}
	}
	return "another process", false
}

// process returns the name of a process, "" if that cannot be told, and whether it has ended, be it that nobody has waited for it.
func process(pid string) (name string, ended bool) {
	b, err := os.ReadFile("/proc/" + pid + "/stat")
	if err != nil {
		return "", errors.Is(err, os.ErrNotExist)
	}
	_, rest, _ := strings.Cut(string(b), "(") // proc(5): pid (comm) state
	i := strings.LastIndex(rest, ") ")
	if i < 0 {
		return "", false
	}
	state := rest[i+2:]
	return rest[:i], strings.HasPrefix(state, "Z") || strings.HasPrefix(state, "X")
}
