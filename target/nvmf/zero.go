package nvmf

import (
	"softiser/blockdev"
	"softiser/internal/nvme"
	"softiser/target/volume"
)

// zeroRequest is a request that takes data away: Write Zeroes, Dataset Management.
type zeroRequest struct{ volumeRequest }

// write is Write Zeroes, which may deallocate where that leaves zeroes.
func (r zeroRequest) write() {
	r.toWorker(func(r volumeRequest) {
		g := r.ns.vol.Geo()
		deallocate := r.sqe().ReadWrite().Deallocate() && g.Info.Discard && g.Info.ZeroesOnTrim
		if err := r.ns.vol.WriteZeroes(r.off, r.n, deallocate, r.Stop()); err != nil {
			r.fail(err, volume.Writing)
			return
		}
		writeRequest{r}.written(blockdev.Wait, false)
	})
}

// manage is Dataset Management: it deallocates ranges; everything else that it says is a hint.
func (r zeroRequest) manage() {
	r.param(r.sqe().DatasetManagement().Ranges()*nvme.DSMRangeLen, func(r *request) {
		r.resume = func(r volumeRequest) { zeroRequest{r}.deallocate() }
		r.ns.vol.JoinWrites(&r.Op)
	})
}

// deallocate discards the ranges of a Dataset Management command, when all of them are
// within the namespace.
func (r zeroRequest) deallocate() {
	if s := r.forbiddenStill(); s != nvme.Success {
		r.end(s)
		return
	}
	q := r.sqe().DatasetManagement()
	g := r.ns.vol.Geo()
	b := r.params
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
			off, n := int64(x.LBA)<<g.Shift, int64(x.Blocks)<<g.Shift
			if r.Aborted() {
				r.end(nvme.AbortRequested)
				return
			}
			err := r.ns.vol.Discard(off, n, r.Stop())
			if err == nil {
				err = r.ns.vol.Settle(off, n)
			}
			if err != nil {
				r.fail(err, volume.Writing)
				return
			}
		}
		r.Stamp(volume.Committed)
	}
	r.end(nvme.Success)
}
