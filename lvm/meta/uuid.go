package meta

import "softiser/lvm/internal/ondisk"

// UUID identifies a group, a volume or a physical volume: 32 characters, which String
// writes in seven parts with hyphens between, as lvm2 does.
type UUID = ondisk.UUID

// ParseUUID reads a UUID with or without hyphens.
func ParseUUID(s string) (UUID, error) { return ondisk.ParseUUID(s) }

// NewUUID returns a random UUID.
func NewUUID() UUID { return ondisk.NewUUID() }
