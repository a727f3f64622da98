package nvmf

import (
	"errors"

	"softiser/internal/nvme"
	"softiser/target/volume"
)

// Limits of Copy, which Identify tells in blocks.
const (
	maxCopyRange  = 32 << 20  // bytes of one source range: MSSRL
	maxCopyBytes  = 128 << 20 // bytes of all of them: MCL
	maxCopyRanges = 128       // MSRC and one
)

// copyLimits are the limits in blocks.
func copyLimits(g *volume.Geometry) (perRange uint16, all uint32) {
	return uint16(min(int64(maxCopyRange)>>g.Shift, 65535)), uint32(int64(maxCopyBytes) >> g.Shift)
}

// copyRequest is a request with a Copy command: source ranges of format 0 follow each
// other at the destination. Each piece is a read and a write as any other (volume.Copy);
// the whole is not atomic.
type copyRequest struct{ volumeRequest }

func (r copyRequest) start() {
	q := r.sqe().Copy()
	switch {
	case q.Format() != 0 || q.ProtectionInfo() != 0:
		r.end(nvme.InvalidField | nvme.DoNotRetry)
	case q.Ranges() > maxCopyRanges:
		r.end(nvme.CommandSizeExceeded | nvme.DoNotRetry)
	default:
		r.param(q.Ranges()*nvme.CopyRangeLen, func(r *request) { copyRequest{volumeRequest{r}}.apart() })
	}
}

// plan returns the source ranges, or why they are refused. Where a range overlaps the
// destination, what would be copied depends on the order of the pieces.
func (r copyRequest) plan() ([]nvme.BlockRange, nvme.Status) {
	q, g := r.sqe().Copy(), r.ns.vol.Geo()
	ranges, err := nvme.ParseCopyRanges(r.params, q.Ranges())
	if err != nil {
		return nil, nvme.SGLDataLengthInvalid | nvme.DoNotRetry
	}
	perRange, most := copyLimits(g)
	total := uint64(0)
	for _, s := range ranges {
		if s.Blocks > uint64(perRange) {
			return nil, nvme.CommandSizeExceeded | nvme.DoNotRetry
		}
		if !s.Within(g.Blocks) {
			return nil, nvme.LBAOutOfRange | nvme.DoNotRetry
		}
		total += s.Blocks
	}
	to := nvme.BlockRange{LBA: q.Destination(), Blocks: total}
	if total > uint64(most) {
		return nil, nvme.CommandSizeExceeded | nvme.DoNotRetry
	}
	if !to.Within(g.Blocks) {
		return nil, nvme.LBAOutOfRange | nvme.DoNotRetry
	}
	for _, s := range ranges {
		if s.LBA < to.LBA+to.Blocks && to.LBA < s.LBA+s.Blocks {
			return nil, nvme.InvalidField | nvme.DoNotRetry
		}
	}
	return ranges, nvme.Success
}

// apart copies on a goroutine of its own: a copy waits for blocks that others hold, and a
// worker that waits would be missing to those others. No more copies run at once for a
// namespace than its volume has workers by default.
func (r copyRequest) apart() {
	q, n := r.q, r.ns // afterwards the slot may hold another command
	go func() {
		defer q.Push()
		select {
		case n.copies <- struct{}{}:
			defer func() { <-n.copies }()
		case <-r.Stop().Done():
			r.end(nvme.AbortRequested)
			return
		}
		r.run()
	}()
}

// run copies range by range on a worker. The result of a Copy that fails is the first
// range that was not copied whole.
func (r copyRequest) run() {
	ranges, s := r.plan()
	if s != nvme.Success {
		r.end(s)
		return
	}
	v := r.ns.vol
	shift := v.Geo().Shift
	c := v.NewCopy(&r.Op)
	to := int64(r.sqe().Copy().Destination()) << shift
	from := to
	for i, x := range ranges {
		n := int64(x.Blocks) << shift
		done, dir, err := c.Bytes(v, int64(x.LBA)<<shift, v, to, n)
		v.Counters.ReadBytes.Add(uint64(done))
		v.Counters.WriteBytes.Add(uint64(done))
		if err != nil {
			c.End()
			r.result = uint64(i) // the first range that has not been copied whole
			r.copyFailed(err, dir)
			return
		}
		to += n
	}
	var err error
	if r.sqe().Copy().FUA() {
		err = v.Device().FlushRange(from, to-from)
	}
	c.End()
	if err != nil {
		r.fail(err, volume.Writing)
		return
	}
	v.Counters.Reads.Add(1)
	v.Counters.Writes.Add(1)
	r.Stamp(volume.Committed)
	r.end(nvme.Success)
}

// copyFailed ends the command for what the copy says; the volume has counted it.
func (r copyRequest) copyFailed(err error, dir volume.Direction) {
	switch {
	case errors.Is(err, volume.ErrAborted):
		r.end(nvme.AbortRequested)
	case errors.Is(err, volume.ErrFenced):
		r.end(nvme.ReservationConflict | nvme.DoNotRetry)
	case errors.Is(err, volume.ErrNotReady):
		s := nvme.NamespaceNotReady
		if g := r.ns.gates() & volume.WriteGates; g != 0 {
			s = gateStatus(g)
		}
		r.end(s)
	default:
		r.end(r.ns.tell(err, errStatus(err, dir)))
	}
}
