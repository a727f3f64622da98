package rdmatools

import (
	"fmt"
	"strconv"
)

// portFlag is a flag value: the number of a port of TCP or of the connection manager.
type portFlag int

// or gives the flag its default.
func (p *portFlag) or(n portFlag) *portFlag {
	*p = n
	return p
}

func (p *portFlag) String() string { return strconv.Itoa(int(*p)) }

// Type names the value in help texts.
func (p *portFlag) Type() string { return "int" }

// Set parses s.
func (p *portFlag) Set(s string) error {
	n, err := strconv.Atoi(s)
	if err != nil || n < 1 || n > 65535 {
		return fmt.Errorf("%q is no port; want 1 to 65535", s)
	}
	*p = portFlag(n)
	return nil
}
