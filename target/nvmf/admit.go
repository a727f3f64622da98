package nvmf

import (
	"errors"

	"softiser/blockdev"
	"softiser/internal/nvme"
	"softiser/target/volume"
)

// ioCommand is what a kind of command needs of its volume: a row of ioTable, or that of
// an admin command.
type ioCommand struct {
	access volume.Access
	hold   volume.Hold
	ranged bool        // names a range of blocks
	data   bool        // the range's data goes with it
	heals  volume.Gate // conditions that do not refuse the command, as it ends them
	run    func(volumeRequest)
}

// gates are those that refuse the command.
func (c *ioCommand) gates(op nvme.Opcode) volume.Gate {
	switch {
	case op == nvme.OpFlush || c.access == volume.Reads:
		return volume.MediumGates &^ c.heals
	case c.access == volume.Writes:
		return volume.WriteGates &^ c.heals
	}
	return volume.Closed
}

// volumeRequest is a request whose command is for a volume:
//
//	check ──▶ admit ──▶ (Admit) ──▶ enable ──▶ pace ──▶ (Throttle) ──▶ row.run
type volumeRequest struct{ *request }

// check looks up the namespace of the command and takes it into use (release ends that), and
// returns why the command is refused, Success if it is not.
func (r volumeRequest) check(row *ioCommand) nvme.Status {
	c := r.q.ctrl
	r.row = row
	n := c.sub.namespace(r.sqe().NSID())
	if n == nil || !n.place.Use() {
		return nvme.InvalidNamespace | nvme.DoNotRetry
	}
	r.ns = n
	if s := r.forbidden(); s != nvme.Success || !row.ranged {
		return s
	}
	return r.decode()
}

// admit brings a command that has been checked into its volume's task set.
func (r volumeRequest) admit() {
	lo, hi := uint64(0), ^uint64(0)
	if r.row.ranged {
		shift := r.ns.vol.Geo().Shift
		lo, hi = uint64(r.off)>>shift, uint64(r.off+r.n)>>shift
	}
	r.Cover(lo, hi, r.row.hold)
	r.Client, r.Order, r.Bytes = &r.q.ctrl.client, volume.Simple, r.n
	r.resume = volumeRequest.enable
	if r.ns.vol.Admit(&r.Op) {
		r.enable()
	}
}

// decode checks the range of blocks and the length of its data.
func (r volumeRequest) decode() nvme.Status {
	c := r.sqe().ReadWrite()
	g := r.ns.vol.Geo()
	if c.ProtectionInfo() != 0 {
		return nvme.InvalidField | nvme.DoNotRetry
	}
	if !c.Within(g.Blocks) {
		return nvme.LBAOutOfRange | nvme.DoNotRetry
	}
	r.off, r.n = int64(c.SLBA())<<g.Shift, int64(c.Blocks())<<g.Shift
	if !r.row.data {
		return nvme.Success
	}
	if r.n > maxTransfer {
		return nvme.InvalidField | nvme.DoNotRetry
	}
	have, s := r.hostData()
	if s == nvme.Success && int64(have) != r.n {
		s = nvme.SGLDataLengthInvalid | nvme.DoNotRetry
	}
	return s
}

// forbidden says what keeps the command from its volume now.
func (r volumeRequest) forbidden() nvme.Status { return r.forbiddenBy(r.ns) }

// forbiddenStill is forbidden for a command that has waited for its host's data and has just got
// its blocks: meanwhile a rewrite of the medium may have begun, write protection may have been
// set, and another atomic write may have been left neither done nor undone. It may wait for storage.
func (r volumeRequest) forbiddenStill() nvme.Status {
	if s := r.forbidden(); s != nvme.Success {
		return s
	}
	if err := r.ns.vol.BeforeChange(blockdev.Wait, r.Stop()); err != nil {
		return r.ns.tell(err, nvme.InternalError)
	}
	return nvme.Success
}

// forbiddenBy says what would keep the command from a namespace now. cut is checked here because
// a command that enters the task set after the abort of its queue's commands was not found by
// that abort.
func (r volumeRequest) forbiddenBy(n *namespace) nvme.Status {
	if r.q.cut.Load() {
		return nvme.AbortRequested
	}
	if s := r.q.ctrl.access(n).Status(); s != nvme.Success {
		return s // without DNR: another path may do
	}
	if g := n.gates() & r.row.gates(r.sqe().Opcode()); g != 0 {
		return gateStatus(g)
	}
	if n.vol.Forbids(&r.q.ctrl.client, r.row.access) {
		return nvme.ReservationConflict | nvme.DoNotRetry
	}
	return nvme.Success
}

// enable starts a command that is in the task set and whose turn has come. The volume
// may have changed since it arrived.
func (r volumeRequest) enable() {
	if s := r.forbidden(); s != nvme.Success {
		r.end(s)
		return
	}
	if r.row.access == volume.Writes && r.ns.vol.BeforeChange(blockdev.NoWait, nil) != nil {
		r.toWorker(func(r volumeRequest) {
			if err := r.ns.vol.BeforeChange(blockdev.Wait, r.Stop()); err != nil {
				r.end(r.ns.tell(err, nvme.InternalError))
				return
			}
			r.pace()
		})
		return
	}
	r.pace()
}

// pace runs an enabled command, unless its volume's rate limit holds it back.
func (r volumeRequest) pace() {
	if r.row.data && r.ns.vol.Limited() {
		r.resume = r.row.run
		if r.ns.vol.Throttle(&r.Op) {
			return
		}
	}
	r.row.run(r)
}

// toWorker goes on with job on a worker of the volume.
func (r volumeRequest) toWorker(job func(volumeRequest)) {
	r.resume = job
	r.ns.vol.ToWorker(&r.Op)
}

// toSyncer is toWorker for a job that makes data durable.
func (r volumeRequest) toSyncer(job func(volumeRequest)) {
	r.resume = job
	r.ns.vol.ToSyncer(&r.Op)
}

// toCommitter is toWorker for a job that makes what was received the content of its blocks.
func (r volumeRequest) toCommitter(job func(volumeRequest), fua bool) {
	r.resume = job
	r.ns.vol.ToCommitter(&r.Op, fua)
}

// fail ends the command with an error of its volume.
func (r volumeRequest) fail(err error, dir volume.Direction) {
	if r.stopped() { // the error may come from giving it up, and is then no fault of the volume
		r.end(nvme.AbortRequested)
		return
	}
	r.ns.vol.Counters.CountError(err, dir)
	r.end(r.ns.tell(err, errStatus(err, dir)))
}

// counted counts how a command was carried out: on the receive goroutine, or on a worker.
func (r volumeRequest) counted(m blockdev.Mode) {
	k := &r.ns.vol.Counters
	if m == blockdev.NoWait {
		k.Inline.Add(1)
	} else {
		k.Worked.Add(1)
	}
}

// leaveVolume takes the command out of its volume, so that it can enter another one. It
// reports false when it has been aborted, and has ended by that.
func (r volumeRequest) leaveVolume() bool {
	if r.Aborted() {
		r.end(nvme.AbortRequested)
		return false
	}
	_, waits := r.ns.vol.Leave(&r.Op)
	waits.Done()
	r.ns.place.Unuse()
	r.ns = nil
	r.Release()
	r.Init(r.request)
	return true
}

// gateStatus is the one table from conditions of a volume to status.
func gateStatus(g volume.Gate) nvme.Status {
	switch {
	case g&volume.Closed != 0:
		return nvme.ANATransition
	case g&volume.NoMedium != 0:
		return nvme.NamespaceNotReady
	case g&volume.Sanitizing != 0:
		return nvme.SanitizeInProgress
	case g&volume.Formatting != 0:
		return nvme.FormatInProgress
	case g&(volume.SanitizeFailed|volume.Corrupt) != 0:
		return nvme.SanitizeFailed | nvme.DoNotRetry
	case g&volume.Testing != 0:
		return nvme.NamespaceNotReady
	}
	return nvme.NamespaceWriteProtect | nvme.DoNotRetry
}

// errStatus is the one table from errors of volumes to status.
func errStatus(err error, dir volume.Direction) nvme.Status {
	if _, marked := errors.AsType[*volume.MarkedError](err); marked {
		return nvme.UnrecoveredRead | nvme.DoNotRetry // it stays so until somebody writes
	}
	switch {
	case errors.Is(err, blockdev.ErrPoisoned): // whatever has caused it
		return nvme.WriteFault
	case errors.Is(err, blockdev.ErrOutOfRange): // resized since the check
		return nvme.LBAOutOfRange | nvme.DoNotRetry
	case errors.Is(err, blockdev.ErrReadOnly):
		return nvme.NamespaceWriteProtect | nvme.DoNotRetry
	case errors.Is(err, blockdev.ErrNoSpace):
		return nvme.CapacityExceeded | nvme.DoNotRetry
	case errors.Is(err, blockdev.ErrNotSupported):
		return nvme.InvalidOpcode | nvme.DoNotRetry
	case errors.Is(err, blockdev.ErrInactive): // the access state changes
		return nvme.ANATransition
	case errors.Is(err, blockdev.ErrClosed), errors.Is(err, blockdev.ErrInUse):
		return nvme.NamespaceNotReady
	case errors.Is(err, blockdev.ErrMedium) && dir != volume.Writing:
		return nvme.UnrecoveredRead
	case errors.Is(err, blockdev.ErrMedium):
		return nvme.WriteFault
	}
	return nvme.InternalError
}
