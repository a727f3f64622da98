package nvmf

import (
	"errors"
	"sync/atomic"

	"softiser/blockdev"
	"softiser/internal/nvme"
	"softiser/target/volume"
)

// request is a command in one of its queue's slots:
//
//	begin ──▶ (Admit, worker, host's data …) ──▶ end ──▶ release
//
// Whoever carries it out ends it once. Between end and release its memory is on its way
// to the host.
type request struct {
	volume.Op
	q   *queue
	cmd *nvme.Command
	cqe nvme.CQE      // of its answer; here, so that it is not allocated
	use atomic.Uint64 // of cmd; see Cancel

	fused    *request      // the other half; nil: none
	second   bool          // fused is the first half
	firstCID uint16        // its identifier
	fusedUse atomic.Uint64 // the use of its cmd

	ns   *namespace // in use; nil: none
	row  *ioCommand
	job  func(*request) // what goes on when a wait is over
	then func(*request) // what goes on when the host's data is there

	lease  blockdev.Lease
	probe  blockdev.Lease // finds out whether a copy would wait; never kept
	segs   [][]byte
	buf    []byte // lent by the front end; counted in its staging memory
	off, n int64  // bytes of the volume
	done   int64  // bytes of n that are finished
	result uint64
}

func (r *request) begin(k *nvme.Command) {
	r.cmd, r.ns, r.row, r.job, r.then = k, nil, nil, nil, nil
	r.off, r.n, r.done, r.result = 0, 0, 0, 0
	if r.fused != nil {
		r.fused, r.second = nil, false
		r.fusedUse.Store(0)
	}
	r.Init(r)
	r.use.Store(k.Use)
}

func (r *request) sqe() *nvme.SQE { return &r.cmd.SQE }

// end answers the command, and with it the other half of a fused operation.
func (r *request) end(s nvme.Status) {
	if r.fused != nil {
		pairOf(r).end(r, s)
		return
	}
	r.complete(s)
}

// complete answers this command.
func (r *request) complete(s nvme.Status) {
	var waits volume.Waits
	if r.InSet() {
		why, w := r.ns.vol.Leave(&r.Op)
		if waits = w; why != volume.NotAborted {
			s = nvme.AbortRequested
			if why == volume.AbortedByOther {
				s = nvme.AbortedPreempt
			}
			r.result = 0
		}
	} else {
		r.Refused()
	}
	if !s.OK() && r.q.proved.Load() {
		r.q.ctrl.log.add(r, s)
	}
	r.q.counters.count(r, s)
	e := &r.cqe
	*e = nvme.CQE{}
	e.SetResult(r.result)
	e.SetCID(r.sqe().CID())
	e.SetSQID(r.q.id)
	e.SetSQHead(r.q.head())
	e.SetStatus(s)
	q := r.q
	q.t.Respond(r.cmd, e)
	q.open.Add(-1)
	waits.Done()
	if q.isFinishing() {
		q.finished()
	}
}

func (q *queue) isFinishing() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.finishes
}

// release ends the use of the command's memory.
func (r *request) release() {
	r.lease.Release()
	r.putBuf()
	clear(r.segs)
	r.segs = r.segs[:0]
	if r.ns != nil {
		r.ns.place.Unuse()
		r.ns = nil
	}
	r.Release()
}

// Release of volume.Op, and Step, Via and Cancel below, are what the task set sees.

// Step implements volume.Request.
func (r *request) Step(why volume.Cause) {
	switch why {
	case volume.Abort:
		r.end(nvme.AbortRequested)
	case volume.TimeOut:
		r.end(nvme.CommandInterrupted)
	default:
		r.job(r)
	}
}

// Via implements volume.Request.
func (r *request) Via() volume.Port { return r.q }

// Cancel implements volume.Request. begin resets the abort before it publishes the use,
// so a use that goes with an abort is that of an aborted command.
func (r *request) Cancel(volume.Port) {
	use, first := r.use.Load(), r.fusedUse.Load()
	if !r.Aborted() {
		return
	}
	r.q.t.Cancel(use)
	if first != 0 {
		r.q.t.Cancel(first)
	}
	r.q.Push() // the answer to what has ended by that
}

// stopped reports whether the command, or the operation that it is half of, has been
// aborted.
func (r *request) stopped() bool { return r.Aborted() || r.fused != nil && r.fused.Aborted() }

// toWorker goes on with job on a worker of the volume.
func (r *request) toWorker(job func(*request)) {
	r.job = job
	r.ns.vol.ToWorker(&r.Op)
}

// hostData returns how many bytes the command's SGL has for or from the host.
func (r *request) hostData() (uint32, nvme.Status) {
	d := r.sqe().SGL()
	n := d.Length()
	switch k := d.Kind(); {
	case r.q.t.NamesHostMemory(k):
		return n, nvme.Success
	case k != nvme.SGLInCapsule:
		return 0, nvme.SGLTypeInvalid | nvme.DoNotRetry
	case n == 0:
		return 0, nvme.Success
	case !r.sqe().FromHost():
		return 0, nvme.InvalidField | nvme.DoNotRetry
	case d.Address() != 0: // the capsule has one piece of data
		return 0, nvme.SGLOffsetInvalid | nvme.DoNotRetry
	case int(n) != len(r.cmd.Data):
		return 0, nvme.SGLDataLengthInvalid | nvme.DoNotRetry
	}
	return n, nvme.Success
}

// inCapsule reports whether the host's data came with the command.
func (r *request) inCapsule() bool {
	return len(r.cmd.Data) > 0 && r.sqe().SGL().Kind() == nvme.SGLInCapsule
}

// fetch asks for the host's data from offset off into r.segs, and goes on with then.
func (r *request) fetch(off uint32, then func(*request)) {
	r.then = then
	use, other := r.use.Load(), r.fused
	if err := r.q.t.GetData(r.cmd, off, r.segs); err != nil {
		r.arrived(err)
		return
	}
	// An abort that came before GetData found nothing to cancel. From here on the
	// command may have ended; cancelling its use is a no-op then.
	if r.Aborted() || other != nil && other.Aborted() {
		r.q.t.Cancel(use)
	}
}

// arrived goes on with a command whose data has come, or will not.
func (r *request) arrived(err error) {
	switch {
	case r.stopped():
		r.end(nvme.AbortRequested)
	case errors.Is(err, nvme.ErrDataDigest):
		r.end(nvme.TransientTransport)
	case err != nil:
		r.end(nvme.DataTransferError)
	default:
		r.then(r)
	}
}

// param brings n bytes of parameters and goes on with then, which finds them in the
// slice that params returns.
func (r *request) param(n int, then func(*request)) {
	have, s := r.hostData()
	if s == nvme.Success && int64(have) < int64(n) {
		s = nvme.SGLDataLengthInvalid | nvme.DoNotRetry
	}
	if s != nvme.Success {
		r.end(s)
		return
	}
	r.n = int64(n)
	if r.inCapsule() {
		then(r)
		return
	}
	if !r.room(int(have)) {
		return
	}
	r.segs = append(r.segs[:0], r.buf)
	r.fetch(0, then)
}

// params returns what param has brought.
func (r *request) params() []byte {
	if r.inCapsule() {
		return r.cmd.Data[:r.n]
	}
	return r.buf[:r.n]
}

// getBuf gives n bytes, whatever they hold, to the command, counted against the memory that hosts can make
// the target hold.
func (r *request) getBuf(n int) bool {
	fe := r.q.fe
	if !r.q.memory.Reserve(volume.BufferSize(n)) {
		return false
	}
	r.buf = fe.bufs.Get(n)[:n]
	return true
}

func (r *request) putBuf() {
	if r.buf == nil {
		return
	}
	fe := r.q.fe
	r.q.memory.Unreserve(cap(r.buf))
	fe.bufs.Put(r.buf)
	r.buf = nil
}

// room makes room for n bytes of parameters or of an answer; if there is none it has ended the command.
func (r *request) room(n int) bool {
	if !r.getBuf(n) {
		r.end(nvme.CommandInterrupted)
		return false
	}
	return true
}

// answer ends a command that has room with data, and zeroes behind it.
func (r *request) answer(data []byte) {
	clear(r.buf[copy(r.buf, data):])
	r.reply(r.buf)
}

// reply ends the command with data, of which the host may have room for less.
func (r *request) reply(data []byte) {
	have, s := r.hostData()
	if s != nvme.Success {
		r.end(s)
		return
	}
	if have == 0 {
		r.end(nvme.SGLDataLengthInvalid | nvme.DoNotRetry)
		return
	}
	r.segs = append(r.segs[:0], data[:min(len(data), int(have))])
	r.q.t.PutData(r.cmd, 0, r.segs, true)
	r.end(nvme.Success)
}
