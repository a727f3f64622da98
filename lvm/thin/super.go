package thin

import (
	"bytes"
	"fmt"
)

// super is block 0.
//
//	  0 csum 4 | flags 4      8 block nr      16 uuid (16)
//	 32 magic 8      40 version 4 | time 4    48 transaction id 8   56 held root 8
//	 64 data space map root (128)            192 metadata space map root (128)
//	320 mapping root 8      328 details root 8
//	336 data block size 4 (sectors) | metadata block size 4 (sectors)
//	344 metadata blocks 8   352 compat 4 | compat_ro 4 | incompat 4
type super struct {
	flags         uint32
	uuid          [16]byte
	time          uint32
	transaction   uint64
	held          uint64
	data, meta    mapRoot
	mapping       uint64
	details       uint64
	dataBlock     uint32 // sectors
	metaBlocks    uint64
	compat, compR uint32
}

// mapRoot is the root of a space map.
type mapRoot struct {
	blocks, used uint64
	bitmaps      uint64 // index: a tree (data) or a block (metadata)
	counts       uint64 // tree of counts of 3 and more
}

const (
	superMagic     = 27022010
	superVersion   = 2
	flagNeedsCheck = 1
)

func parseSuper(b []byte) (*super, error) {
	if checksum(b, xorSuper) != le.Uint32(b) || le.Uint64(b[8:]) != 0 {
		return nil, fmt.Errorf("%w: superblock has a bad checksum", ErrCorrupt)
	}
	if m := le.Uint64(b[32:]); m != superMagic {
		return nil, fmt.Errorf("%w: superblock has magic %d", ErrCorrupt, m)
	}
	if v := le.Uint32(b[40:]); v < 1 || v > superVersion {
		return nil, fmt.Errorf("thin pool metadata has version %d, only up to %d is understood", v, superVersion)
	}
	s := &super{flags: le.Uint32(b[4:]), time: le.Uint32(b[44:]), transaction: le.Uint64(b[48:]), held: le.Uint64(b[56:]),
		data: parseRoot(b[64:]), meta: parseRoot(b[192:]), mapping: le.Uint64(b[320:]), details: le.Uint64(b[328:]),
		dataBlock: le.Uint32(b[336:]), metaBlocks: le.Uint64(b[344:]), compat: le.Uint32(b[352:]), compR: le.Uint32(b[356:])}
	copy(s.uuid[:], b[16:])
	if x := le.Uint32(b[360:]); x != 0 {
		return nil, fmt.Errorf("thin pool metadata uses features %#x that are not understood", x)
	}
	if m := le.Uint32(b[340:]); m != blockSize/512 {
		return nil, fmt.Errorf("%w: metadata blocks of %d sectors", ErrCorrupt, m)
	}
	if s.time > maxTime {
		return nil, fmt.Errorf("%w: superblock has time %d, mappings take at most %d", ErrCorrupt, s.time, maxTime)
	}
	return s, checkGeometry(s.dataBlock)
}

// checkGeometry says why a data block cannot have that many sectors.
func checkGeometry(sectors uint32) error {
	if sectors < 128 || sectors > 2097152 || sectors%128 != 0 {
		return fmt.Errorf("thin pool blocks of %d sectors: must be a multiple of 128 (64 KiB) up to 2097152 (1 GiB)", sectors)
	}
	return nil
}

func parseRoot(b []byte) mapRoot {
	return mapRoot{le.Uint64(b), le.Uint64(b[8:]), le.Uint64(b[16:]), le.Uint64(b[24:])}
}

func (r mapRoot) put(b []byte) {
	for i, v := range []uint64{r.blocks, r.used, r.bitmaps, r.counts} {
		le.PutUint64(b[8*i:], v)
	}
}

func (s *super) encode() []byte {
	b := make([]byte, blockSize)
	le.PutUint32(b[4:], s.flags)
	copy(b[16:], s.uuid[:])
	le.PutUint64(b[32:], superMagic)
	le.PutUint32(b[40:], superVersion)
	le.PutUint32(b[44:], s.time)
	le.PutUint64(b[48:], s.transaction)
	le.PutUint64(b[56:], s.held)
	s.data.put(b[64:])
	s.meta.put(b[192:])
	le.PutUint64(b[320:], s.mapping)
	le.PutUint64(b[328:], s.details)
	le.PutUint32(b[336:], s.dataBlock)
	le.PutUint32(b[340:], blockSize/512)
	le.PutUint64(b[344:], s.metaBlocks)
	le.PutUint32(b[352:], s.compat)
	le.PutUint32(b[356:], s.compR)
	le.PutUint32(b, checksum(b, xorSuper))
	return b
}

// blank reports whether the metadata device was never used.
func blank(b []byte) bool { return bytes.Equal(b, make([]byte, len(b))) }
