package config

import "softiser/internal/sizeflag"

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
func (s Size) String() string { return sizeflag.Text(int64(s)) }

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
