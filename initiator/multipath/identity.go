package multipath

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"softiser/initiator/blockio"
)

// admit checks that vol is the volume, or makes it that if it is the first.
func (v *Volume) admit(vol blockio.Path) error {
	names, info := vol.Names(), vol.Info()
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.names == nil {
		if len(names) == 0 && len(v.paths) > 1 {
			return fmt.Errorf("%w: the target gives it no world-wide name by which another path could be compared", errOther)
		}
		v.names, v.block = slices.Clone(names), info.BlockSize
		v.info.Store(&info)
		return nil
	}
	if !SameNames(v.names, names) {
		return fmt.Errorf("%w: it is %s, the volume is %s", errOther, strings.Join(names, ", "), strings.Join(v.names, ", "))
	}
	if info.BlockSize != v.block {
		return fmt.Errorf("%w: it has blocks of %d bytes, the volume has %d", errOther, info.BlockSize, v.block)
	}
	if was := v.info.Load(); info.Size != was.Size {
		return fmt.Errorf("%w: it has %d bytes, the volume has %d", errOther, info.Size, was.Size)
	}
	return nil
}

// SameNames reports whether two lists of names belong to one volume: they have a name in
// common, and none of a kind of which the other has only others.
func SameNames(a, b []string) bool {
	common := false
	for _, n := range a {
		kind, _, _ := strings.Cut(n, ".")
		of := func(m string) bool { return strings.HasPrefix(m, kind+".") }
		switch {
		case slices.Contains(b, n):
			common = true
		case slices.ContainsFunc(b, of) && !slices.ContainsFunc(a, func(m string) bool { return of(m) && slices.Contains(b, m) }):
			return false
		}
	}
	return common
}

// errOther refuses a path that leads elsewhere.
var errOther = errors.New("it is not the same volume")
