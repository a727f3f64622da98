package config

import (
	"strconv"
	"strings"
	"time"
)

// Duration is a time.Duration that is written as people write it: 500ms, 15s, 1d.
type Duration time.Duration

// D returns it as the standard library's type.
func (d Duration) D() time.Duration { return time.Duration(d) }

// String is time.Duration's form.
func (d Duration) String() string { return time.Duration(d).String() }

// MarshalText makes JSON print the written form.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText is time.ParseDuration; whole days and weeks may be written as 1d and 2w.
func (d *Duration) UnmarshalText(b []byte) error {
	for unit, n := range map[string]time.Duration{"d": 24 * time.Hour, "w": 7 * 24 * time.Hour} {
		digits, ok := strings.CutSuffix(string(b), unit)
		if k, err := strconv.ParseUint(digits, 10, 16); ok && err == nil && k <= uint64(1<<63-1)/uint64(n) {
			*d = Duration(time.Duration(k) * n)
			return nil
		}
	}
	t, err := time.ParseDuration(string(b))
	*d = Duration(t)
	return err
}
