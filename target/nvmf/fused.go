package nvmf

import (
	"bytes"
	"sync/atomic"

	"softiser/internal/nvme"
	"softiser/target/volume"
)

// The fused operation Compare and Write (NVM Express 1.4 §6.2): two commands that follow each
// other in their queue are executed as one atomic operation.
//
//	Compare ──▶ q.half ──Write──▶ both checked ──▶ data of both ──▶ blocks held: compared, written
//	               │ anything else
//	               ▼
//	        0Ah, the other half is missing
//
// The Write is in the task set, for both, as COMPARE AND WRITE of SCSI is: it collects its
// data without keeping anybody waiting, then has its blocks exclusively. Whichever half
// fails says why; the other one ends with 09h. What can be known from the commands alone is
// refused on arrival, before the next command is looked at.

// maxFusedBytes bounds each half, as both are in memory at once.
const maxFusedBytes = volume.StageBytes / 2

// fusedLink ties a request to the other half of its operation.
type fusedLink struct {
	other    *request      // nil: none
	second   bool          // other is the first half
	firstCID uint16        // its identifier
	firstUse atomic.Uint64 // the use of its cmd
}

func (l *fusedLink) clear() {
	l.other, l.second = nil, false
	l.firstUse.Store(0)
}

func (l *fusedLink) precedes(second *request) { l.other = second }

func (l *fusedLink) follows(first *request) {
	l.other, l.second, l.firstCID = first, true, first.sqe().CID()
	l.firstUse.Store(first.use.Load())
}

// takeHalf takes the first half that waits for the next command; nil: none does.
func (q *queue) takeHalf() *request {
	half := q.half
	q.half = nil
	return half
}

// fuse deals with a command of a fused operation; half is the one before it, if that is a
// first half. It reports false for a command that is none.
func (q *queue) fuse(half, r *request) bool {
	f := r.sqe().Fuse()
	if half != nil && f != nvme.FuseSecond {
		half.end(nvme.AbortedMissingFused)
		half = nil
	}
	op := r.sqe().Opcode()
	switch f {
	case nvme.FuseNone:
		return false
	case nvme.FuseFirst:
		if op != nvme.OpCompare {
			r.end(nvme.InvalidOpcode | nvme.DoNotRetry)
			return true
		}
		q.half = r
	case nvme.FuseSecond:
		switch {
		case half == nil:
			r.end(nvme.AbortedMissingFused)
		case op != nvme.OpWrite:
			half.end(nvme.AbortedMissingFused)
			r.end(nvme.InvalidOpcode | nvme.DoNotRetry)
		default:
			half.fused.precedes(r)
			r.fused.follows(half)
			fusedRequest{volumeRequest{half}, volumeRequest{r}}.arrive()
		}
	default:
		r.end(nvme.InvalidField | nvme.DoNotRetry)
	}
	return true
}

// fusedRequest is a pair of requests that is one operation.
type fusedRequest struct{ compare, write volumeRequest }

// pairOf returns the pair that a request is half of.
func pairOf(r *request) fusedRequest {
	other := volumeRequest{r.fused.other}
	if r.fused.second {
		return fusedRequest{other, volumeRequest{r}}
	}
	return fusedRequest{volumeRequest{r}, other}
}

// end answers both halves, the first one first: s is the status of r, which is one of them.
func (p fusedRequest) end(r *request, s nvme.Status) {
	first, second := s, s
	switch {
	case s == nvme.Success:
	case r == p.compare.request:
		second = nvme.AbortedFailedFused
	default:
		first = nvme.AbortedFailedFused
	}
	second, waits := p.write.leave(second)
	if first.OK() && !second.OK() { // an abort has come when it was carried out
		first = nvme.AbortedFailedFused
	}
	p.compare.complete(first)
	p.write.answerWith(second, waits)
}

var (
	fusedCompare = ioCommand{access: volume.Reads, hold: volume.HoldStaged, ranged: true, data: true}
	fusedWrite   = ioCommand{access: volume.Writes, hold: volume.HoldStaged, ranged: true, data: true, run: func(r volumeRequest) { pairOf(r.request).collect() }}
)

// arrive checks both halves and brings the operation into its volume's task set.
func (p fusedRequest) arrive() {
	a, b := p.compare.sqe(), p.write.sqe()
	if a.NSID() != b.NSID() || a.ReadWrite().SLBA() != b.ReadWrite().SLBA() || a.ReadWrite().Blocks() != b.ReadWrite().Blocks() {
		p.compare.end(nvme.InvalidField | nvme.DoNotRetry)
		return
	}
	for _, h := range []struct {
		r   volumeRequest
		row *ioCommand
	}{{p.compare, &fusedCompare}, {p.write, &fusedWrite}} {
		if s := h.r.check(h.row); s != nvme.Success {
			h.r.end(s)
			return
		}
	}
	if p.write.n > maxFusedBytes {
		p.compare.end(nvme.AtomicWriteUnit | nvme.DoNotRetry)
		return
	}
	p.write.admit()
}

// collect brings the data of both halves.
func (p fusedRequest) collect() {
	p.compare.param(int(p.compare.n), func(r *request) {
		w := r.fused.other
		w.param(int(w.n), func(w *request) {
			w.resume = func(w volumeRequest) { pairOf(w.request).compareAndWrite() }
			w.ns.vol.Exclusively(&w.Op)
		})
	})
}

// compareAndWrite runs with the blocks held.
func (p fusedRequest) compareAndWrite() {
	c, w := p.compare, p.write
	if s := w.forbiddenStill(); s != nvme.Success {
		w.end(s)
		return
	}
	bufs := &w.q.fe.bufs
	have := bufs.Get(int(c.n))
	defer bufs.Put(have)
	if _, err := w.ns.vol.ReadAt(have[:c.n], c.off); err != nil {
		c.fail(err, volume.Reading)
		return
	}
	if !bytes.Equal(have[:c.n], c.params) {
		c.end(nvme.CompareFailure | nvme.DoNotRetry)
		return
	}
	writeRequest{w}.storeParams()
}
