package doctor

import "syscall"

// staUnsync of adjtimex(2): nothing disciplines the clock.
const staUnsync = 0x40

func kernelClock() (unsynchronised bool, err error) {
	var t syscall.Timex
	if _, err := syscall.Adjtimex(&t); err != nil {
		return false, err
	}
	return t.Status&staUnsync != 0, nil
}
