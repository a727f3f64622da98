package dhchap

import "slices"

// Config is what both roles need.
type Config struct {
	HostNQN, SubsystemNQN string
	// Host is the secret that the host proves to know.
	Host *Secret
	// Controller is the one that the controller proves to know; nil if it need
	// not, or cannot.
	Controller *Secret
	// Hashes and Groups are those that may be used, the best first; nil: every one.
	Hashes []Hash
	Groups []Group
}

// The controller's preference: what is strong enough and costs least. A group of
// 8192 bits takes both ends a hundred times as long as one of 2048.
var (
	allHashes = []Hash{SHA256, SHA384, SHA512}
	allGroups = []Group{FFDHE2048, FFDHE3072, FFDHE4096, FFDHE6144, FFDHE8192, GroupNone}
)

func (c *Config) hashes() []Hash {
	if c.Hashes != nil {
		return c.Hashes
	}
	return allHashes
}

func (c *Config) groups() []Group {
	if c.Groups != nil {
		return c.Groups
	}
	return allGroups
}

func (c *Config) mayUse(h Hash, g Group) *Error {
	if !slices.Contains(c.hashes(), h) {
		return failf(HashUnusable, "%s was not offered", h)
	}
	if !slices.Contains(c.groups(), g) {
		return failf(GroupUnusable, "%s was not offered", g)
	}
	return nil
}
