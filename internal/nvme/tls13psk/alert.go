package tls13psk

import "fmt"

// Alert is the description of an alert (RFC 8446 §6).
type Alert uint8

// Alerts that this package sends or tells apart.
const (
	CloseNotify        Alert = 0
	UnexpectedMessage  Alert = 10
	BadRecordMAC       Alert = 20
	RecordOverflow     Alert = 22
	HandshakeFailure   Alert = 40
	IllegalParameter   Alert = 47
	DecodeError        Alert = 50
	DecryptError       Alert = 51
	ProtocolVersion    Alert = 70
	InternalError      Alert = 80
	UserCanceled       Alert = 90
	MissingExtension   Alert = 109
	UnsupportedExt     Alert = 110
	UnknownPSKIdentity Alert = 115
	alertLevelWarning        = 1
	alertLevelFatal          = 2
)

var alertNames = map[Alert]string{
	CloseNotify: "close notify", UnexpectedMessage: "unexpected message", BadRecordMAC: "bad record MAC", RecordOverflow: "record overflow",
	HandshakeFailure: "handshake failure", IllegalParameter: "illegal parameter", DecodeError: "decode error", DecryptError: "decrypt error",
	ProtocolVersion: "protocol version", InternalError: "internal error", UserCanceled: "user canceled", MissingExtension: "missing extension",
	UnsupportedExt: "unsupported extension", UnknownPSKIdentity: "unknown PSK identity",
}

// String returns the name of the alert.
func (a Alert) String() string {
	if s := alertNames[a]; s != "" {
		return s
	}
	return fmt.Sprintf("alert %d", uint8(a))
}

// Error is a connection that one side has ended with an alert.
type Error struct {
	Alert Alert
	Peer  bool  // the peer said so
	Err   error // more; may be nil
}

func (e *Error) Error() string {
	who := ""
	if e.Peer {
		who = "the peer says: "
	}
	if e.Err == nil {
		return fmt.Sprintf("TLS: %s%s", who, e.Alert)
	}
	return fmt.Sprintf("TLS: %s%s: %v", who, e.Alert, e.Err)
}

// Unwrap returns what is behind the alert.
func (e *Error) Unwrap() error { return e.Err }

func failf(a Alert, format string, args ...any) *Error {
	return &Error{Alert: a, Err: fmt.Errorf(format, args...)}
}
