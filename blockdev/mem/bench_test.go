package mem

import (
	"fmt"
	"testing"

	"golang.org/x/sys/unix"

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

// BenchmarkFill stores 64 MiB into a fresh volume, and then again, with and
// without huge pages: what the first touch costs.
func BenchmarkFill(b *testing.B) {
	src, err := unix.MemfdCreate("source", unix.MFD_CLOEXEC)
	if err != nil {
		b.Fatal(err)
	}
	defer unix.Close(src)
	if _, err := unix.Pwrite(src, make([]byte, 1<<20), 0); err != nil {
		b.Fatal(err)
	}
	const size = 64 << 20
	for _, huge := range []bool{false, true} {
		for _, again := range []bool{false, true} {
			b.Run(fmt.Sprintf("huge=%v/again=%v", huge, again), func(b *testing.B) {
				b.SetBytes(size)
				var l blockdev.Lease
				fill := func(d *Device) {
					for off := int64(0); off < size; off += 1 << 20 {
						if err := d.LeaseWrite(&l, off, 1<<20, blockdev.NoWait); err != nil {
							b.Fatal(err)
						}
						if _, err := unix.Preadv(src, l.Segs, 0); err != nil {
							b.Fatal(err)
						}
						l.Release()
					}
				}
				for b.Loop() {
					b.StopTimer()
					d, err := Open(Config{Size: size, HugePages: huge})
					if err != nil {
						b.Fatal(err)
					}
					if again {
						fill(d)
					}
					b.StartTimer()
					fill(d)
					b.StopTimer()
					d.Close()
					b.StartTimer()
				}
			})
		}
	}
}
