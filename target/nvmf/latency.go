package nvmf

import (
	"sync/atomic"
	"time"

	"softiser/internal/nvme"
	"softiser/target/volume"
)

// latencies are how long Reads and Writes of a namespace took, by the queue they came by:
// queues of a host, which has one for each of its processors, share no cache line. The first
// command makes what it needs.
type latencies [8]atomic.Pointer[volume.Latencies]

func (l *latencies) of(queue uint16) *volume.Latencies {
	p := &l[int(queue)%len(l)]
	x := p.Load()
	if x == nil {
		p.CompareAndSwap(nil, new(volume.Latencies))
		x = p.Load()
	}
	return x
}

func (l *latencies) sum() (read, write volume.Latency) {
	var y volume.Tally
	for i := range l {
		y.Add(l[i].Load())
	}
	return y.Latency()
}

// observe books how long a Read or a Write took from its arrival to its answer, whatever
// that is.
func (r *request) observe() {
	op := r.sqe().Opcode()
	if r.ns == nil || r.q.id == 0 || op != nvme.OpRead && op != nvme.OpWrite {
		return
	}
	r.ns.latency.of(r.q.id).Observe(time.Since(r.q.fe.epoch)-r.began, op == nvme.OpWrite)
}
