package sizeflag

import (
	"errors"
	"fmt"
	"math"
	"math/big"
	"strconv"
	"strings"
)

// Form is what a size looks like, for error messages.
const Form = "bytes, or a number with a spelled-out unit such as 512B, 4KiB, 100MiB, 1.5GiB, 2TiB (powers of 1024) or 4kB, 100MB, 2TB (powers of 1000)"

// Parse reads a size as options, volumes on the command line and configurations take it.
// A unit must leave no doubt between 1000 and 1024, so a bare k, m, g or t is refused:
// tools disagree about it (fio and lvm2 say 1024, others 1000). A bare number
// is bytes. A fraction has to come out as whole bytes: a volume is as large as it is said to be.
func Parse(s string) (int64, error) {
	t := strings.TrimSpace(s)
	unit := strings.TrimSpace(strings.TrimLeft(t, "0123456789._"))
	number := strings.TrimSpace(strings.TrimSuffix(t, unit))
	if number == "" {
		return 0, fmt.Errorf("%q is not a size; expected %s", s, Form)
	}
	switch strings.ToLower(unit) {
	case "":
		n, err := strconv.ParseInt(strings.ReplaceAll(number, "_", ""), 10, 64)
		if errors.Is(err, strconv.ErrRange) {
			return 0, tooLarge(s)
		}
		if err != nil {
			return 0, fmt.Errorf("%q is not a whole number of bytes; expected %s", s, Form)
		}
		return n, nil
	case "k", "m", "g", "t", "p", "e":
		u := strings.ToUpper(unit)
		si := u + "B"
		if u == "K" {
			si = "kB"
		}
		return 0, fmt.Errorf("the unit of %q is ambiguous; write %s%siB (powers of 1024) or %s%s (powers of 1000)", s, number, u, number, si)
	}
	scale, ok := units[strings.ToLower(unit)]
	n, isNumber := new(big.Rat).SetString(strings.ReplaceAll(number, "_", ""))
	if !ok || !isNumber {
		return 0, fmt.Errorf("%q is not a size; expected %s", s, Form)
	}
	n.Mul(n, new(big.Rat).SetInt64(scale))
	switch {
	case n.Cmp(new(big.Rat).SetInt64(math.MaxInt64)) > 0:
		return 0, tooLarge(s)
	case !n.IsInt():
		return 0, fmt.Errorf("%q is not a whole number of bytes (about %s); write it in a smaller unit", s, n.FloatString(1))
	}
	return n.Num().Int64(), nil
}

// Text is the shortest exact form of a size for messages, which Parse reads: 1GiB, 1536MiB, 1000B.
func Text(n int64) string {
	if n == 0 {
		return "0"
	}
	names, u := [...]string{"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"}, 0
	for n%1024 == 0 && u < len(names)-1 {
		n /= 1024
		u++
	}
	return strconv.FormatInt(n, 10) + names[u]
}

// units in small letters, in bytes.
var units = map[string]int64{
	"b":  1,
	"kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12, "pb": 1e15, "eb": 1e18,
	"kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40, "pib": 1 << 50, "eib": 1 << 60,
	"ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30, "ti": 1 << 40, "pi": 1 << 50, "ei": 1 << 60,
}

func tooLarge(s string) error {
	return fmt.Errorf("%q is more than %d bytes, the largest size a device can have", s, int64(math.MaxInt64))
}
