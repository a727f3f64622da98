package dhchap

import (
	"fmt"
	"slices"
	"strings"
)

// Config is what both roles need.
type Config struct {
	HostNQN, SubsystemNQN string
	// Host is the secret that the host proves to know.
	Host *Secret
	// Controller is the one that the controller proves to know; nil if it need
	// not, or cannot.
	Controller *Secret
	Allowed
}

// Allowed are the hashes and the groups that may be used, the best first; nil: every one.
type Allowed struct {
	Hashes []Hash
	Groups []Group
}

// ParseAllowed reads the names of hashes and groups, as Linux and SPDK write them: sha256,
// sha384, sha512; null, ffdhe2048, ffdhe3072, ffdhe4096, ffdhe6144, ffdhe8192. The names of
// what may be said are in the errors.
func ParseAllowed(hashes, groups []string) (a Allowed, err error) {
	if a.Hashes, err = parseNames(hashes, allHashes, "hash"); err != nil {
		return Allowed{}, err
	}
	if a.Groups, err = parseNames(groups, append([]Group{GroupNone}, allGroups[:len(allGroups)-1]...), "Diffie-Hellman group"); err != nil {
		return Allowed{}, err
	}
	return a, nil
}

// Equal reports whether both allow the same, in the same order.
func (a Allowed) Equal(b Allowed) bool {
	return slices.Equal(a.Hashes, b.Hashes) && slices.Equal(a.Groups, b.Groups)
}

// parseNames returns which of known are named; nil: none.
func parseNames[T interface{ Name() string }](names []string, known []T, what string) (l []T, err error) {
	for i, n := range names {
		k := slices.IndexFunc(known, func(t T) bool { return t.Name() == n })
		if k < 0 {
			all := make([]string, len(known))
			for j, t := range known {
				all[j] = t.Name()
			}
			return nil, fmt.Errorf("DH-HMAC-CHAP: %q is no %s; there are %s", n, what, strings.Join(all, ", "))
		}
		if slices.Contains(names[:i], n) {
			return nil, fmt.Errorf("DH-HMAC-CHAP: the %s %s is named twice", what, n)
		}
		l = append(l, known[k])
	}
	return l, nil
}

// The controller's preference: what is strong enough and costs least. A group of
// 8192 bits takes both ends a hundred times as long as one of 2048.
var (
	allHashes = []Hash{SHA256, SHA384, SHA512}
	allGroups = []Group{FFDHE2048, FFDHE3072, FFDHE4096, FFDHE6144, FFDHE8192, GroupNone}
)

func (a *Allowed) hashes() []Hash {
	if a.Hashes != nil {
		return a.Hashes
	}
	return allHashes
}

func (a *Allowed) groups() []Group {
	if a.Groups != nil {
		return a.Groups
	}
	return allGroups
}

func (a *Allowed) mayUse(h Hash, g Group) *Error {
	if !slices.Contains(a.hashes(), h) {
		return failf(HashUnusable, "%s was not offered", h)
	}
	if !slices.Contains(a.groups(), g) {
		return failf(GroupUnusable, "%s was not offered", g)
	}
	return nil
}
