package sockio

import "softiser/internal/race"

// passed orders what was done before a write against what is done after a read, as package
// syscall does: the ends of a connection may live in one process, as in tests.
var passed race.Point
