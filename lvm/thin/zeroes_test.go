package thin

import (
	"bytes"
	"fmt"
	"testing"

	"softiser/lvm/internal/lvmtest"
)

// TestZeroesStay: zeroes that were acknowledged are read again, whatever is
// written beside them, and whatever the block held for its last owner. A pool
// made with -Zn does not zero new blocks, so it has to write them.
func TestZeroesStay(t *testing.T) {
	const blocks = 8
	for _, c := range []struct {
		zero, noDiscard bool
		chunk           int64
	}{{true, false, chunk}, {false, false, chunk}, {false, true, chunk}, {true, false, 512 << 10}, {false, false, 512 << 10}} {
		for _, unmap := range []bool{false, true} {
			t.Run(fmt.Sprintf("zero %v, ignore discards %v, chunk %d, may unmap %v", c.zero, c.noDiscard, c.chunk, unmap), func(t *testing.T) {
				meta, data := lvmtest.New(2<<20).Quiet(), lvmtest.New(64*c.chunk).Quiet()
				foreign := bytes.Repeat([]byte{0xee}, int(c.chunk))
				for at := int64(0); at < 64*c.chunk; at += c.chunk {
					_, err := data.WriteAt(foreign, at)
					must(t, err)
				}
				p, err := openPool(meta, data, func(x *Config) { x.Zero, x.NoDiscard, x.ChunkSize = c.zero, c.noDiscard, c.chunk })
				must(t, err)
				must(t, p.Create(1, 1))
				d, err := p.Device(1, blocks*c.chunk, "t", false)
				must(t, err)
				if i := d.Info(); i.ZeroesOnTrim != (c.zero && !c.noDiscard) || i.Discard == c.noDiscard {
					t.Errorf("%+v", i)
				}
				// Mapped blocks, one of them shared with a snapshot, and new ones.
				own := bytes.Repeat([]byte{1}, int(c.chunk))
				_, err = d.WriteAt(own, 0)
				must(t, err)
				must(t, p.Snapshot(2, 1, 2))
				_, err = d.WriteAt(own, c.chunk)
				must(t, err)
				// Whole blocks, and parts at both ends of the range.
				model := bytes.Repeat([]byte{0xff}, blocks*int(c.chunk)) // 0xff: anything
				zero := func(off, n int64) {
					must(t, d.WriteZeroes(off, n, unmap))
					clear(model[off : off+n])
				}
				zero(4096, 3*c.chunk)
				zero(5*c.chunk+512, 512)
				write := func(off int64) {
					_, err := d.WriteAt(bytes.Repeat([]byte{2}, 512), off)
					must(t, err)
					copy(model[off:], bytes.Repeat([]byte{2}, 512))
				}
				write(c.chunk + 1024)
				write(2*c.chunk + 1024)
				write(3*c.chunk + 8192) // beside the end of the first range
				write(5*c.chunk + 2048)
				got := make([]byte, len(model))
				_, err = d.ReadAt(got, 0)
				must(t, err)
				for i := range model {
					if model[i] != 0xff && got[i] != model[i] {
						t.Fatalf("byte %d of block %d is %#x, not %#x", int64(i)%c.chunk, int64(i)/c.chunk, got[i], model[i])
					}
				}
				s, err := p.Device(2, blocks*c.chunk, "s", false)
				must(t, err)
				_, err = s.ReadAt(got[:c.chunk], 0)
				must(t, err)
				if !bytes.Equal(got[:c.chunk], own) {
					t.Error("the snapshot has changed")
				}
				must(t, s.Close())
				must(t, d.Close())
				must(t, p.Close())
				check(t, meta)
			})
		}
	}
}
