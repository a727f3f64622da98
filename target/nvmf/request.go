package nvmf

import (
	"sync/atomic"
	"time"

	"softiser/blockdev"
	"softiser/internal/nvme"
	"softiser/target/volume"
)

// request is a command in one of its queue's slots:
//
//	begin ──▶ (Admit, worker, host's data …) ──▶ end ──▶ release
//
// The goroutine that carries it out calls end, once. Between end and release the transport
// still uses its memory. request itself has this life cycle and the data transfer with the
// host (hostdata.go); what each kind of command does is in views of it, such as readRequest.
type request struct {
	volume.Op
	q      *queue
	cmd    *nvme.Command
	cqe    nvme.CQE      // of its answer; here, so that it is not allocated
	use    atomic.Uint64 // of cmd; see Cancel
	result uint64
	fused  fusedLink

	segs   [][]byte       // on their way to or from the host
	buf    []byte         // lent by the front end; counted in its staging memory
	params []byte         // what param has brought, in the capsule or in buf
	onData func(*request) // goes on when the host's data is there
	asked  atomic.Int64   // when the host was asked for it, ns since the front end was made; 0: nothing is to come

	ns     *namespace          // in use; nil: none
	row    *ioCommand          // what the command needs of it
	resume func(volumeRequest) // goes on when a wait in the volume is over
	lease  blockdev.Lease
	probe  blockdev.Lease // finds out whether a copy would wait; never kept
	off, n int64          // bytes of the volume
	done   int64          // bytes of n that are finished

	began time.Duration // since the front end was made
}

func (r *request) begin(k *nvme.Command) {
	r.cmd, r.ns, r.row, r.resume, r.onData = k, nil, nil, nil, nil
	r.off, r.n, r.done, r.result = 0, 0, 0, 0
	r.began = time.Since(r.q.fe.epoch)
	if r.fused.other != nil {
		r.fused.clear()
	}
	r.Init(r)
	r.use.Store(k.Use)
}

func (r *request) sqe() *nvme.SQE { return &r.cmd.SQE }

// end answers the command, and with it the other half of a fused operation.
func (r *request) end(s nvme.Status) {
	if r.fused.other != nil {
		pairOf(r).end(r, s)
		return
	}
	r.complete(s)
}

// complete answers this command.
func (r *request) complete(s nvme.Status) {
	s, waits := r.leave(s)
	r.answerWith(s, waits)
}

// leave takes the command out of the task set of its volume. It returns the status to answer
// with, which replaces s if the command has been aborted, and the waits for its end.
func (r *request) leave(s nvme.Status) (nvme.Status, volume.Waits) {
	if !r.InSet() {
		if r.ns != nil {
			r.ns.vol.TraceRefused(&r.Op)
		}
		r.Refused()
		return s, nil
	}
	why, waits := r.ns.vol.Leave(&r.Op)
	if why == volume.NotAborted {
		return s, waits
	}
	r.result = 0
	switch why {
	case volume.AbortedByOther:
		return nvme.AbortedPreempt, waits
	case volume.AbortedByNode:
		return nvme.ANATransition, waits // another path may do
	}
	return nvme.AbortRequested, waits
}

// answerWith queues the completion of a command that has left its volume, and then ends waits.
func (r *request) answerWith(s nvme.Status, waits volume.Waits) {
	if !s.OK() && r.q.proved.Load() {
		r.q.ctrl.log.add(r, s)
	}
	r.q.counters.count(r, s)
	r.observe()
	if r.Traced() {
		r.Tell(outcome(s))
	}
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
	if q.finishes.Load() {
		q.finished()
	}
}

// release ends the use of the command's memory.
func (r *request) release() {
	r.lease.Release()
	r.putBuf()
	clear(r.segs)
	r.segs, r.params = r.segs[:0], nil
	if r.ns != nil {
		r.ns.vol.Unstage(&r.Op)
		r.ns.place.Unuse()
		r.ns = nil
	}
	r.Release()
}

// The methods that follow implement volume.Request.

// Step implements volume.Request.
func (r *request) Step(why volume.Cause) {
	switch why {
	case volume.Abort:
		r.end(nvme.AbortRequested)
	case volume.TimeOut:
		r.end(nvme.CommandInterrupted)
	default:
		r.resume(volumeRequest{r})
	}
}

// Via implements volume.Request.
func (r *request) Via() volume.Port { return r.q }

// Describe implements volume.Request.
func (r *request) Describe(c *volume.TracedCommand) {
	q, op := r.q, r.sqe().Opcode()
	c.Arrived, c.Wire = q.fe.epoch.Add(r.began), q.conn.Hello.String()
	c.Node, c.Unit, c.Initiator = q.ctrl.sub.cfg.NQN, r.ns.id, q.ctrl.host
	c.Session, c.Queue, c.Tag = q.ctrl.id, q.id, uint32(r.sqe().CID())
	if c.Command = op.IOName(); q.id == 0 {
		c.Command = op.AdminName()
	}
	if r.row != nil && r.row.ranged {
		c.LBA, c.Bytes = r.sqe().ReadWrite().SLBA(), r.n
	}
}

// outcome is a status in words.
func outcome(s nvme.Status) string {
	if s.OK() {
		return "success"
	}
	return s.String()
}

// Cancel implements volume.Request. begin resets the abort before it publishes the use,
// so a use that goes with an abort is that of an aborted command.
func (r *request) Cancel(volume.Port) {
	use, first := r.use.Load(), r.fused.firstUse.Load()
	if !r.Aborted() {
		return
	}
	r.q.t.Cancel(use)
	if first != 0 {
		r.q.t.Cancel(first)
	}
	r.q.Push() // sends the answers of the commands that this has ended
}

// stopped reports whether the command, or the operation that it is half of, has been
// aborted.
func (r *request) stopped() bool {
	return r.Aborted() || r.fused.other != nil && r.fused.other.Aborted()
}
