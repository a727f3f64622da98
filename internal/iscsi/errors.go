package iscsi

import (
	"errors"
	"fmt"
)

// LoginStatus is Status-Class and Status-Detail of a Login Response (RFC 7143
// §11.13.5), class in the high byte.
type LoginStatus uint16

// Login statuses.
const (
	LoginSuccess            LoginStatus = 0x0000
	LoginMovedTemporarily   LoginStatus = 0x0101
	LoginMovedPermanently   LoginStatus = 0x0102
	LoginInitiatorFailure   LoginStatus = 0x0200
	LoginAuthFailure        LoginStatus = 0x0201
	LoginForbidden          LoginStatus = 0x0202
	LoginNotFound           LoginStatus = 0x0203
	LoginTargetRemoved      LoginStatus = 0x0204
	LoginBadVersion         LoginStatus = 0x0205
	LoginTooManyConnections LoginStatus = 0x0206
	LoginMissingParameter   LoginStatus = 0x0207
	LoginCannotInclude      LoginStatus = 0x0208
	LoginBadSessionType     LoginStatus = 0x0209
	LoginNoSession          LoginStatus = 0x020a
	LoginInvalidRequest     LoginStatus = 0x020b
	LoginTargetFailure      LoginStatus = 0x0300
	LoginUnavailable        LoginStatus = 0x0301
	LoginOutOfResources     LoginStatus = 0x0302
)

// loginStatuses holds, for each status, its name and what an initiator's user
// can do about it.
var loginStatuses = map[LoginStatus]struct{ name, advice string }{
	LoginSuccess:            {"success", ""},
	LoginMovedTemporarily:   {"target moved temporarily", "log in at the address that came with it"},
	LoginMovedPermanently:   {"target moved permanently", "log in at the address that came with it and store it"},
	LoginInitiatorFailure:   {"initiator error", "the target's log says which key or field it did not accept"},
	LoginAuthFailure:        {"authentication failure", "check user name, secret, CHAP algorithm and whether the target asks for CHAP at all"},
	LoginForbidden:          {"authorization failure", "the target's access list does not admit this initiator name, address or certificate"},
	LoginNotFound:           {"target not found", "check the target name, and whether the target's access list admits this initiator name and address; discovery lists what this initiator may use"},
	LoginTargetRemoved:      {"target removed", "it will not come back at this address"},
	LoginBadVersion:         {"unsupported version", "the two ends share no iSCSI version"},
	LoginTooManyConnections: {"too many connections", "close a session or raise the target's limit"},
	LoginMissingParameter:   {"missing parameter", "the initiator left out InitiatorName or TargetName"},
	LoginCannotInclude:      {"cannot include in session", "the session does not take this connection"},
	LoginBadSessionType:     {"session type not supported", "try a normal session instead of discovery, or the reverse"},
	LoginNoSession:          {"session does not exist", "log in with TSIH 0 to open a new one"},
	LoginInvalidRequest:     {"invalid during login", "the initiator sent a PDU that login does not allow"},
	LoginTargetFailure:      {"target error", "see the target's log"},
	LoginUnavailable:        {"service unavailable", "the target or portal is not operational now; try again"},
	LoginOutOfResources:     {"out of resources", "close sessions or raise the target's limits; try again"},
}

// Class returns the Status-Class: 0 success, 1 redirection, 2 initiator's fault,
// 3 target's fault.
func (s LoginStatus) Class() uint8 { return uint8(s >> 8) }

// Detail returns the Status-Detail.
func (s LoginStatus) Detail() uint8 { return uint8(s) }

// String names the status.
func (s LoginStatus) String() string {
	if n, ok := loginStatuses[s]; ok {
		return n.name
	}
	return fmt.Sprintf("login status %#04x", uint16(s))
}

// LoginError ends a login. On the side that raised it, Reason says exactly what
// was wrong; the other side learns the status, and explains it.
type LoginError struct {
	Status   LoginStatus
	Reason   string
	Remote   bool   // raised by the other end
	Redirect string // TargetAddress of a redirection
}

// Error returns one sentence with the status, the reason and what to do.
func (e *LoginError) Error() string {
	s := loginStatuses[e.Status]
	name := e.Status.String()
	switch {
	case e.Remote && e.Redirect != "":
		return fmt.Sprintf("iscsi: login redirected (status %04x, %s) to %s", uint16(e.Status), name, e.Redirect)
	case e.Remote && s.advice != "":
		return fmt.Sprintf("iscsi: login refused by the target (status %04x, %s): %s", uint16(e.Status), name, s.advice)
	case e.Remote:
		return fmt.Sprintf("iscsi: login refused by the target (status %04x, %s)", uint16(e.Status), name)
	case e.Reason == "":
		return fmt.Sprintf("iscsi: login failed (status %04x, %s)", uint16(e.Status), name)
	}
	return fmt.Sprintf("iscsi: login failed (status %04x, %s): %s", uint16(e.Status), name, e.Reason)
}

// Refuse makes a LoginError with a reason.
func Refuse(s LoginStatus, format string, args ...any) *LoginError {
	return &LoginError{Status: s, Reason: fmt.Sprintf(format, args...)}
}

// Redirect makes the LoginError that sends an initiator to another portal.
func Redirect(permanently bool, targetAddress string) *LoginError {
	s := LoginMovedTemporarily
	if permanently {
		s = LoginMovedPermanently
	}
	return &LoginError{Status: s, Redirect: targetAddress, Reason: "sent to " + targetAddress}
}

// asLoginError gives every error a status.
func asLoginError(err error, otherwise LoginStatus) *LoginError {
	var le *LoginError
	if errors.As(err, &le) {
		return le
	}
	return &LoginError{Status: otherwise, Reason: err.Error()}
}

// ProtocolError is a PDU that breaks the protocol; Reject says how it is
// answered where the connection survives.
type ProtocolError struct {
	Reason RejectReason
	Msg    string
	// Fatal: the PDU boundary or the order of the stream is in doubt; the
	// connection ends.
	Fatal bool
}

// Error returns the reason.
func (e *ProtocolError) Error() string { return "iscsi: " + e.Reason.String() + ": " + e.Msg }
