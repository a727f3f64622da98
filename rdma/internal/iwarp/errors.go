package iwarp

import (
	"fmt"

	"softiser/rdma/internal/wire"
)

// Terminated says that a connection ended by a Terminate message, or by an error for
// which one was due (RFC 5040 §4.8).
type Terminated struct {
	Remote bool // the peer found the error and told us; otherwise we found it
	Cause  wire.Cause
	Detail string // what was wrong, known at the side that found it
}

// Error says it in words.
func (e *Terminated) Error() string {
	who := "terminated the connection"
	if e.Remote {
		who = "peer terminated the connection"
	}
	if e.Detail != "" {
		return fmt.Sprintf("rdma: %s: %v: %s", who, e.Cause, e.Detail)
	}
	return fmt.Sprintf("rdma: %s: %v", who, e.Cause)
}
