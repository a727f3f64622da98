package cli

import (
	"fmt"
	"math"
	"math/big"
	"strconv"
	"strings"

	"softiser/internal/usage"
	"softiser/lvm/vg"
)

// lvm2's units for input: base two whatever the case; without a unit, MiB.
var inputUnits = map[byte]uint64{'b': 1, 's': 512, 'k': 1 << 10, 'm': 1 << 20, 'g': 1 << 30, 't': 1 << 40, 'p': 1 << 50, 'e': 1 << 60}

// amount is a size option: a number with a sign and perhaps a percentage.
type amount struct {
	sign    byte   // 0, '+' or '-'
	bytes   uint64 // --size
	extents uint64 // --extents
	percent uint64 // of
	of      string // VG PVS FREE ORIGIN
}

// parseSize reads "[+|-]20m", "1.5g", "64".
func parseSize(s string) (amount, error) {
	var a amount
	orig := s
	if s != "" && (s[0] == '+' || s[0] == '-') {
		a.sign, s = s[0], s[1:]
	}
	mult := uint64(1 << 20)
	if s != "" {
		last := s[len(s)-1] | 0x20
		for _, more := range []string{"ib", "i", "b"} { // "MiB" and "MB", of which lvm2 reads the first letter
			if n := len(s) - len(more); n > 0 && strings.EqualFold(s[n:], more) && strings.ContainsRune("kmgtpeKMGTPE", rune(s[n-1])) {
				s, last = s[:n], s[n-1]|0x20
				break
			}
		}
		if m, ok := inputUnits[last]; ok {
			mult, s = m, s[:len(s)-1]
		}
	}
	r, ok := new(big.Rat).SetString(s)
	if !ok || strings.Trim(s, "0123456789.") != "" || r.Sign() < 0 {
		return a, usage.Errorf("size %q is not a number with an optional unit (b s k m g t p e)", orig)
	}
	r.Mul(r, new(big.Rat).SetInt(new(big.Int).SetUint64(mult)))
	n := new(big.Int).Quo(r.Num(), r.Denom())
	if !n.IsInt64() {
		return a, usage.Errorf("size %q is too large", orig)
	}
	a.bytes = n.Uint64()
	if a.bytes == 0 {
		return a, usage.Errorf("size %q may not be zero", orig)
	}
	return a, nil
}

// parseExtents reads "[+|-]100", "50%FREE".
func parseExtents(s string) (amount, error) {
	var a amount
	orig := s
	if s != "" && (s[0] == '+' || s[0] == '-') {
		a.sign, s = s[0], s[1:]
	}
	num, of, pct := strings.Cut(s, "%")
	n, err := strconv.ParseUint(num, 10, 32)
	if err != nil || n == 0 {
		return a, usage.Errorf("extents %q: not a number of extents or a percentage like 50%%FREE", orig)
	}
	if !pct {
		a.extents = n
		return a, nil
	}
	a.percent = n
	switch of = strings.ToUpper(of); {
	case of == "VG" || of == "V":
		a.of = "VG"
	case of == "PVS" || of == "P":
		a.of = "PVS"
	case of == "FREE" || of == "F" || of == "FR":
		a.of = "FREE"
	case of == "ORIGIN" || of == "O":
		a.of = "ORIGIN"
	case of == "LV" || of == "L":
		a.of = "LV"
	default:
		return a, usage.Errorf("extents %q: a percentage is of VG, PVS, FREE, LV or ORIGIN", orig)
	}
	return a, nil
}

// sizing is a pair of -L and -l.
type sizing struct{ size, extents string }

// resolve turns it into extents. base is the present size for + and -, origin
// that of the origin of a snapshot.
func (s sizing) resolve(a *app, x *vg.Group, base, origin uint64) (uint64, error) {
	var m amount
	var err error
	switch {
	case s.size != "" && s.extents != "":
		return 0, usage.Errorf("give --size or --extents, not both")
	case s.size != "":
		m, err = parseSize(s.size)
	case s.extents != "":
		m, err = parseExtents(s.extents)
	default:
		return 0, usage.Errorf("give the size: --size or --extents")
	}
	if err != nil {
		return 0, err
	}
	n := m.extents
	es := x.VG.ExtentSize * 512
	if m.bytes > 0 {
		n = (m.bytes + es - 1) / es
		if m.sign == '-' {
			n = m.bytes / es
		}
		if m.bytes%es != 0 {
			a.say("Rounding size to boundary between physical extents: %s.", display(n*es, 'r', true))
		}
	}
	if m.percent > 0 {
		var total, free uint64
		for _, pv := range x.VG.PVs {
			total += pv.PECount
			if pv.Allocatable() {
				free += vg.Free(x.VG, pv)
			}
		}
		of := map[string]uint64{"VG": total, "PVS": total, "FREE": free, "ORIGIN": origin, "LV": base}[m.of]
		n = of * m.percent / 100
	}
	switch m.sign {
	case '+':
		n += base
	case '-':
		if n >= base {
			return 0, fmt.Errorf("cannot reduce by %d extents: there are only %d", n, base)
		}
		n = base - n
	}
	if n == 0 {
		return 0, fmt.Errorf("the size comes to no extents at all")
	}
	return n, nil
}

// whole leaves out what n extents have beyond base and whole stripes, if they come from a percentage: all
// that is free need not be a multiple. Other sizes are made up to one.
func (s sizing) whole(n, base uint64, stripes int) uint64 {
	if k := uint64(max(stripes, 1)); strings.Contains(s.extents, "%") && n > base && n-base >= k {
		n -= (n - base) % k
	}
	return n
}

// unit is a choice of --units: a letter, perhaps with a number before it.
type unit struct {
	letter byte
	custom uint64
}

func parseUnits(s string) (unit, error) {
	if s == "" {
		return unit{letter: 'r'}, nil
	}
	letter := s[len(s)-1]
	if !strings.ContainsRune("rRhHbBsSkKmMgGtTpPeE", rune(letter)) {
		return unit{}, usage.Errorf("units %q: must end in one of rRhHbBsSkKmMgGtTpPeE", s)
	}
	u := unit{letter: letter}
	if num := s[:len(s)-1]; num != "" {
		f, err := strconv.ParseFloat(num, 64)
		if err != nil || f <= 0 {
			return unit{}, usage.Errorf("units %q: not a number before the unit", s)
		}
		u.custom = uint64(f * float64(outputFactor(letter)))
		if u.custom == 0 {
			return unit{}, usage.Errorf("units %q: too small", s)
		}
	}
	return u, nil
}

// outputFactor: capitals are SI units, small letters base two.
func outputFactor(letter byte) uint64 {
	i := strings.IndexByte("bskmgtpe", letter|0x20)
	if i < 2 {
		return []uint64{1, 512}[max(i, 0)]
	}
	if letter >= 'a' {
		return 1 << (10 * (i - 1))
	}
	return uint64(math.Pow10(3 * (i - 1)))
}

// display writes a size the way lvm2 does.
func display(n uint64, letter byte, suffix bool) string {
	return unit{letter: letter}.format(n, suffix)
}

// format prints n bytes in the unit u as lvm2 does.
func (u unit) format(n uint64, suffix bool) string {
	letter := u.letter
	human := strings.IndexByte("rRhH", letter) >= 0
	if human {
		letters, base := "bkmgtpe", 1024.0
		if letter == 'H' || letter == 'R' {
			letters, base = "BKMGTPE", 1000.0
		}
		f, i := float64(n), 0
		for f >= base && i < len(letters)-1 {
			f, i = f/base, i+1
		}
		letter = letters[i]
		if n == 0 {
			return withSuffix("0", " ", suffix) // as lvm2: zero has no unit
		}
		if i == 0 {
			return withSuffix(strconv.FormatUint(n, 10), "B", suffix)
		}
	}
	if (letter | 0x20) == 'b' {
		return withSuffix(strconv.FormatUint(n, 10), "B", suffix)
	}
	factor := outputFactor(letter)
	if u.custom != 0 {
		factor = u.custom
	}
	if (letter|0x20) == 's' && u.custom == 0 {
		return withSuffix(strconv.FormatUint(n/512, 10), "S", suffix)
	}
	f := float64(n) / float64(factor)
	s := strconv.FormatFloat(f, 'f', 2, 64)
	if n == 0 {
		s = "0"
	}
	if u.letter == 'r' || u.letter == 'R' {
		// '<' says that the number shown is more than the real one.
		if back, _ := strconv.ParseFloat(s, 64); back > f {
			s = "<" + s
		}
	}
	if u.custom != 0 {
		return withSuffix(s, "U", suffix)
	}
	return withSuffix(s, string(letter), suffix)
}

// long is a size with its unit in words, as lvm2's display commands show it: of what
// begins with a small letter four characters, of the rest three.
func (u unit) long(n uint64, suffix bool) string {
	if suffix = suffix || strings.IndexByte("rRhH", u.letter) >= 0; !suffix { // a unit that may be any is told
		return u.format(n, false)
	}
	s := u.format(n, true)
	number, letter := s[:len(s)-1], s[len(s)-1:]
	switch {
	case letter == " ": // zero
		return number + "   "
	case letter == "B" && (u.letter == 'r' || u.letter == 'h'):
		return number + " B  "
	case letter == "B":
		return number + " B "
	case letter == "S":
		return number + " Se"
	case letter == "U":
		return number + " Un"
	case letter == "K":
		return number + " kB"
	case letter >= "a":
		return number + " " + strings.ToUpper(letter) + "iB"
	}
	return number + " " + letter + "B"
}

func withSuffix(s, suffix string, on bool) string {
	if !on {
		return s
	}
	return s + suffix
}
