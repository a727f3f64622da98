package iscsi

import "softiser/internal/iscsi"

// service is what becomes of the PDUs of one opcode in full feature phase.
type service struct {
	take      func(*session, *conn, *iscsi.PDU) // releases the PDU; nil: it is rejected
	reject    iscsi.RejectReason
	discovery bool                              // discovery sessions know it as well (RFC 7143 §4.3)
	behind    func(*session, *conn, *iscsi.PDU) // takes those that came behind a command that was held
	place     bool                              // it takes a place in the command window, besides its number
	loose     bool                              // it has no number, and is taken as it comes
}

// services has a row for each opcode (RFC 7143 §11.2.1.2).
var services [1 << 6]service
