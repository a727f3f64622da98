package config

import (
	"strconv"

	"softiser/internal/sizeflag"
)

// Size is a number of bytes that people write with a unit.
type Size int64

// SizeForm is the expected form, for error messages.
const SizeForm = sizeflag.Form

// ParseSize reads a size; see [sizeflag.Parse].
func ParseSize(s string) (Size, error) {
	n, err := sizeflag.Parse(s)
	return Size(n), err
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
