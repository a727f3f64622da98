package rc

import (
	"fmt"

	"softiser/rdma/internal/roce/packet"
)

// Refused is why a connection has ended: what the peer sent, and what it was told.
type Refused struct {
	Syndrome packet.Syndrome // NAKInvalidRequest, NAKRemoteAccess or NAKRemoteOperational
	PSN      packet.PSN
	Op       packet.Opcode
	Reason   string
}

func (e *Refused) Error() string {
	return fmt.Sprintf("rdma: %v with PSN %#06x refused (%v): %s", e.Op, uint32(e.PSN), e.Syndrome, e.Reason)
}
