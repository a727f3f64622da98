//go:build !amd64

package resident

// Fetch does nothing: what it is worth on this architecture has not been measured.
func Fetch(*byte) {}
