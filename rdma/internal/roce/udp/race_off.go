//go:build !race

package udp

func ioRelease() {}
func ioAcquire() {}
