package blockio

import (
	"bytes"
	"testing"
)

// Parts of the data are the same wherever the slices that hold it begin and end.
func TestPart(t *testing.T) {
	data := []byte("0123456789")
	for _, r := range []*Request{
		{Buf: data},
		{Segs: [][]byte{data}},
		{Segs: [][]byte{data[:3], data[3:3], data[3:4], data[4:]}},
	} {
		for off := range len(data) + 1 {
			for n := 1; off+n <= len(data); n++ {
				if got := bytes.Join(r.Part(nil, int64(off), int64(n)), nil); string(got) != string(data[off:off+n]) {
					t.Errorf("%d slices, %d bytes from %d: %q", len(r.Segs), n, off, got)
				}
			}
		}
	}
}
