package nvmf

import (
	"softiser/internal/nvme"
	"softiser/target/volume"
)

// flushRequest is a request with a Flush.
type flushRequest struct{ volumeRequest }

// start makes what was written durable.
func (r flushRequest) start() {
	r.toWorker(func(r volumeRequest) {
		if err := r.ns.dev.Flush(); err != nil {
			r.fail(err, volume.Writing)
			return
		}
		r.Stamp(volume.Committed)
		r.end(nvme.Success)
	})
}

// all is Flush for every namespace, each of which is asked as for a Flush of its own; those that
// refuse do not keep the others from it. It belongs to none, so it has a goroutine of
// its own; no more of them than commands can be there.
func (r flushRequest) all() {
	r.row = &ioTable[nvme.OpFlush]
	l := r.q.ctrl.sub.list()
	go func() {
		s := nvme.Success
		for _, n := range l {
			if !n.place.Use() {
				continue
			}
			if st := r.forbiddenBy(n); st != nvme.Success {
				s = st
			} else if err := n.dev.Flush(); err != nil {
				n.vol.Counters.CountError(err, volume.Writing)
				s = n.tell(err, errStatus(err, volume.Writing))
			}
			n.place.Unuse()
		}
		q := r.q
		r.end(s)
		q.Push()
	}()
}
