//go:build !race

package sock

func ioRelease() {}
func ioAcquire() {}
