// Package sizeflag is a command-line option that takes a number of bytes as
// people write it: 4096, 4KiB, 1MiB, 4kB, 1MB.
package sizeflag

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/dustin/go-humanize"
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

// Set reads a size. Bare k, m, g and t are refused: some programs mean 1000 by
// them and some 1024.
func (v *Value) Set(s string) error {
	s = strings.TrimSpace(s)
	if n, err := strconv.ParseInt(s, 10, 64); err == nil && n >= 0 {
		*v = Value(n)
		return nil
	}
	if s != "" && strings.ContainsRune("kKmMgGtTpP", rune(s[len(s)-1])) {
		num, unit := s[:len(s)-1], strings.ToUpper(s[len(s)-1:])
		return fmt.Errorf("%q can mean two sizes: write %s%siB (1024) or %s%sB (1000)", s, num, unit, num, strings.Replace(unit, "K", "k", 1))
	}
	n, err := humanize.ParseBytes(s)
	if err != nil || n > math.MaxInt64 {
		return fmt.Errorf("%q is not a size: write it like 4096, 4KiB, 1MiB or 2GB", s)
	}
	*v = Value(n)
	return nil
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
