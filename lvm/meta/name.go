package meta

import (
	"fmt"
	"strings"
)

// CheckName says why a name is not one that lvm2 accepts.
func CheckName(name string) error {
	if name == "" || len(name) > 127 {
		return fmt.Errorf("name %q: must have 1 to 127 characters", name)
	}
	if name == "." || name == ".." || name[0] == '-' {
		return fmt.Errorf("name %q: must not be . or .. or begin with a hyphen", name)
	}
	for i := 0; i < len(name); i++ {
		if !strings.ContainsRune("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+_.-", rune(name[i])) {
			return fmt.Errorf("name %q: only letters, digits and + _ . - are allowed", name)
		}
	}
	return nil
}
