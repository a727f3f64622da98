package config

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/dustin/go-humanize"
)

// Size is a number of bytes that people write with a unit.
type Size int64

// SizeForm is the expected form, for error messages.
const SizeForm = "a number with a spelled-out unit such as 512B, 4KiB, 100MiB, 1.5GiB, 2TiB (powers of 1024) or 4kB, 100MB, 2TB (powers of 1000)"

// ParseSize reads a size. A unit must leave no doubt between 1000 and 1024, so
// a bare k, m, g or t is refused: tools disagree about it (fio and lvm2 say
// 1024, go-humanize says 1000). A bare number is bytes.
func ParseSize(s string) (Size, error) {
	t := strings.TrimSpace(s)
	unit := strings.TrimSpace(strings.TrimLeft(t, "0123456789.,_"))
	number := strings.TrimSpace(strings.TrimSuffix(t, unit))
	if number == "" {
		return 0, fmt.Errorf("%q is not a size; expected %s", s, SizeForm)
	}
	switch strings.ToLower(unit) {
	case "":
		n, err := strconv.ParseInt(strings.ReplaceAll(number, "_", ""), 10, 64)
		if err != nil {
			return 0, fmt.Errorf("%q is not a whole number of bytes; expected %s", s, SizeForm)
		}
		return Size(n), nil
	case "k", "m", "g", "t", "p", "e":
		u := strings.ToUpper(unit)
		si := u + "B"
		if u == "K" {
			si = "kB"
		}
		return 0, fmt.Errorf("the unit of %q is ambiguous; write %s%siB (powers of 1024) or %s%s (powers of 1000)", s, number, u, number, si)
	}
	n, err := humanize.ParseBytes(t)
	if err != nil {
		return 0, fmt.Errorf("%q is not a size; expected %s", s, SizeForm)
	}
	if n > math.MaxInt64 {
		return 0, fmt.Errorf("%q is more than %s, the largest size a device can have", s, Size(math.MaxInt64))
	}
	return Size(n), nil
}

// String prints the shortest exact form: 1GiB, 1536MiB, 1000B.
func (s Size) String() string {
	if s == 0 {
		return "0"
	}
	units := []string{"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"}
	n, u := int64(s), 0
	for n%1024 == 0 && u < len(units)-1 {
		n /= 1024
		u++
	}
	return strconv.FormatInt(n, 10) + units[u]
}

// MarshalText makes JSON and flags print sizes as people write them.
func (s Size) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText is ParseSize.
func (s *Size) UnmarshalText(b []byte) error {
	n, err := ParseSize(string(b))
	if err != nil {
		return err
	}
	*s = n
	return nil
}
