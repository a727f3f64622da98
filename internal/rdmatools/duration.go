package rdmatools

import (
	"strconv"
	"time"
)

// rdmaDuration is a flag value: a Go duration, or a plain number of seconds as
// perftest's -D takes it.
type rdmaDuration struct{ d time.Duration }

func (v *rdmaDuration) String() string { return v.d.String() }

// Type names the value in help texts.
func (v *rdmaDuration) Type() string { return "duration" }

// Set parses s.
func (v *rdmaDuration) Set(s string) error {
	if n, err := strconv.Atoi(s); err == nil {
		v.d = time.Duration(n) * time.Second
		return nil
	}
	d, err := time.ParseDuration(s)
	v.d = d
	return err
}
