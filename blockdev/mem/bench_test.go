package mem

import (
	"fmt"
	"testing"

	"softiser/blockdev"
)

// BenchmarkLease is the hot path: a resident range, leased and given back.
func BenchmarkLease(b *testing.B) {
	d, err := Open(Config{Size: 256 << 20})
	if err != nil {
		b.Fatal(err)
	}
	defer d.Close()
	for _, n := range []int{4096, 1 << 20} {
		var l blockdev.Lease
		if err := d.LeaseWrite(&l, 0, 64<<20, blockdev.Wait); err != nil {
			b.Fatal(err)
		}
		l.Release()
		for _, out := range []int{0, 128} {
			held := make([]blockdev.Lease, out)
			for i := range held {
				if err := d.LeaseRead(&held[i], int64(i)*4096, 4096, blockdev.NoWait); err != nil {
					b.Fatal(err)
				}
			}
			b.Run(fmt.Sprintf("read/%d/open=%d", n, out), func(b *testing.B) {
				b.ReportAllocs()
				for i := range b.N {
					d.LeaseRead(&l, int64(i%32)<<20, n, blockdev.NoWait)
					l.Release()
				}
			})
			b.Run(fmt.Sprintf("write/%d/open=%d", n, out), func(b *testing.B) {
				b.ReportAllocs()
				for i := range b.N {
					d.LeaseWrite(&l, int64(1+i%32)<<20, n, blockdev.NoWait)
					l.Commit(false)
					l.Release()
				}
			})
			for i := range held {
				held[i].Release()
			}
		}
	}
	b.Run("parallel", func(b *testing.B) {
		b.ReportAllocs()
		b.RunParallel(func(pb *testing.PB) {
			var l blockdev.Lease
			for i := 0; pb.Next(); i++ {
				d.LeaseRead(&l, int64(i%60)<<20, 4096, blockdev.NoWait)
				l.Release()
			}
		})
	})
	b.Run("hole", func(b *testing.B) {
		b.ReportAllocs()
		var l blockdev.Lease
		for i := range b.N {
			d.LeaseRead(&l, 128<<20+int64(i%60)<<20, 4096, blockdev.NoWait)
			l.Release()
		}
	})
	b.Run("staged", func(b *testing.B) {
		b.ReportAllocs()
		b.SetBytes(4096)
		var l, w blockdev.Lease
		if err := d.LeaseWrite(&w, 0, 4096, blockdev.NoWait); err != nil {
			b.Fatal(err)
		}
		defer w.Release()
		for range b.N {
			if err := d.LeaseRead(&l, 0, 4096, blockdev.Wait); err != nil {
				b.Fatal(err)
			}
			l.Release()
		}
	})
}
