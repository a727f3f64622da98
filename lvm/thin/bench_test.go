package thin

import (
	"math/rand/v2"
	"testing"

	"softiser/blockdev"
	"softiser/blockdev/mem"
	"softiser/lvm/internal/lvmtest"
)

func BenchmarkRewrite(b *testing.B) {
	meta, err := mem.Open(mem.Config{Size: 16 << 20})
	must(b, err)
	defer meta.Close()
	data, err := mem.Open(mem.Config{Size: 256 << 20})
	must(b, err)
	defer data.Close()
	p, err := Open(Config{Meta: meta, Data: data, ChunkSize: chunk})
	must(b, err)
	must(b, p.Create(1, 1))
	d, err := p.Device(1, 128<<20, "t", false)
	must(b, err)
	buf := make([]byte, 4096)
	for i := range int64(2048) {
		_, err := d.WriteAt(buf, i*chunk)
		must(b, err)
	}
	var l blockdev.Lease
	b.SetBytes(4096)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		must(b, d.LeaseWrite(&l, int64(i%32768)*4096, 4096, blockdev.Wait))
		must(b, l.Commit(false))
		l.Release()
	}
}

// BenchmarkDiff is a thin volume of 1 TiB of which 1 % has changed since its
// snapshot, in blocks of 64 KiB.
func BenchmarkDiff(b *testing.B) {
	if testing.Short() {
		b.Skip("writing the mappings of 1 TiB takes a minute")
	}
	meta, err := mem.Open(mem.Config{Size: 2 << 30})
	must(b, err)
	defer meta.Close()
	const blocks = 1 << 40 / chunk
	p, err := Open(Config{Meta: meta, Data: lvmtest.New(2 << 40).Quiet(), ChunkSize: chunk})
	must(b, err)
	must(b, p.Create(1, 1))
	d, err := p.Device(1, 1<<40, "t", false)
	must(b, err)
	set := func(vb uint64) {
		p.mu.Lock()
		defer p.mu.Unlock()
		must(b, p.roomLocked(0))
		n, _, err := p.allocLocked()
		must(b, err)
		must(b, d.setLocked(vb, n))
	}
	for vb := range uint64(blocks) {
		set(vb)
	}
	must(b, p.Snapshot(2, 1, 2))
	r := rand.New(rand.NewPCG(1, 1))
	for range blocks / 100 {
		set(uint64(r.IntN(blocks)))
	}
	must(b, p.Commit())
	b.ResetTimer()
	for b.Loop() {
		p.blocks.mu.Lock()
		p.blocks.cache = map[uint64]*block{} // from the device each time
		p.blocks.mu.Unlock()
		cs, err := p.Diff(2, 1)
		must(b, err)
		b.ReportMetric(float64(len(cs)), "ranges")
	}
}
