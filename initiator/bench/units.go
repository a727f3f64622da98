package bench

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// Size is a number of bytes, or a share of the volume where the option allows
// it ("25%").
type Size struct {
	Bytes   int64
	Percent int // 1…100; 0: Bytes holds
}

// Resolve returns the bytes that s means on a volume of total bytes.
func (s Size) Resolve(total int64) int64 {
	if s.Percent != 0 {
		return total/100*int64(s.Percent) + total%100*int64(s.Percent)/100
	}
	return s.Bytes
}

// suffixShift maps a size suffix to its power of 1024.
var suffixShift = map[string]int{
	"": 0, "b": 0,
	"k": 10, "kb": 10, "kib": 10,
	"m": 20, "mb": 20, "mib": 20,
	"g": 30, "gb": 30, "gib": 30,
	"t": 40, "tb": 40, "tib": 40,
	"p": 50, "pb": 50, "pib": 50,
}

// parseBytes reads a size as fio does, but for kib, mib, … With the default kb_base of 1024
// k, kb and kib are all 1024, where fio has kib as 1000, which nobody means; with kb_base=1000
// k, kb, m, … are powers of ten and kib, mib, … stay powers of two. Letters in any case;
// decimal or 0x hexadecimal.
func parseBytes(s string, kbBase int) (int64, error) {
	t := strings.ToLower(strings.TrimSpace(s))
	if t == "" {
		return 0, errors.New("empty size (expected for example 4k, 1m or 512)")
	}
	end, base := 0, 10
	if strings.HasPrefix(t, "0x") {
		base = 16
		t = t[2:]
		for end < len(t) && strings.IndexByte("0123456789abcdef", t[end]) >= 0 {
			end++
		}
		// "0x10b": fio, too, reads b as a digit.
	} else {
		for end < len(t) && t[end] >= '0' && t[end] <= '9' {
			end++
		}
	}
	n, err := strconv.ParseInt(t[:end], base, 64)
	if err != nil {
		if errors.Is(err, strconv.ErrRange) {
			return 0, fmt.Errorf("size %q is too large", s)
		}
		return 0, fmt.Errorf("size %q does not begin with a number (expected for example 4k, 1m or 512)", s)
	}
	if strings.HasPrefix(t[end:], ".") {
		return 0, fmt.Errorf("size %q is no whole number of its unit: write it in a smaller one", s)
	}
	shift, ok := suffixShift[strings.TrimSpace(t[end:])]
	if !ok {
		return 0, fmt.Errorf("size %q has the unknown unit %q (expected k, m, g, t or p, also as kib or kb)", s, t[end:])
	}
	mul := int64(1) << shift
	if kbBase == 1000 && !strings.HasSuffix(t, "ib") {
		mul = 1
		for ; shift > 0; shift -= 10 {
			mul *= 1000
		}
	}
	if n > math.MaxInt64/mul {
		return 0, fmt.Errorf("size %q is too large", s)
	}
	return n * mul, nil
}

// parseSize reads a size or a percentage.
func parseSize(s string, kbBase int) (Size, error) {
	if p, ok := strings.CutSuffix(strings.TrimSpace(s), "%"); ok {
		n, err := strconv.Atoi(p)
		if err != nil || n < 1 || n > 100 {
			return Size{}, fmt.Errorf("share %q must be 1%% to 100%%", s)
		}
		return Size{Percent: n}, nil
	}
	n, err := parseBytes(s, kbBase)
	return Size{Bytes: n}, err
}

// parseDuration reads a time as fio does: a bare number counts in unit; ms,
// us, s, m, h, d are understood.
func parseDuration(s string, unit time.Duration) (time.Duration, error) {
	t := strings.ToLower(strings.TrimSpace(s))
	end := 0
	for end < len(t) && t[end] >= '0' && t[end] <= '9' {
		end++
	}
	n, err := strconv.ParseInt(t[:end], 10, 64)
	if err != nil {
		return 0, fmt.Errorf("time %q does not begin with a number (expected for example 30, 30s or 2m)", s)
	}
	if strings.HasPrefix(t[end:], ".") {
		return 0, fmt.Errorf("time %q is no whole number of its unit: write it in a smaller one, such as ms", s)
	}
	switch t[end:] {
	case "":
	case "us", "usec":
		unit = time.Microsecond
	case "ms", "msec":
		unit = time.Millisecond
	case "s", "sec":
		unit = time.Second
	case "m", "min":
		unit = time.Minute
	case "h":
		unit = time.Hour
	case "d":
		unit = 24 * time.Hour
	default:
		return 0, fmt.Errorf("time %q has the unknown unit %q (expected us, ms, s, m, h or d)", s, t[end:])
	}
	if n > int64(math.MaxInt64/unit) {
		return 0, fmt.Errorf("time %q is too long", s)
	}
	return time.Duration(n) * unit, nil
}

// num2str prints n in at most width characters and a unit, as fio's reports
// do: a number that fits stays whole (3876KiB), a larger one goes to the next
// unit and fills the width with decimals (15.6MiB). Base 1024 gives KiB, MiB…,
// base 1000 gives kB, MB….
func num2str(n float64, width int, base float64, unit string) string {
	limit := math.Pow10(width)
	i := 0
	for ; math.Round(n) >= limit && i < 6; i++ {
		n /= base
	}
	prefix := ""
	if i > 0 {
		if prefix = "kMGTPE"[i-1 : i]; base == 1024 {
			if prefix = "KMGTPE"[i-1 : i]; unit != "" {
				prefix += "i"
			}
		}
	}
	decimals := 0
	if i > 0 {
		digits := len(strconv.FormatFloat(math.Trunc(n), 'f', 0, 64))
		decimals = max(0, width-digits-1)
	}
	return strconv.FormatFloat(n, 'f', decimals, 64) + prefix + unit
}

func binRate(v float64) string { return num2str(v, 4, 1024, "B/s") }
func decRate(v float64) string { return num2str(v, 4, 1000, "B/s") }
