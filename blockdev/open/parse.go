package open

import (
	"errors"
	"fmt"
	"strings"

	"softiser/internal/sizeflag"
)

// Parse reads the text form of a volume: a kind or a path, then options
// separated by commas. A path with a comma needs a configuration file.
//
//	spec   = ( "memory" | "null" | ["file:" | "raw:"] path ) *( "," option )
//	option = "size=" size | "block=" bytes | "phys=" bytes
//	       | "ro" | "writethrough" | "prealloc" | "hugepages"
func Parse(text string) (Spec, error) {
	var s Spec
	what, rest, more := strings.Cut(text, ",")
	switch {
	case what == "":
		return s, errors.New("a volume is a path, \"memory\" or \"null\", then options such as size=1GiB")
	case what == "memory":
		s.Type = Memory
	case what == "null":
		s.Type = Null
	default:
		s.Path = what
		if p, ok := strings.CutPrefix(what, "file:"); ok {
			s.Type, s.Path = File, p
		} else if p, ok := strings.CutPrefix(what, "raw:"); ok {
			s.Type, s.Path = Raw, p
		}
		if s.Path == "" {
			return s, fmt.Errorf("volume %q has no path", text)
		}
	}
	for more {
		var opt string
		opt, rest, more = strings.Cut(rest, ",")
		if err := s.option(opt); err != nil {
			return s, fmt.Errorf("volume %q: %w", text, err)
		}
	}
	if err := s.checkFlags(); err != nil {
		return s, fmt.Errorf("volume %q: %w", text, err)
	}
	return s, nil
}

// option takes one of the comma-separated options behind a volume's path.
func (s *Spec) option(opt string) (err error) {
	key, value, has := strings.Cut(opt, "=")
	flag := func(b *bool) error {
		if has {
			return fmt.Errorf("option %q takes no value", key)
		}
		*b = true
		return nil
	}
	number := func(n *int) error {
		size, err := sizeflag.Parse(value)
		if err == nil && (size != 512 && size%4096 != 0 || size == 0 || size > 1<<20) {
			err = fmt.Errorf("a block of %s bytes is not possible; 512 and 4096 are", value)
		}
		*n = int(size)
		if err != nil {
			return fmt.Errorf("option %q: %w", key, err)
		}
		return nil
	}
	switch key {
	case "size":
		if s.Size, err = sizeflag.Parse(value); err == nil && s.Size == 0 {
			err = errors.New("a volume has at least one block")
		}
		if err != nil {
			return fmt.Errorf("option %q: %w", key, err)
		}
		return nil
	case "block":
		return number(&s.BlockSize)
	case "phys":
		return number(&s.PhysBlockSize)
	case "ro":
		return flag(&s.ReadOnly)
	case "writethrough":
		return flag(&s.WriteThrough)
	case "prealloc":
		return flag(&s.Prealloc)
	case "hugepages":
		return flag(&s.HugePages)
	}
	// placement= is about how a LUN serves the volume; iser-target takes it out before.
	return fmt.Errorf("option %q is not known; there are size=, block=, phys=, ro, writethrough, prealloc, hugepages and placement=", opt)
}

// checkFlags refuses combinations that need no look at the file system.
func (s *Spec) checkFlags() error {
	if s.Type == Auto {
		return nil
	}
	return s.Check()
}
