package cli

import (
	"fmt"
	"path/filepath"
	"strings"

	"softiser/lvm/vg"
)

// named are the objects that a command's arguments name: by name, or @TAG.
type named struct {
	args  []string // none: everything is named
	found map[string]bool
}

// any reports whether one of the names is named.
func (n *named) any(names ...string) bool {
	if len(n.args) == 0 {
		return true
	}
	ok := false
	for _, name := range names {
		for _, arg := range n.args {
			if strings.TrimPrefix(arg, "/dev/") == strings.TrimPrefix(name, "/dev/") || strings.HasPrefix(arg, "@") && arg[1:] == name || samePath(arg, name) {
				n.found[arg], ok = true, true
			}
		}
	}
	return ok
}

// samePath reports whether an argument is the path of a device, whose name is absolute.
func samePath(arg, device string) bool {
	abs, err := filepath.Abs(arg)
	return err == nil && filepath.IsAbs(device) && abs == device
}

// missing is the error for an argument that no object was found for. A tag need not be anywhere.
func (n *named) missing() error {
	for _, arg := range n.args {
		if !n.found[arg] && !strings.HasPrefix(arg, "@") {
			return fmt.Errorf("%s %w", arg, vg.ErrNotFound)
		}
	}
	return nil
}
