package config

import (
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode"
)

// maxAlias is the length of the longest TargetAlias, bytes (RFC 7143 §6.1).
const maxAlias = 255

// shown reports whether a name consists of characters that tables can have: no end of a line, nothing that
// a terminal obeys, no NUL, which ends a text on the wires.
func shown(s string) bool {
	return !strings.ContainsFunc(s, func(c rune) bool { return !unicode.IsPrint(c) })
}

// CheckVolumeName says why a text is no name of a volume, for those that no file names.
func CheckVolumeName(name string) error {
	if !shown(name) {
		return fmt.Errorf("%q has characters that cannot be shown", name)
	}
	if name == "/" { // the server of the admin socket takes it for the end of a path, however it is written
		return errors.New("\"/\" alone is no name by which commands could ask for the volume; take another one, such as root")
	}
	return nil
}

// checkName applies RFC 7143 §4.2.7: iqn., eui. or naa. form, at most 223
// bytes, lower case as stringprep leaves it.
func checkName(n string) string {
	const form = "expected iqn.YYYY-MM.reversed.domain:name, for example iqn.2026-11.softiser:disk0"
	switch {
	case n == "":
		return "missing; " + form
	case len(n) > 223:
		return fmt.Sprintf("has %d bytes; an iSCSI name has at most 223", len(n))
	case n != strings.ToLower(n):
		return fmt.Sprintf("%q has upper-case letters; iSCSI names are lower case", n)
	case strings.ContainsAny(n, " _/\\\"',") || !shown(n):
		return fmt.Sprintf("%q holds a character that iSCSI names exclude; letters, digits, '.', '-' and ':' are allowed", n)
	}
	kind, rest, _ := strings.Cut(n, ".")
	switch kind {
	case "iqn":
		date, domain, ok := strings.Cut(rest, ".")
		year, month, ok2 := strings.Cut(date, "-")
		m, err := strconv.Atoi(month)
		if !ok || !ok2 || len(year) != 4 || len(month) != 2 || err != nil || m < 1 || m > 12 || domain == "" {
			return fmt.Sprintf("%q is no iSCSI name; %s", n, form)
		}
	case "eui":
		if _, err := hex.DecodeString(rest); err != nil || len(rest) != 16 {
			return fmt.Sprintf("%q: an eui. name has 16 hex digits", n)
		}
	case "naa":
		if _, err := hex.DecodeString(rest); err != nil || len(rest) != 16 && len(rest) != 32 {
			return fmt.Sprintf("%q: a naa. name has 16 or 32 hex digits", n)
		}
	default:
		return fmt.Sprintf("%q is no iSCSI name; %s", n, form)
	}
	return ""
}
