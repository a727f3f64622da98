package thin

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"testing"

	"softiser/lvm/internal/lvmtest"
)

func TestDamage(t *testing.T) {
	w := newWorld(t, 64)
	w.create()
	w.write(rand.New(rand.NewPCG(1, 2)), w.vols[0])
	w.snapshot(w.vols[0])
	for _, v := range w.vols {
		must(t, v.dev.Close())
	}
	must(t, w.p.Close())
	for blk := range int64(20) {
		m := w.meta.Clone()
		b := make([]byte, 512)
		m.ReadAt(b, blk*blockSize)
		b[100] ^= 1
		m.WriteAt(b, blk*blockSize)
		p, err := openPool(m, w.data.Clone(), nil)
		if err != nil {
			if !errors.Is(err, ErrCorrupt) {
				t.Errorf("block %d: %v", blk, err)
			}
			continue
		}
		for _, v := range w.vols {
			d, err := p.Device(v.id, volSize, "t", false)
			if err != nil {
				continue
			}
			got := make([]byte, volSize)
			if _, err := d.ReadAt(got, 0); err == nil && !bytes.Equal(got, v.model) {
				t.Errorf("block %d: damaged metadata gave wrong data", blk)
			}
		}
	}
}

func TestChecksum(t *testing.T) {
	// CRC32C of "123456789" is 0xe3069283; without inversion 0x1cf96d7c.
	if got := checksum([]byte("....123456789"), 0); got != 0x1cf96d7c {
		t.Fatalf("%#x", got)
	}
}

// A superblock is believed only as it was written, whichever byte has changed.
func TestSuperDamage(t *testing.T) {
	p, meta, _ := newPool(t, 64, nil)
	must(t, p.Close())
	good := make([]byte, blockSize)
	_, err := meta.ReadAt(good, 0)
	must(t, err)
	if _, err := parseSuper(good); err != nil {
		t.Fatal(err)
	}
	for i := range good {
		b := bytes.Clone(good)
		b[i] ^= 0x10
		if _, err := parseSuper(b); !errors.Is(err, ErrCorrupt) {
			t.Fatalf("byte %d: %v", i, err)
		}
	}
}

// FuzzNode feeds hostile nodes to every reader of a tree.
func FuzzNode(f *testing.F) {
	n := make(node, blockSize)
	n.init(flagLeaf, 8)
	n.insert(0, 5, u64(1<<24))
	f.Add([]byte(n[:200]))
	n.init(flagInternal, 8)
	n.insert(0, 5, u64(1))
	f.Add([]byte(n[:200]))
	f.Fuzz(func(t *testing.T, b []byte) {
		dev := lvmtest.New(8 * blockSize)
		p := &Pool{blocks: newBlocks(dev)}
		p.blocks.counts = newCounts(8)
		tr := tree{blocks: p.blocks, valueSize: 8}
		for i := range uint64(8) {
			blk := make([]byte, blockSize)
			copy(blk, b)
			le.PutUint64(blk[8:], i)
			le.PutUint32(blk, checksum(blk, xorNode))
			dev.WriteAt(blk, int64(i)*blockSize)
			p.blocks.counts.set(i, 1)
		}
		tr.lookup(1, 7)
		n := 0
		tr.walk(1, 0, func(uint64, []byte) bool { n++; return n < 10000 })
		if c, err := newCursor(&tr, 1); err == nil {
			d, _ := newCursor(&tr, 2)
			if d != nil {
				k := 0
				for k < 1000 {
					e, ok := c.peek()
					if !ok {
						break
					}
					if e.height > 0 {
						if c.descend() != nil {
							break
						}
					} else {
						c.skip()
					}
					k++
				}
			}
		}
	})
}

func FuzzSuper(f *testing.F) {
	f.Add((&super{dataBlock: 128}).encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < blockSize {
			return
		}
		b = bytes.Clone(b[:blockSize])
		le.PutUint32(b, checksum(b, xorSuper))
		s, err := parseSuper(b)
		if err != nil {
			return
		}
		if again, err := parseSuper(s.encode()); err != nil || *again != *s {
			t.Fatal(err)
		}
	})
}
