package nvmf

import (
	"errors"

	"softiser/blockdev"
	"softiser/internal/nvme"
	"softiser/target/volume"
)

// ioCommand is a row of the table of I/O commands.
type ioCommand struct {
	access volume.Access
	hold   volume.Hold
	ranged bool        // names a range of blocks
	data   bool        // the range's data goes with it
	heals  volume.Gate // conditions that do not refuse the command, as it ends them
	run    func(*request)
}

var ioTable [256]ioCommand

func init() {
	ioTable = [256]ioCommand{
		nvme.OpFlush:               {access: volume.Writes, run: (*request).flush},
		nvme.OpWrite:               {access: volume.Writes, hold: volume.HoldWrite, ranged: true, data: true, run: (*request).write},
		nvme.OpRead:                {access: volume.Reads, hold: volume.HoldRead, ranged: true, data: true, run: (*request).read},
		nvme.OpCompare:             {access: volume.Reads, hold: volume.HoldRead, ranged: true, data: true, run: (*request).compare},
		nvme.OpWriteZeroes:         {access: volume.Writes, hold: volume.HoldWrite, ranged: true, run: (*request).writeZeroes},
		nvme.OpDatasetManagement:   {access: volume.Writes, hold: volume.HoldWrite, run: (*request).datasetManagement},
		nvme.OpCopy:                {access: volume.Writes, run: func(r *request) { copyRequest{r}.start() }},
		nvme.OpVerify:              {access: volume.Reads, hold: volume.HoldRead, ranged: true, run: (*request).verify},
		nvme.OpReservationRegister: {access: volume.Always, run: func(r *request) { reservationRequest{r}.register() }},
		nvme.OpReservationReport:   {access: volume.Always, run: func(r *request) { reservationRequest{r}.report() }},
		nvme.OpReservationAcquire:  {access: volume.Always, run: func(r *request) { reservationRequest{r}.acquire() }},
		nvme.OpReservationRelease:  {access: volume.Always, run: func(r *request) { reservationRequest{r}.unreserve() }},
	}
}

// gates are those that refuse the command.
func (c *ioCommand) gates(op nvme.Opcode) volume.Gate {
	switch {
	case op == nvme.OpFlush || c.access == volume.Reads:
		return volume.MediumGates &^ c.heals
	case c.access == volume.Writes:
		return volume.WriteGates &^ c.heals
	}
	return 0
}

// arrive checks an I/O command and brings it into its volume's task set.
func (r *request) arrive() {
	sqe := r.sqe()
	row := &ioTable[sqe.Opcode()]
	if row.run == nil {
		r.end(nvme.InvalidOpcode | nvme.DoNotRetry)
		return
	}
	if sqe.Opcode() == nvme.OpFlush && sqe.NSID() == nvme.NSIDAll {
		r.flushAll()
		return
	}
	if s := r.check(row); s != nvme.Success {
		r.end(s)
		return
	}
	r.admit()
}

// check takes the namespace into use that the command is for, and says what keeps the
// command from it, if something does.
func (r *request) check(row *ioCommand) nvme.Status {
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
func (r *request) admit() {
	lo, hi := uint64(0), ^uint64(0)
	if r.row.ranged {
		shift := r.ns.vol.Geo().Shift
		lo, hi = uint64(r.off)>>shift, uint64(r.off+r.n)>>shift
	}
	r.Cover(lo, hi, r.row.hold)
	r.Client, r.Order, r.Bytes = &r.q.ctrl.client, volume.Simple, r.n
	r.job = (*request).enable
	if r.ns.vol.Admit(&r.Op) {
		r.enable()
	}
}

// forbidden says what keeps the command from its volume now.
func (r *request) forbidden() nvme.Status { return r.forbiddenBy(r.ns) }

// forbiddenBy says what would keep the command from a namespace now.
func (r *request) forbiddenBy(n *namespace) nvme.Status {
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

// gateStatus is the one table from conditions of a volume to status.
func gateStatus(g volume.Gate) nvme.Status {
	switch {
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
	switch {
	case errors.Is(err, blockdev.ErrOutOfRange): // resized since the check
		return nvme.LBAOutOfRange | nvme.DoNotRetry
	case errors.Is(err, blockdev.ErrReadOnly):
		return nvme.NamespaceWriteProtect | nvme.DoNotRetry
	case errors.Is(err, blockdev.ErrNoSpace):
		return nvme.CapacityExceeded | nvme.DoNotRetry
	case errors.Is(err, blockdev.ErrNotSupported):
		return nvme.InvalidOpcode | nvme.DoNotRetry
	case errors.Is(err, blockdev.ErrClosed), errors.Is(err, blockdev.ErrInUse):
		return nvme.NamespaceNotReady
	case errors.Is(err, blockdev.ErrMedium) && dir != volume.Writing:
		return nvme.UnrecoveredRead
	case errors.Is(err, blockdev.ErrMedium), errors.Is(err, blockdev.ErrPoisoned):
		return nvme.WriteFault
	}
	return nvme.InternalError
}

// fail ends the command with an error of its volume.
func (r *request) fail(err error, dir volume.Direction) {
	if r.stopped() { // it was given up perhaps, which is no fault of the volume
		r.end(nvme.AbortRequested)
		return
	}
	r.ns.vol.CountError(err, dir)
	r.end(errStatus(err, dir))
}

// decode checks the range of blocks and the length of its data.
func (r *request) decode() nvme.Status {
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

// enable starts a command that is in the task set and whose turn has come. The volume
// may have changed since it arrived.
func (r *request) enable() {
	if s := r.forbidden(); s != nvme.Success {
		r.end(s)
		return
	}
	if r.row.access == volume.Writes {
		r.ns.vol.Touched()
		if r.ns.vol.Journal.Stuck() {
			r.toWorker(func(r *request) {
				if r.ns.vol.Journal.Unstick(r.Stop()) != nil {
					r.end(nvme.InternalError)
					return
				}
				r.start()
			})
			return
		}
	}
	r.start()
}

// start runs an enabled command, unless its volume's rate limit holds it back.
func (r *request) start() {
	if r.row.data && r.ns.vol.Limited() {
		r.job = r.row.run
		if r.ns.vol.Throttle(&r.Op) {
			return
		}
	}
	r.row.run(r)
}

// fua reports whether the command must make its data durable itself.
func (r *request) fua() bool {
	v := r.ns.vol
	return v.Geo().Info.WriteCache && (!v.WriteCache() || r.sqe().ReadWrite().FUA())
}

func (r *request) read() { r.readMode(blockdev.NoWait) }

// readMode lends the memory of the blocks to the transport, which sends it from there.
func (r *request) readMode(m blockdev.Mode) {
	switch err := r.ns.dev.LeaseRead(&r.lease, r.off, int(r.n), m); {
	case err == nil:
	case errors.Is(err, blockdev.ErrWouldBlock):
		r.toWorker(func(r *request) { r.readMode(blockdev.Wait) })
		return
	default:
		r.fail(err, volume.Reading)
		return
	}
	r.q.t.PutData(r.cmd, 0, r.lease.Segs, true)
	k := &r.ns.vol.Counters
	k.Reads.Add(1)
	k.ReadBytes.Add(uint64(r.n))
	r.counted(m)
	r.end(nvme.Success)
}

func (r *request) counted(m blockdev.Mode) {
	k := &r.ns.vol.Counters
	if m == blockdev.NoWait {
		k.Inline.Add(1)
	} else {
		k.Worked.Add(1)
	}
}

func (r *request) write() { r.writeMode(blockdev.NoWait) }

func writeJob(r *request) { r.writeMode(blockdev.Wait) }

// writeMode begins the part of a write that comes next. In-capsule data goes through
// WriteAt, so that Go code never touches a mapping; for the rest the volume lends memory,
// which the transport fills.
func (r *request) writeMode(m blockdev.Mode) {
	v := r.ns.vol
	if r.inCapsule() {
		if m == blockdev.NoWait && (r.fua() || !r.ns.vol.WritesAtOnce(&r.probe, r.off, int(r.n))) {
			r.toWorker(writeJob)
			return
		}
		r.store(m)
		return
	}
	n := r.n - r.done
	if v.Verified() {
		n = min(n, blockdev.MaxBuffer)
	}
	err := v.Lender().LeaseWrite(&r.lease, r.off+r.done, int(n), m)
	if errors.Is(err, blockdev.ErrWouldBlock) {
		r.toWorker(writeJob)
		return
	}
	if err != nil {
		r.fail(err, volume.Writing)
		return
	}
	r.segs = append(r.segs[:0], r.lease.Segs...)
	r.fetch(uint32(r.done), (*request).filled)
}

// store writes data that came with the command.
func (r *request) store(m blockdev.Mode) {
	if err := r.ns.vol.WriteAt(r.cmd.Data, r.off, r.Stop()); err != nil {
		r.fail(err, volume.Writing)
		return
	}
	r.written(m, false)
}

// storeParams writes the data that param has brought.
func (r *request) storeParams() {
	if err := r.ns.vol.WriteAt(r.params(), r.off, r.Stop()); err != nil {
		r.fail(err, volume.Writing)
		return
	}
	r.written(blockdev.Wait, false)
}

// filled goes on when the host's data is in the memory that was lent.
func (r *request) filled() {
	if r.ns.vol.CommitWaits(&r.lease, &r.probe, r.fua()) {
		r.toWorker(func(r *request) { r.commit(blockdev.Wait) })
		return
	}
	r.commit(blockdev.NoWait)
}

func (r *request) commit(m blockdev.Mode) {
	if err := r.lease.CommitUntil(r.fua(), r.Stop()); err != nil {
		r.fail(err, volume.Writing)
		return
	}
	r.done += int64(r.lease.Len)
	r.lease.Release()
	if r.done < r.n {
		r.writeMode(m)
		return
	}
	r.written(m, true)
}

// written ends a write; durable says that what FUA asks for has been done.
func (r *request) written(m blockdev.Mode, durable bool) {
	if !durable && r.fua() {
		if err := r.ns.dev.FlushRange(r.off, r.n); err != nil {
			r.fail(err, volume.Writing)
			return
		}
	}
	k := &r.ns.vol.Counters
	k.Writes.Add(1)
	k.WriteBytes.Add(uint64(r.n))
	r.counted(m)
	r.end(nvme.Success)
}

// flush makes what was written durable.
func (r *request) flush() {
	r.toWorker(func(r *request) {
		if err := r.ns.dev.Flush(); err != nil {
			r.fail(err, volume.Writing)
			return
		}
		r.end(nvme.Success)
	})
}

// flushAll is Flush for every namespace. It belongs to none, so it has a goroutine of
// its own; no more of them than commands can be there.
func (r *request) flushAll() {
	l := r.q.ctrl.sub.list()
	go func() {
		s := nvme.Success
		for _, n := range l {
			if st := r.q.ctrl.access(n).Status(); st != nvme.Success {
				s = st
				continue
			}
			if !n.place.Use() {
				continue
			}
			if err := n.dev.Flush(); err != nil {
				n.vol.CountError(err, volume.Writing)
				s = errStatus(err, volume.Writing)
			}
			n.place.Unuse()
		}
		q := r.q
		r.end(s)
		q.Push()
	}()
}

func (r *request) writeZeroes() {
	r.toWorker(func(r *request) {
		g := r.ns.vol.Geo()
		deallocate := r.sqe().ReadWrite().Deallocate() && g.Info.Discard && g.Info.ZeroesOnTrim
		if err := r.ns.vol.WriteZeroes(r.off, r.n, deallocate, r.Stop()); err != nil {
			r.fail(err, volume.Writing)
			return
		}
		r.written(blockdev.Wait, false)
	})
}

// datasetManagement deallocates ranges; everything else that it says is a hint.
func (r *request) datasetManagement() {
	r.param(r.sqe().DatasetManagement().Ranges()*nvme.DSMRangeLen, func(r *request) { r.toWorker((*request).deallocate) })
}

// deallocate discards the ranges of a Dataset Management command, when all of them are
// within the namespace.
func (r *request) deallocate() {
	q := r.sqe().DatasetManagement()
	g := r.ns.vol.Geo()
	b := r.params()
	for i := range q.Ranges() {
		if !nvme.DSMRange(b, i).Within(g.Blocks) {
			r.end(nvme.LBAOutOfRange | nvme.DoNotRetry)
			return
		}
	}
	if q.Deallocate() && g.Info.Discard {
		for i := range q.Ranges() {
			x := nvme.DSMRange(b, i)
			if x.Blocks == 0 {
				continue
			}
			if err := r.ns.vol.Discard(int64(x.LBA)<<g.Shift, int64(x.Blocks)<<g.Shift, r.Stop()); err != nil {
				r.fail(err, volume.Writing)
				return
			}
			if r.Aborted() {
				r.end(nvme.AbortRequested)
				return
			}
		}
	}
	r.end(nvme.Success)
}

// compare looks whether the blocks are what the host sends.
func (r *request) compare() {
	n := r.n
	r.param(int(n), func(r *request) { r.toWorker((*request).compareWith) })
}

func (r *request) compareWith() {
	want := r.params()
	r.scan(volume.Reading, func(off int64, p []byte) nvme.Status {
		if string(p) != string(want[off:off+int64(len(p))]) {
			return nvme.CompareFailure | nvme.DoNotRetry
		}
		return nvme.Success
	})
}

// verify looks whether the blocks can be read.
func (r *request) verify() {
	r.toWorker(func(r *request) {
		r.scan(volume.Verifying, func(int64, []byte) nvme.Status { return nvme.Success })
	})
}

// scanBytes is how much scan reads at once.
const scanBytes = 1 << 20

// scan reads the command's blocks on a worker, gives each piece to f with its offset in
// the range, and ends the command.
func (r *request) scan(dir volume.Direction, f func(off int64, p []byte) nvme.Status) {
	bufs := &r.q.fe.bufs
	buf := bufs.Get(int(min(r.n, scanBytes)))
	defer bufs.Put(buf)
	for off := int64(0); off < r.n; {
		p := buf[:min(r.n-off, int64(len(buf)))]
		if _, err := r.ns.dev.ReadAt(p, r.off+off); err != nil {
			r.fail(err, dir)
			return
		}
		if s := f(off, p); s != nvme.Success {
			r.end(s)
			return
		}
		if off += int64(len(p)); r.Aborted() {
			r.end(nvme.AbortRequested)
			return
		}
	}
	r.end(nvme.Success)
}
