package mpa

import "testing"

// Start-up frames are exchanged once a connection.
func BenchmarkFrame(b *testing.B) {
	f := Frame{Rev: 2, Enhanced: true, IRD: 64, ORD: 64, Flags: FlagCRC, Private: make([]byte, 12)}
	buf := make([]byte, 0, 128)
	b.ReportAllocs()
	for b.Loop() {
		buf = f.Append(buf[:0])
		if err := f.Parse(buf, false); err != nil {
			b.Fatal(err)
		}
	}
}
