package nbd

import "softiser/initiator/internal/errno"

// Error numbers of the protocol; they are Linux's.
const (
	errPerm     = 1
	errIO       = 5
	errNoMem    = 12
	errInval    = 22
	errNoSpace  = 28
	errOverflow = 75
	errNotSup   = 95
	errShutdown = 108
)

// errnoOf maps the end of a request to the protocol's error number.
func errnoOf(err error) uint32 { return uint32(errno.Of(err)) }
