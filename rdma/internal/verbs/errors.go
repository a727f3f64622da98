package verbs

import (
	"errors"
	"fmt"
)

// Sentinel errors, which package rdma hands on.
var (
	ErrBusy      = errors.New("rdma: object is still in use")
	ErrClosed    = errors.New("rdma: object has been closed")
	ErrQueueFull = errors.New("rdma: work queue is full")
	ErrState     = errors.New("rdma: queue pair is not connected")
	ErrLimit     = errors.New("rdma: device limit reached")
	ErrInvalid   = errors.New("rdma: invalid argument")
	ErrRejected  = errors.New("rdma: connection rejected by the peer")
	ErrOverflow  = errors.New("rdma: completion queue overflow")
	ErrTimeout   = errors.New("rdma: the peer did not answer in time")
	ErrRefused   = errors.New("rdma: connection parameters refused")
)

// Invalid is an ErrInvalid that says what is wrong.
func Invalid(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrInvalid, fmt.Sprintf(format, args...))
}
