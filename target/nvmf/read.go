package nvmf

import (
	"errors"

	"softiser/blockdev"
	"softiser/internal/nvme"
	"softiser/target/volume"
)

// readRequest is a request with a Read.
type readRequest struct{ volumeRequest }

func (r readRequest) start() { r.send(blockdev.NoWait) }

// send lends the memory of the blocks to the transport, which sends it from there.
func (r readRequest) send(m blockdev.Mode) {
	var err error
	if m == blockdev.NoWait || !r.Lent() {
		err = r.ns.vol.LeaseRead(&r.lease, r.off, int(r.n), m)
	}
	switch {
	case err == nil:
	case errors.Is(err, blockdev.ErrWouldBlock):
		r.resume = func(r volumeRequest) { readRequest{r}.send(blockdev.Wait) }
		r.ns.vol.ToReader(&r.Op, &r.lease, r.off, int(r.n))
		return
	default:
		r.fail(err, volume.Reading)
		return
	}
	r.Stamp(volume.Leased)
	r.q.t.PutData(r.cmd, 0, r.lease.Segs, true)
	r.Stamp(volume.Placed)
	k := &r.ns.vol.Counters
	k.Reads.Add(1)
	k.ReadBytes.Add(uint64(r.n))
	r.counted(m)
	r.end(nvme.Success)
}
