//go:build !amd64

package backing

// prefetch does nothing: what it is worth on this architecture has not been measured.
func prefetch(*byte) {}
