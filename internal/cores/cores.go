// Package cores tells how many processors this process has for its work.
package cores

import "runtime"

var count = runtime.GOMAXPROCS(0)

// Count is how many processors Go's scheduler had at the start: those of the machine that the
// affinity mask and the cgroup's quota leave, or as many as GOMAXPROCS in the environment says. A
// target may raise the scheduler's later, for workers that wait in system calls; there are no
// more cores by that.
func Count() int { return count }
