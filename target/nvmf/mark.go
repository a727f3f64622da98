package nvmf

import (
	"errors"
	"slices"

	"softiser/blockdev"
	"softiser/internal/nvme"
	"softiser/target/volume"
)

// anyMarks reports whether blocks of one of the namespaces can be marked.
func (s *subsystem) anyMarks() bool {
	return slices.ContainsFunc(s.list(), func(n *namespace) bool { return n.vol.MayMark() })
}

// markRequest is a request with a Write Uncorrectable: reads of its blocks fail, on every
// wire and after a restart, until they are written.
type markRequest struct{ volumeRequest }

// start waits until nobody else has the blocks.
func (r markRequest) start() {
	if !r.ns.vol.MayMark() {
		r.end(nvme.InvalidOpcode | nvme.DoNotRetry)
		return
	}
	r.resume = func(r volumeRequest) { markRequest{r}.now() }
	r.ns.vol.Exclusively(&r.Op)
}

// now runs on a worker, with the blocks held.
func (r markRequest) now() {
	if s := r.forbidden(); s != nvme.Success { // the reservation may have changed while it waited for the blocks
		r.end(s)
		return
	}
	switch err := r.ns.vol.MarkBad(r.off, r.n); {
	case err == nil:
		r.end(nvme.Success)
	case errors.Is(err, volume.ErrTooManyMarks):
		r.end(nvme.CapacityExceeded | nvme.DoNotRetry)
	case errors.Is(err, blockdev.ErrOutOfRange): // resized since the check
		r.end(nvme.LBAOutOfRange | nvme.DoNotRetry)
	default: // it could not be saved
		r.end(r.ns.tell(err, nvme.InternalError))
	}
}
