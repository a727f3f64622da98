package spc

import "testing"

// A CDB is built by the initiator and read by the target.
func BenchmarkCDB(b *testing.B) {
	for _, c := range []struct {
		name string
		lba  uint64
	}{{"10", 8}, {"16", 1 << 40}} {
		b.Run(c.name, func(b *testing.B) {
			buf := make([]byte, 0, 16)
			b.ReportAllocs()
			for b.Loop() {
				buf = AppendRead(buf[:0], c.lba, 8, false)
				if io := ParseIO(buf); io.LBA != c.lba {
					b.Fatal(io)
				}
			}
		})
	}
}
