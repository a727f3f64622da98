package segs_test

import (
	"bytes"
	"testing"

	"softiser/internal/crc32c"
	"softiser/internal/faultmap"
	. "softiser/internal/segs"
)

func gather(v View) (out []byte) {
	for v.Len() > 0 {
		s := v.Next()
		out = append(out, s...)
		v.Skip(len(s))
	}
	return out
}

// Every range of a list with empty segments in it, walked in every step.
func TestView(t *testing.T) {
	list := [][]byte{nil, []byte("ab"), {}, []byte("cde"), nil, []byte("f"), nil}
	all := []byte("abcdef")
	if Total(list) != len(all) {
		t.Fatal(Total(list))
	}
	for off := range len(all) + 1 {
		for n := range len(all) - off + 1 {
			v := Of(list, off, n)
			if got := gather(v); !bytes.Equal(got, all[off:off+n]) {
				t.Errorf("%d bytes at %d: %q", n, off, got)
			}
			if got := bytes.Join(v.Append(nil), nil); !bytes.Equal(got, all[off:off+n]) {
				t.Errorf("%d bytes at %d as a list: %q", n, off, got)
			}
			if sum, ok := v.Checksum(0); !ok || sum != crc32c.Update(0, all[off:off+n]) {
				t.Errorf("%d bytes at %d: %08x", n, off, sum)
			}
			for k := range n + 1 {
				w := v
				w.Skip(k)
				if got := gather(w); !bytes.Equal(got, all[off+k:off+n]) {
					t.Errorf("%d bytes at %d behind %d: %q", n, off, k, got)
				}
			}
		}
	}
	v := Of(list, 6, 0)
	if v.Next() != nil {
		t.Error("a piece at the end")
	}
}

func TestFaults(t *testing.T) {
	mem := faultmap.New(t, 16<<10, 8<<10)
	v := Of([][]byte{mem}, 0, len(mem))
	if _, ok := v.Checksum(0); ok {
		t.Error("the checksum of memory that faults")
	}
	if _, ok := Copy(make([]byte, len(mem)), mem); ok {
		t.Error("a copy of memory that faults")
	}
	if n, ok := Copy(mem, []byte("x")); !ok || n != 1 || mem[0] != 'x' {
		t.Error("memory that is there is not copied")
	}
	defer func() {
		if recover() == nil {
			t.Error("a panic that is no fault is kept")
		}
	}()
	var none []byte
	Of([][]byte{none}, 0, 1).Checksum(0)
}
