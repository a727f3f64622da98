package backing

import (
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"softiser/blockdev"
)

// Mark implements blockdev.Marker.
func (v *Volume) Mark(kind blockdev.MarkKind) (string, error) {
	if !v.cfg.Marks {
		return "", blockdev.ErrNotSupported
	}
	if err := v.begin(); err != nil {
		return "", err
	}
	defer v.opMu.RUnlock()
	p := make([]byte, 4096)
	n, err := unix.Fgetxattr(v.fd, string(kind), p)
	switch {
	case errors.Is(err, unix.ENODATA):
		return "", nil
	case err != nil:
		return "", v.markError(kind, "reading", err)
	}
	return string(p[:n]), nil
}

// SetMark implements blockdev.Marker.
func (v *Volume) SetMark(kind blockdev.MarkKind, text string) error {
	if !v.cfg.Marks {
		return blockdev.ErrNotSupported
	}
	if err := v.begin(); err != nil {
		return err
	}
	defer v.opMu.RUnlock()
	var err error
	if text != "" {
		err = unix.Fsetxattr(v.fd, string(kind), []byte(text), 0)
	} else if err = unix.Fremovexattr(v.fd, string(kind)); errors.Is(err, unix.ENODATA) {
		return nil
	}
	if err != nil {
		return v.markError(kind, "writing", err)
	}
	// By a description of its own: what fsync says of lost writes, it says once to each.
	fd, err := reopen(v.fd)
	if err != nil {
		return v.markError(kind, "syncing", err)
	}
	defer unix.Close(fd)
	if err := unix.Fsync(fd); err != nil { // not fdatasync, which may leave attributes out
		return v.markError(kind, "syncing", err)
	}
	return nil
}

// Unmark implements blockdev.Marker.
func (v *Volume) Unmark(kind blockdev.MarkKind) string {
	return fmt.Sprintf("setfattr -x %s %s", kind, shellWord(v.Info().ID))
}

// shellWord is a path as a shell takes it for one word.
func shellWord(path string) string {
	const plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-+,:@%"
	if strings.Trim(path, plain) == "" {
		return path
	}
	return "'" + strings.ReplaceAll(path, "'", `'\''`) + "'"
}

func (v *Volume) markError(kind blockdev.MarkKind, doing string, err error) error {
	if errors.Is(err, unix.ENOTSUP) {
		return blockdev.ErrNotSupported
	}
	return fmt.Errorf("blockdev: %s: %s the attribute %s: %w", v.cfg.Path, doing, kind, err)
}
