// Package sizeflag reads a number of bytes as people write it, 4096, 4KiB, 1MiB, 4kB
// or 1MB: the same in command-line options, --export and configurations.
package sizeflag

import (
	"strconv"
	"strings"
)

// Value is a number of bytes; it is a pflag.Value. A negative one stands for "not
// given".
type Value int64

// String is what --help shows as the default: the shortest exact form.
func (v *Value) String() string {
	n, u := int64(*v), 0
	if n < 0 {
		return ""
	}
	units := []string{"", "KiB", "MiB", "GiB", "TiB", "PiB"}
	for n > 0 && n%1024 == 0 && u < len(units)-1 {
		n, u = n/1024, u+1
	}
	return strconv.FormatInt(n, 10) + units[u]
}

// Type names the value in help texts.
func (v *Value) Type() string { return "size" }

// Set is Parse.
func (v *Value) Set(s string) error {
	n, err := Parse(s)
	if err == nil {
		*v = Value(n)
	}
	return err
}

// Binary is a Value for tools whose originals take k, m and g as powers of 1024.
type Binary struct{ Value }

// Set also takes 4k, 1m and 2g.
func (b *Binary) Set(s string) error {
	if t := strings.TrimSpace(s); t != "" && strings.ContainsRune("kKmMgG", rune(t[len(t)-1])) {
		s = t[:len(t)-1] + strings.ToUpper(t[len(t)-1:]) + "iB"
	}
	return b.Value.Set(s)
}
