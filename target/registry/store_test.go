package registry

import (
	"io/fs"
	"strings"
	"syscall"
	"testing"
)

// Serving without writing is the advice where that would work, and no other.
func TestHintAt(t *testing.T) {
	for _, c := range []struct {
		err        error
		readOnly   bool
		unreadable error
		want       string
	}{
		{fs.ErrPermission, false, nil, "read_only: true"},
		{syscall.EROFS, false, nil, "read_only: true"},
		{fs.ErrPermission, false, syscall.EACCES, "runs as user"},
		{fs.ErrPermission, true, syscall.EACCES, "runs as user"},
		{fs.ErrPermission, true, nil, ""},
		{syscall.EROFS, false, syscall.ENOENT, ""},
		{syscall.EIO, false, nil, ""},
	} {
		if got := hintAt(c.err, c.readOnly, c.unreadable); !strings.Contains(got, c.want) || c.want == "" && got != "" {
			t.Errorf("%v, read-only %v, %v: %q, want %q", c.err, c.readOnly, c.unreadable, got, c.want)
		}
	}
}
