package iscsi

import (
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

var errValue = errors.New("not a valid value")

// parseNumber reads a decimal or hexadecimal constant (RFC 7143 §6.1).
func parseNumber(s string) (uint32, error) {
	base := 10
	if len(s) > 2 && (s[:2] == "0x" || s[:2] == "0X") {
		s, base = s[2:], 16
	}
	if s == "" || s[0] == '+' || s[0] == '-' || strings.ContainsRune(s, '_') {
		return 0, errValue
	}
	v, err := strconv.ParseUint(s, base, 32)
	if err != nil {
		return 0, errValue
	}
	return uint32(v), nil
}

// parseBool reads Yes or No.
func parseBool(s string) (uint32, error) {
	switch s {
	case valueYes:
		return 1, nil
	case valueNo:
		return 0, nil
	}
	return 0, errValue
}

func boolText(v uint32) string {
	if v != 0 {
		return valueYes
	}
	return valueNo
}

func boolValue(b bool) uint32 {
	if b {
		return 1
	}
	return 0
}

// splitList cuts a comma-separated list; a hostile one is cut short.
func splitList(s string) []string {
	l := strings.SplitN(s, ",", 65)
	return l[:min(len(l), 64)]
}

// maxBinary bounds a large binary value (RFC 7143 §6.1, CHAP: 1024 bytes).
const maxBinary = 1024

// parseBinary reads a large binary value: 0x and hexadecimal digits, or 0b and
// base64 (RFC 7143 §6.1). An odd number of digits has a leading zero.
func parseBinary(s string) ([]byte, error) {
	if len(s) < 2 {
		return nil, fmt.Errorf("binary value %q has neither 0x nor 0b in front", s)
	}
	digits := s[2:]
	switch s[:2] {
	case "0x", "0X":
		if len(digits)%2 != 0 {
			digits = "0" + digits
		}
		if len(digits) > 2*maxBinary {
			return nil, fmt.Errorf("binary value is longer than %d bytes", maxBinary)
		}
		b, err := hex.DecodeString(digits)
		if err != nil {
			return nil, errors.New("binary value is not hexadecimal")
		}
		return b, nil
	case "0b", "0B":
		if len(digits) > base64.StdEncoding.EncodedLen(maxBinary) {
			return nil, fmt.Errorf("binary value is longer than %d bytes", maxBinary)
		}
		b, err := base64.StdEncoding.DecodeString(digits)
		if err != nil {
			b, err = base64.RawStdEncoding.DecodeString(digits)
		}
		if err != nil {
			return nil, errors.New("binary value is not base64")
		}
		if len(b) > maxBinary {
			return nil, fmt.Errorf("binary value is longer than %d bytes", maxBinary)
		}
		return b, nil
	}
	return nil, errors.New("binary value has neither 0x nor 0b in front")
}

// formatBinary writes a large binary value in hexadecimal, as everybody does.
func formatBinary(b []byte) string { return "0x" + hex.EncodeToString(b) }
