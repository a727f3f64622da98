package main

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/dustin/go-humanize"
)

// size is a number of bytes as people write it; it is a pflag.Value. -1 stands
// for "not given".
type size int64

func (s *size) String() string {
	if *s < 0 {
		return ""
	}
	return humanize.IBytes(uint64(*s))
}

func (s *size) Type() string { return "size" }

// Set reads 4096, 4KiB, 1MiB, 4kB, 1MB … Bare k, m, g and t are refused: some
// programs mean 1000 by them and some 1024.
func (s *size) Set(v string) error {
	v = strings.TrimSpace(v)
	if n, err := strconv.ParseInt(v, 10, 64); err == nil && n >= 0 {
		*s = size(n)
		return nil
	}
	if v != "" && strings.ContainsRune("kKmMgGtTpP", rune(v[len(v)-1])) {
		num, unit := v[:len(v)-1], strings.ToUpper(v[len(v)-1:])
		return fmt.Errorf("%q can mean two sizes: write %s%siB (1024) or %s%sB (1000)", v, num, unit, num, strings.Replace(unit, "K", "k", 1))
	}
	n, err := humanize.ParseBytes(v)
	if err != nil || n > 1<<63-1 {
		return fmt.Errorf("%q is not a size: write it like 4096, 4KiB, 1MiB or 2GB", v)
	}
	*s = size(n)
	return nil
}
