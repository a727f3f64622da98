package bench

import (
	"github.com/dustin/go-humanize"

	"softiser/internal/usage"
)

// afford refuses jobs that start together and want more sessions than the process can have descriptors, or more bytes of
// buffers than the machine has. descriptors below 0 and a memory of 0 are not known.
func afford(jobs []*Job, sessions, descriptors int, memory int64) error {
	if descriptors >= 0 && sessions > descriptors {
		return usage.Errorf("numjobs wants %d sessions, which need a descriptor each, and this process may have %d more: raise ulimit -n, or have the clones share sessions (sessions=N)", sessions, descriptors)
	}
	var buffers int64
	for _, j := range jobs {
		if j.Dirs[dirRead] || j.writes() {
			buffers += j.buffer() * int64(j.IODepth)
		}
		if memory > 0 && buffers > memory {
			return usage.Errorf("job %s: with it, numjobs × iodepth × bs come to %s of buffers, and this machine has %s of memory", j.Name, humanize.IBytes(uint64(buffers)), humanize.IBytes(uint64(memory)))
		}
	}
	return nil
}
