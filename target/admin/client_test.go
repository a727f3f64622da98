package admin

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
)

// Who may not use the socket is told whose it is and how to name another one.
func TestSocketOfAnotherUser(t *testing.T) {
	c := NewClient("/run/softiser/iser-target.sock")
	defer c.Close()
	err := c.unanswered(t.Context(), &net.OpError{Op: "dial", Net: "unix", Err: os.NewSyscallError("connect", syscall.EACCES)})
	if !errors.Is(err, fs.ErrPermission) || errors.Is(err, ErrNoTarget) || !strings.Contains(err.Error(), "--socket") || !strings.Contains(err.Error(), "/run/softiser/") {
		t.Error(err)
	}
}
