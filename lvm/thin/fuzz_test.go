package thin

import (
	"math/rand/v2"
	"testing"

	"softiser/internal/race"
	"softiser/lvm/internal/lvmtest"
)

// FuzzPool opens pools whose metadata has changed here and there, with right checksums, and puts
// them to use. Each change is of 8 bytes of the input: block | offset 2 | how many bytes | bytes 4.
func FuzzPool(f *testing.F) {
	if race.Enabled {
		f.Skip("one goroutine has the pool")
	}
	w := newWorld(f, 64)
	w.create()
	w.write(rand.New(rand.NewPCG(1, 2)), w.vols[0])
	w.snapshot(w.vols[0])
	w.write(rand.New(rand.NewPCG(3, 4)), w.vols[0])
	for _, v := range w.vols {
		must(f, v.dev.Close())
	}
	must(f, w.p.Close())
	// The blocks that there are, and the types that their checksums show.
	kinds := map[int64]uint32{0: xorSuper}
	var used []int64
	for nr := range w.meta.Info().Size / blockSize {
		b := make([]byte, blockSize)
		_, err := w.meta.ReadAt(b, nr*blockSize)
		must(f, err)
		for _, x := range []uint32{xorSuper, xorNode, xorBitmap, xorIndex} {
			if le.Uint32(b) == checksum(b, x) {
				kinds[nr] = x
			}
		}
		if _, ok := kinds[nr]; ok {
			used = append(used, nr)
		}
	}
	for i := range used {
		f.Add([]byte{byte(i), 0, 16, 4, 1, 0, 0, 0})               // entries of a node, the first counts of a bitmap
		f.Add([]byte{byte(i), 0, 64, 1, 0xff, 0, 0, 0})            // the space map of the data
		f.Add([]byte{byte(i), 7, 208, 3, byte(used[i]), 0, 0, 0})  // a value: the node itself
		f.Add([]byte{byte(i), 1, 64, 4, byte(used[i]), 0, 0, 0})   // a root
		f.Add([]byte{byte(i), 0, 40, 4, 0xff, 0xff, 0xff, 0xff})   // keys
		f.Add([]byte{byte(i), 0, 8, 4, 0, 0, 0, 0, byte(i), 1, 8}) // its own number
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		meta, data := w.meta.Clone().Quiet(), w.data.Clone().Quiet()
		for ; len(b) >= 8; b = b[8:] {
			nr := used[int(b[0])%len(used)]
			blk := make([]byte, blockSize)
			_, err := meta.ReadAt(blk, nr*blockSize)
			must(t, err)
			copy(blk[(int(b[1])<<8|int(b[2]))%blockSize:], b[4:4+b[3]%5])
			le.PutUint32(blk, checksum(blk, kinds[nr]))
			_, err = meta.WriteAt(blk, nr*blockSize)
			must(t, err)
		}
		use(meta, data)
		use(meta, data) // as the first has left it
	})
}

var zeroes [volSize]byte

// use does to a pool whatever can be done to it, whether it succeeds or not.
func use(meta, data *lvmtest.Disk) {
	p, err := openPool(meta, data, nil)
	if err != nil {
		return
	}
	ids, _ := p.Devices()
	for _, id := range ids[:min(len(ids), 4)] {
		_, _ = p.Mapped(id)
		_, _ = p.Diff(id, 1)
		d, err := p.Device(id, volSize, "t", false)
		if err != nil {
			continue
		}
		_ = lvmtest.Differs(d, zeroes[:])
		_, _ = d.WriteAt(zeroes[:3*chunk], chunk-4096)
		_, _ = d.Extents(0, volSize)
		_ = d.Discard(chunk, 4*chunk)
		_ = d.Flush()
		_ = d.Close()
	}
	_ = p.Snapshot(100, 1, p.Transaction()+1)
	_ = p.Delete(1, p.Transaction()+1)
	_ = p.Close()
}
