package config

import "time"

// Duration is a time.Duration that is written as people write it: 500ms, 15s.
type Duration time.Duration

// D returns it as the standard library's type.
func (d Duration) D() time.Duration { return time.Duration(d) }

// String is time.Duration's form.
func (d Duration) String() string { return time.Duration(d).String() }

// MarshalText makes JSON print the written form.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText is time.ParseDuration.
func (d *Duration) UnmarshalText(b []byte) error {
	t, err := time.ParseDuration(string(b))
	*d = Duration(t)
	return err
}
