package volume

// RewriteKind is the kind of a rewrite; its text goes into the saved state.
type RewriteKind string

// Kinds.
const (
	Overwrite RewriteKind = "sanitize overwrite"
	Erase     RewriteKind = "sanitize block erase"
	Format    RewriteKind = "format"
)

// running and failed are the gates of the two states.
func (k RewriteKind) running() Gate {
	if k == Format {
		return Formatting
	}
	return Sanitizing
}

func (k RewriteKind) failed() Gate {
	if k == Format {
		return Corrupt
	}
	return SanitizeFailed
}

// Rewrite is what runs, or has failed, as it is saved.
type Rewrite struct {
	Kind    RewriteKind `json:"kind"`
	Passes  int         `json:"passes"`
	Pattern []byte      `json:"pattern,omitempty"` // repeated in each block; none: zeroes
	Invert  bool        `json:"invert,omitempty"`  // every other pass writes the complement, the last one does not
	// Unrestricted says that initiators may leave the failed state (AUSE).
	Unrestricted bool `json:"unrestricted_exit,omitempty"`
	// Secure says that a format is to leave nothing of what the blocks held.
	Secure bool  `json:"secure,omitempty"`
	Failed bool  `json:"failed,omitempty"`
	Pass   int   `json:"pass"`   // what lies before is durable
	Offset int64 `json:"offset"` // bytes
	// Token is also in the mark of the volume, see rewritemark.go; "": it has none.
	Token string `json:"token,omitempty"`
}

// valid reports whether o can have been saved by us.
func (o *Rewrite) valid() bool {
	known := o.Kind == Overwrite || o.Kind == Erase || o.Kind == Format
	return known && o.Passes >= 1 && o.Passes <= 31 && o.Pass >= 0 && o.Pass <= o.Passes && o.Offset >= 0 && len(o.Pattern) <= maxPattern
}

const maxPattern = 64 << 10 // no block is longer
