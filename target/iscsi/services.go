package iscsi

import "softiser/internal/iscsi"

// service says how the PDUs of one opcode are handled in the full feature phase.
type service struct {
	take       func(*session, *conn, *iscsi.PDU) // handles and releases the PDU; nil: it is rejected
	reject     iscsi.RejectReason                // used when take is nil
	discovery  bool                              // also allowed in discovery sessions (RFC 7143 §4.3)
	takeHeld   func(*session, *conn, *iscsi.PDU) // handles data that was held together with its command
	place      bool                              // takes a place in the command window, besides a CmdSN
	unnumbered bool                              // has no CmdSN, and is handled on arrival
}

// services has a row for each opcode (RFC 7143 §11.2.1.2).
var services [1 << 6]service
