package backing

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"softiser/blockdev"
)

// Mark implements blockdev.Marker.
func (v *Volume) Mark() (string, error) {
	if !v.cfg.Marks {
		return "", blockdev.ErrNotSupported
	}
	if err := v.begin(); err != nil {
		return "", err
	}
	defer v.opMu.RUnlock()
	p := make([]byte, 4096)
	n, err := unix.Fgetxattr(v.fd, blockdev.MarkAttribute, p)
	switch {
	case errors.Is(err, unix.ENODATA):
		return "", nil
	case err != nil:
		return "", v.markError("reading", err)
	}
	return string(p[:n]), nil
}

// SetMark implements blockdev.Marker.
func (v *Volume) SetMark(text string) error {
	if !v.cfg.Marks {
		return blockdev.ErrNotSupported
	}
	if err := v.begin(); err != nil {
		return err
	}
	defer v.opMu.RUnlock()
	var err error
	if text != "" {
		err = unix.Fsetxattr(v.fd, blockdev.MarkAttribute, []byte(text), 0)
	} else if err = unix.Fremovexattr(v.fd, blockdev.MarkAttribute); errors.Is(err, unix.ENODATA) {
		return nil
	}
	if err != nil {
		return v.markError("writing", err)
	}
	// By a description of its own: what fsync says of lost writes, it says once to each.
	fd, err := reopen(v.fd)
	if err != nil {
		return v.markError("syncing", err)
	}
	defer unix.Close(fd)
	if err := unix.Fsync(fd); err != nil { // not fdatasync, which may leave attributes out
		return v.markError("syncing", err)
	}
	return nil
}

func (v *Volume) markError(doing string, err error) error {
	if errors.Is(err, unix.ENOTSUP) {
		return blockdev.ErrNotSupported
	}
	return fmt.Errorf("blockdev: %s: %s the attribute %s: %w", v.cfg.Path, doing, blockdev.MarkAttribute, err)
}
