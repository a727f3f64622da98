package sizeflag

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/dustin/go-humanize"
)

// Form is what a size looks like, for error messages.
const Form = "bytes, or a number with a spelled-out unit such as 512B, 4KiB, 100MiB, 1.5GiB, 2TiB (powers of 1024) or 4kB, 100MB, 2TB (powers of 1000)"

// Parse reads a size as options, volumes on the command line and configurations take it.
// A unit must leave no doubt between 1000 and 1024, so a bare k, m, g or t is refused:
// tools disagree about it (fio and lvm2 say 1024, go-humanize says 1000). A bare number
// is bytes.
func Parse(s string) (int64, error) {
	t := strings.TrimSpace(s)
	unit := strings.TrimSpace(strings.TrimLeft(t, "0123456789._"))
	number := strings.TrimSpace(strings.TrimSuffix(t, unit))
	if number == "" || strings.Contains(unit, ",") { // 1,5 is 15 to go-humanize
		return 0, fmt.Errorf("%q is not a size; expected %s", s, Form)
	}
	switch strings.ToLower(unit) {
	case "":
		n, err := strconv.ParseInt(strings.ReplaceAll(number, "_", ""), 10, 64)
		if err != nil {
			return 0, fmt.Errorf("%q is not a whole number of bytes; expected %s", s, Form)
		}
		return n, nil
	case "k", "m", "g", "t", "p", "e":
		u := strings.ToUpper(unit)
		si := u + "B"
		if u == "K" {
			si = "kB"
		}
		return 0, fmt.Errorf("the unit of %q is ambiguous; write %s%siB (powers of 1024) or %s%s (powers of 1000)", s, number, u, number, si)
	}
	n, err := humanize.ParseBytes(strings.ReplaceAll(t, "_", ""))
	if err != nil {
		return 0, fmt.Errorf("%q is not a size; expected %s", s, Form)
	}
	if n > math.MaxInt64 {
		return 0, fmt.Errorf("%q is more than %d bytes, the largest size a device can have", s, int64(math.MaxInt64))
	}
	return int64(n), nil
}
