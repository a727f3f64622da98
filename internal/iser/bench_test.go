package iser

import (
	"testing"

	"softiser/internal/iscsi"
)

// A command in a Send: the iSER header with both windows, the BHS behind it.
func BenchmarkMessage(b *testing.B) {
	var bhs iscsi.BHS
	bhs.NewSCSICommand().SetWrite(true)
	buf := make([]byte, 0, 128)
	h := header{wsv: true, rsv: true, stags: stags{WriteSTag: 1, WriteBase: 1 << 40, ReadSTag: 2, ReadBase: 1 << 41}}
	b.ReportAllocs()
	b.SetBytes(HeaderLen + iscsi.BHSLen)
	for b.Loop() {
		buf = append(h.append(buf[:0]), bhs[:]...)
		got, _, _, _, err := split(buf)
		if err != nil || got != h {
			b.Fatal(got, err)
		}
	}
}
