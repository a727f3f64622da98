package scsi

import (
	"bytes"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"softiser/blockdev"
	"softiser/internal/spc"
)

// coldVolume lends nothing at once. Its first leases wait for a gate; what is in memory it lends to who
// asks for that.
type coldVolume struct {
	blockdev.Device
	gate   chan struct{}
	cached atomic.Int32
	waited atomic.Int32
}

func (d *coldVolume) Announces() bool     { return true }
func (d *coldVolume) Announce(int64, int) {}

func (d *coldVolume) LeaseRead(l *blockdev.Lease, off int64, n int, m blockdev.Mode) error {
	if m == blockdev.NoWait {
		return blockdev.ErrWouldBlock
	}
	d.waited.Add(1)
	<-d.gate
	return d.Device.LeaseRead(l, off, n, m)
}

func (d *coldVolume) LeaseCached(l *blockdev.Lease, off int64, n int) error {
	if off/512%4 == 3 {
		return blockdev.ErrWouldBlock
	}
	d.cached.Add(1)
	return d.Device.LeaseRead(l, off, n, blockdev.NoWait)
}

// A READ that a worker finds in memory is sent from the lease that it has made, any other from one
// that may wait; each has one.
func TestReadsLentByWorker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &coldVolume{Device: newNamed(t, "a"), gate: make(chan struct{})}
		r := newRig(t, Config{}, LUConfig{Volume: d})
		const reads = 64 // more than there are workers
		content := fill(reads*512, 1)
		if _, err := d.WriteAt(content, 0); err != nil {
			t.Fatal(err)
		}
		var calls []*call
		for i := range uint32(reads) {
			calls = append(calls, r.start(r.nx[0], 0, spc.AppendRead(nil, uint64(i), 1, false), nil, 512))
		}
		synctest.Wait()
		close(d.gate)
		for i, c := range calls {
			if got := r.finish(c).good().data; !bytes.Equal(got, content[i*512:][:512]) {
				t.Errorf("block %d has other data", i)
			}
		}
		if cached, waited := d.cached.Load(), d.waited.Load(); cached == 0 || waited == 0 || cached+waited != reads {
			t.Errorf("%d reads were lent from memory and %d waited, of %d", cached, waited, reads)
		}
	})
}
