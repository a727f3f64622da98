package nvmf

import (
	"errors"

	"softiser/blockdev"
	"softiser/internal/nvme"
	"softiser/target/volume"
)

// writeRequest is a request that writes data of its host:
//
//	in the capsule ──▶ store ─────────────────────────────▶ written
//	else: next ──▶ (host's data) ──▶ filled ──▶ commit ──▶ written
//	        ▲─────────── more of it ──────────────┘
type writeRequest struct{ volumeRequest }

func writeOf(r *request) writeRequest { return writeRequest{volumeRequest{r}} }

func (r writeRequest) start() { r.next(blockdev.NoWait) }

func writeOnWorker(r volumeRequest) { writeRequest{r}.next(blockdev.Wait) }

// fua reports whether the command must make its data durable itself.
func (r writeRequest) fua() bool {
	v := r.ns.vol
	return v.Geo().Info.WriteCache && (!v.WriteCache() || r.sqe().ReadWrite().FUA())
}

// next begins the next part of a write. In-capsule data goes through WriteAt, so that Go code
// never touches a mapping; for other data the volume lends memory, which the transport fills.
func (r writeRequest) next(m blockdev.Mode) {
	v := r.ns.vol
	if r.inCapsule() {
		if m == blockdev.NoWait && r.fua() {
			r.toSyncer(writeOnWorker)
			return
		}
		if m == blockdev.NoWait && !r.ns.vol.WritesAtOnce(&r.probe, r.off, int(r.n)) {
			r.resume = func(r volumeRequest) { writeRequest{r}.stored(r.Written(), blockdev.Wait) }
			r.ns.vol.ToWriter(&r.Op, r.cmd.Data, r.off)
			return
		}
		r.store(m)
		return
	}
	n := r.n - r.done
	if v.Verified(r.off+r.done, n) || !v.Geo().Info.InPlace {
		n = min(n, blockdev.MaxBuffer)
	}
	if r.resume = writeOnWorker; !v.Stage(&r.Op, r.off+r.done, n) {
		return
	}
	err := v.Lender(r.off+r.done, n).LeaseWrite(&r.lease, r.off+r.done, int(n), m)
	if errors.Is(err, blockdev.ErrWouldBlock) {
		r.toWorker(writeOnWorker)
		return
	}
	if err != nil {
		r.fail(err, volume.Writing)
		return
	}
	r.segs = append(r.segs[:0], r.lease.Segs...)
	r.fetch(uint32(r.done), func(r *request) { writeOf(r).filled() })
}

// store writes data that came with the command.
func (r writeRequest) store(m blockdev.Mode) {
	r.stored(r.ns.vol.WriteAt(r.cmd.Data, r.off, r.Stop()), m)
}

// stored goes on after store or a worker (volume.ToWriter) has written in-capsule data, or failed.
func (r writeRequest) stored(err error, m blockdev.Mode) {
	if err != nil {
		r.fail(err, volume.Writing)
		return
	}
	r.written(m, false)
}

// storeParams writes the data that param has brought.
func (r writeRequest) storeParams() {
	if err := r.ns.vol.WriteAt(r.params, r.off, r.Stop()); err != nil {
		r.fail(err, volume.Writing)
		return
	}
	r.written(blockdev.Wait, false)
}

// filled goes on when the host's data is in the memory that was lent.
func (r writeRequest) filled() {
	if r.ns.vol.CommitWaits(&r.lease, &r.probe, r.fua()) {
		job := func(r volumeRequest) { writeRequest{r}.commit(blockdev.Wait) }
		r.toCommitter(job, r.fua())
		return
	}
	r.commit(blockdev.NoWait)
}

func (r writeRequest) commit(m blockdev.Mode) {
	fua := r.fua()
	err := r.lease.CommitUntil(fua, r.Stop())
	if err == nil && !fua && r.fua() { // the cache has been turned off meanwhile, and flushed before these blocks were in it
		err = r.ns.dev.FlushRange(r.lease.Off, int64(r.lease.Len))
	}
	if err != nil {
		r.fail(err, volume.Writing)
		return
	}
	r.Stamp(volume.Committed)
	r.done += int64(r.lease.Len)
	r.lease.Release()
	r.ns.vol.Unstage(&r.Op)
	if r.done < r.n {
		r.next(blockdev.NoWait) // a worker that commits must not wait for staging memory
		return
	}
	r.written(m, true)
}

// written ends a write; durable says that it has been flushed already if FUA asks for that.
func (r writeRequest) written(m blockdev.Mode, durable bool) {
	if !durable && r.fua() {
		if err := r.ns.dev.FlushRange(r.off, r.n); err != nil {
			r.fail(err, volume.Writing)
			return
		}
	}
	if r.done == 0 { // it had no lease to be committed
		r.Stamp(volume.Committed)
	}
	k := &r.ns.vol.Counters
	k.Writes.Add(1)
	k.WriteBytes.Add(uint64(r.n))
	r.counted(m)
	r.end(nvme.Success)
}
