package rdmatools

import (
	"fmt"
	"math"
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
	d, err := time.ParseDuration(s)
	if n, bare := strconv.Atoi(s); bare == nil && n <= math.MaxInt64/int(time.Second) {
		d, err = time.Duration(n)*time.Second, nil
	}
	if err != nil || d < 0 {
		return fmt.Errorf("%q is no time to run; write whole seconds, or a time with its unit, such as 5, 1.5s or 500ms", s)
	}
	v.d = d
	return nil
}

// spin is how long a receiver looks before it sleeps. It needs a unit: a bare
// number would be seconds here, and is microseconds elsewhere.
type spin struct{ d time.Duration }

func (v *spin) String() string { return v.d.String() }

// Type names the value in help texts.
func (v *spin) Type() string { return "duration" }

// Set parses s.
func (v *spin) Set(s string) error {
	d, err := time.ParseDuration(s)
	if err != nil || d < 0 || d > time.Second {
		return fmt.Errorf("%q is no time to spin; write 0, or for example 50us, up to 1s", s)
	}
	v.d = d
	return nil
}
