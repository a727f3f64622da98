package iscsi

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Limits of text (RFC 7143 §6.1, §6.2).
const (
	MaxKeyLen       = 63
	MaxValueLen     = 255
	MaxLongValueLen = 8192  // CHAP_C and CHAP_R may be large binary values
	MaxLoginText    = 16384 // one side's text of one negotiation round
	MaxNameLen      = 223   // an iSCSI name (RFC 7143 §4.2.7.1)
)

// Reserved values of a negotiation (RFC 7143 §6.2).
const (
	valueNone          = "None"
	valueReject        = "Reject"
	valueIrrelevant    = "Irrelevant"
	valueNotUnderstood = "NotUnderstood"
	valueYes           = "Yes"
	valueNo            = "No"
)

// ErrText is wrapped by every error about malformed text.
var ErrText = errors.New("iscsi: malformed text")

// KeyValue is one key=value pair.
type KeyValue struct{ Key, Value string }

// ParseText splits a complete text, NUL-terminated key=value pairs (RFC 7143
// §6.1). Keys and values are checked for length; the last NUL may be missing,
// as some initiators leave it out.
func ParseText(text []byte) ([]KeyValue, error) {
	var kvs []KeyValue
	for len(text) > 0 {
		pair := text
		if i := bytes.IndexByte(text, 0); i >= 0 {
			pair, text = text[:i], text[i+1:]
		} else {
			text = nil
		}
		if len(pair) == 0 { // NULs as padding
			continue
		}
		i := bytes.IndexByte(pair, '=')
		if i <= 0 {
			return nil, fmt.Errorf("%w: %.40q is not key=value", ErrText, pair)
		}
		kv := KeyValue{string(pair[:i]), string(pair[i+1:])}
		if len(kv.Key) > MaxKeyLen {
			return nil, fmt.Errorf("%w: key %.40q… is longer than %d characters", ErrText, kv.Key, MaxKeyLen)
		}
		if !validKeyName(kv.Key) {
			return nil, fmt.Errorf("%w: key %.63q has a character that RFC 7143 §6.1 does not allow", ErrText, kv.Key)
		}
		limit := MaxValueLen
		if kv.Key == keyCHAPC || kv.Key == keyCHAPR {
			limit = MaxLongValueLen
		}
		if len(kv.Value) > limit {
			return nil, fmt.Errorf("%w: value of %s is longer than %d bytes", ErrText, kv.Key, limit)
		}
		kvs = append(kvs, kv)
	}
	return kvs, nil
}

// validKeyName applies the standard-label grammar; lower case is accepted at the
// start too, since private keys come in every form.
func validKeyName(s string) bool {
	for i := range len(s) {
		c := s[i]
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		case c == '.' || c == '-' || c == '+' || c == '@' || c == '_' || c == '#' || c == ':' || c == '/':
		default:
			return false
		}
	}
	return true
}

// AppendKey appends key=value and the NUL.
func AppendKey(dst []byte, key, value string) []byte {
	dst = append(dst, key...)
	dst = append(dst, '=')
	dst = append(dst, value...)
	return append(dst, 0)
}

// TextBuffer puts text together that comes in several PDUs with the C bit.
type TextBuffer struct {
	Limit int // bytes; 0 means MaxLoginText
	buf   []byte
}

// Add takes one PDU's data. When more is false it returns the complete text,
// which is valid until the next Add.
func (t *TextBuffer) Add(data []byte, more bool) (text []byte, complete bool, err error) {
	limit := t.Limit
	if limit == 0 {
		limit = MaxLoginText
	}
	if len(data) > limit-len(t.buf) {
		return nil, false, fmt.Errorf("%w: more than %d bytes in one negotiation round", ErrText, limit)
	}
	t.buf = append(t.buf, data...)
	if more {
		if len(data) == 0 {
			return nil, false, fmt.Errorf("%w: C bit on a PDU without text", ErrText)
		}
		return nil, false, nil
	}
	text, t.buf = t.buf, t.buf[:0]
	return text, true, nil
}

// Pending reports whether the beginning of a text is waiting for the rest.
func (t *TextBuffer) Pending() bool { return len(t.buf) > 0 }

// NormalizeName returns the form in which iSCSI names are compared: lower case
// (RFC 7143 §4.2.7.2, RFC 3722 for the ASCII range).
func NormalizeName(name string) string { return strings.ToLower(name) }

// Printable returns text of a peer as it may go to a terminal or a log: what is no
// graphic character, control characters and what reverses the direction of writing
// above all, is escaped as in a Go string.
func Printable(s string) string {
	for _, c := range s {
		if !unicode.IsPrint(c) || c == utf8.RuneError {
			q := strconv.Quote(s)
			return q[1 : len(q)-1]
		}
	}
	return s
}

// PrintableLines is Printable for messages of several lines, such as joined errors.
func PrintableLines(s string) string {
	lines := strings.Split(s, "\n")
	for i := range lines {
		lines[i] = Printable(lines[i])
	}
	return strings.Join(lines, "\n")
}

// CheckName says what is wrong with an iSCSI name, or nil (RFC 7143 §4.2.7).
func CheckName(name string) error {
	if name == "" {
		return errors.New("iscsi name is empty")
	}
	if len(name) > MaxNameLen {
		return fmt.Errorf("iscsi name %.40q… is longer than %d bytes", name, MaxNameLen)
	}
	n := NormalizeName(name)
	for i := range len(n) {
		c := n[i]
		switch {
		case 'a' <= c && c <= 'z', '0' <= c && c <= '9', c == '-', c == '.', c == ':', c >= 0x80:
		default:
			return fmt.Errorf("iscsi name %q has the character %q; letters, digits, '-', '.' and ':' are allowed", name, c)
		}
	}
	switch {
	case strings.HasPrefix(n, "iqn."):
		if len(n) < len("iqn.2026-11.a") || n[8] != '-' || n[11] != '.' {
			return fmt.Errorf("iscsi name %q is not of the form iqn.YYYY-MM.reversed.domain[:text]", name)
		}
	case strings.HasPrefix(n, "eui."):
		if len(n) != 20 || !isHex(n[4:]) {
			return fmt.Errorf("iscsi name %q is not eui. and 16 hexadecimal digits", name)
		}
	case strings.HasPrefix(n, "naa."):
		if len(n) != 20 && len(n) != 36 || !isHex(n[4:]) {
			return fmt.Errorf("iscsi name %q is not naa. and 16 or 32 hexadecimal digits", name)
		}
	default:
		return fmt.Errorf("iscsi name %q does not begin with iqn., eui. or naa. as a name must", name)
	}
	return nil
}

// CheckInitiatorName says why a login under a name is refused, whatever else holds, or nil. An
// initiator may call itself what is no iSCSI name.
func CheckInitiatorName(name string) error {
	switch {
	case name == "":
		return errors.New("InitiatorName is empty")
	case len(NormalizeName(name)) > MaxNameLen: // which may be longer than name
		return fmt.Errorf("InitiatorName is longer than %d bytes", MaxNameLen)
	case Printable(name) != name:
		return fmt.Errorf("InitiatorName %q holds what cannot be printed; no iSCSI name does (RFC 7143 §4.2.7)", name)
	}
	return nil
}

func isHex(s string) bool {
	for i := range len(s) {
		c := s[i]
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}
