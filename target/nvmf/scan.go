package nvmf

import (
	"softiser/internal/nvme"
	"softiser/target/volume"
)

// scanRequest is a request that reads its blocks for what they hold, not for the host:
// Compare, Verify.
type scanRequest struct{ volumeRequest }

// compare looks whether the blocks are what the host sends.
func (r scanRequest) compare() {
	r.param(int(r.n), func(r *request) {
		volumeRequest{r}.toWorker(func(r volumeRequest) { scanRequest{r}.compareWith() })
	})
}

func (r scanRequest) compareWith() {
	want := r.params
	r.scan(volume.Reading, func(off int64, p []byte) nvme.Status {
		if string(p) != string(want[off:off+int64(len(p))]) {
			return nvme.CompareFailure | nvme.DoNotRetry
		}
		return nvme.Success
	})
}

// verify looks whether the blocks can be read.
func (r scanRequest) verify() {
	r.toWorker(func(r volumeRequest) {
		scanRequest{r}.scan(volume.Verifying, func(int64, []byte) nvme.Status { return nvme.Success })
	})
}

// scanBytes is how much scan reads at once.
const scanBytes = 1 << 20

// scan reads the command's blocks on a worker, gives each piece to f with its offset in
// the range, and ends the command.
func (r scanRequest) scan(dir volume.Direction, f func(off int64, p []byte) nvme.Status) {
	bufs := &r.q.fe.bufs
	buf := bufs.Get(int(min(r.n, scanBytes)))
	defer bufs.Put(buf)
	for off := int64(0); off < r.n; {
		p := buf[:min(r.n-off, int64(len(buf)))]
		if _, err := r.ns.vol.ReadAt(p, r.off+off); err != nil {
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
