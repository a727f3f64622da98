package cm

import (
	"errors"
	"fmt"
	"net/netip"

	"softiser/rdma/internal/roce/mad"
	"softiser/rdma/internal/verbs"
)

// Errors that end a connection, or prevent one.
var (
	ErrDisconnected = errors.New("rdma: the peer has ended the connection")
	ErrStale        = errors.New("rdma: the peer has started anew and uses the same queue pair number for another connection")
	errAnswered     = fmt.Errorf("%w: the connection request has been answered already", verbs.ErrState)
)

// RejectError says that the peer has refused a connection. It is verbs.ErrRejected.
type RejectError struct {
	Peer    netip.Addr
	Reason  mad.Reason
	Private []byte // of the peer's application; mad.PrivateREJ bytes, zeros behind what was sent
}

// Error names peer and reason.
func (e *RejectError) Error() string {
	return fmt.Sprintf("%v: %v says: %v", verbs.ErrRejected, e.Peer, e.Reason)
}

// Unwrap is verbs.ErrRejected.
func (e *RejectError) Unwrap() error { return verbs.ErrRejected }

func errSilent(what mad.Attr, peer netip.Addr, tries int) error {
	return fmt.Errorf("%w: %v to %v was sent %d times; is UDP port 4791 open there, both ways?", verbs.ErrTimeout, what, peer, tries)
}
