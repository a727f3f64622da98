package nvmf_test

import (
	"bytes"
	"sync/atomic"
	"testing"

	"softiser/blockdev"
	"softiser/internal/nvme"
	"softiser/target"
	"softiser/target/nvmf"
)

// coldVolume lends nothing at once. Its leases wait for a gate; most of it is in memory for who asks
// for that.
type coldVolume struct {
	blockdev.Device
	gate chan struct{}
	lent atomic.Int32
}

func (d *coldVolume) Announces() bool     { return true }
func (d *coldVolume) Announce(int64, int) {}

func (d *coldVolume) LeaseRead(l *blockdev.Lease, off int64, n int, m blockdev.Mode) error {
	if m == blockdev.NoWait {
		return blockdev.ErrWouldBlock
	}
	d.lent.Add(1)
	<-d.gate
	return d.Device.LeaseRead(l, off, n, m)
}

func (d *coldVolume) LeaseCached(l *blockdev.Lease, off int64, n int) error {
	if off/512%4 == 3 {
		return blockdev.ErrWouldBlock
	}
	d.lent.Add(1)
	return d.Device.LeaseRead(l, off, n, blockdev.NoWait)
}

// Reads that a worker finds in memory and those that wait bring their data, with one lease each.
func TestReadsLentByWorker(t *testing.T) {
	d := &coldVolume{Device: newMem(t, 1<<20), gate: make(chan struct{})}
	r := open(t, func(_ *target.Config, c *nvmf.SubsystemConfig) { c.Namespaces[0].Volume = d })
	content := pattern(64*512, 1)
	if _, err := d.WriteAt(content, 0); err != nil {
		t.Fatal(err)
	}
	h := r.attach(hostNQN, 1, 1)
	q := h.io[0]
	var all []*command
	const reads = 24 // more than there are workers
	for i := range uint64(reads) {
		all = append(all, q.start(rw(nvme.OpRead, i, 1), make([]byte, 512), nil))
	}
	close(d.gate)
	for i, c := range all {
		if _, err := q.result(c); err != nil || !bytes.Equal(c.in, content[i*512:][:512]) {
			t.Errorf("block %d: %v, or other data", i, err)
		}
	}
	if n := d.lent.Load(); n != reads {
		t.Errorf("%d leases for %d reads", n, reads)
	}
}
