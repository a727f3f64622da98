package nvmf_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"path/filepath"
	"testing"

	"softiser/blockdev/file"
	"softiser/initiator"
	"softiser/internal/nvme"
	"softiser/internal/spc"
	"softiser/target"
	"softiser/target/nvmf"
)

const unrecovered = nvme.UnrecoveredRead | nvme.DoNotRetry

func (q *queue) mark(lba uint64, blocks uint32) error {
	_, err := q.do(rw(nvme.OpWriteUncorrectable, lba, blocks), nil, nil)
	return err
}

// cdb sends a command without data to a LUN, or with out; the error is its sense.
func cdb(l *initiator.LUN, out []byte, c ...byte) error {
	return l.Do(context.Background(), &initiator.Request{Op: initiator.OpCDB, CDB: c, Buf: out})
}

// cdb16 makes a CDB of 16 bytes for blocks.
func cdb16(op, flags byte, lba uint64, blocks uint32) []byte {
	c := append([]byte{op, flags}, make([]byte, 14)...)
	binary.BigEndian.PutUint64(c[2:], lba)
	binary.BigEndian.PutUint32(c[10:], blocks)
	return c
}

// markedAt reports whether err is the sense for a block that has been marked.
func markedAt(err error, lba uint64) bool {
	e, ok := errors.AsType[*spc.SenseError](err)
	return ok && e.Sense.Key == spc.KeyMedium && e.Sense.ASC == spc.ASCMarkedBad && e.Sense.InfoValid && e.Sense.Info == lba
}

// TestMarkModel marks, writes and reads at random, over both wires and through restarts, and
// compares with a map of blocks.
func TestMarkModel(t *testing.T) {
	const blocks = 64
	dir := t.TempDir()
	rnd := rand.New(rand.NewPCG(14, 2))
	var data [blocks][]byte
	var bad [blocks]bool
	for i := range data {
		data[i] = make([]byte, 512)
	}
	for life := range 3 {
		t.Run("", func(t *testing.T) {
			r := kept(t, dir)
			l, q := r.lun(), r.attach(hostNQN, 10, 1).io[0]
			for step := range 150 {
				lba := rnd.Uint64N(blocks)
				n := 1 + rnd.Uint64N(min(16, blocks-lba))
				first, any := uint64(0), false
				for i := lba; i < lba+n && !any; i++ {
					first, any = i, bad[i]
				}
				p, in := pattern(int(n)*512, byte(step)), make([]byte, n*512)
				var err error
				kind := rnd.IntN(12)
				switch kind {
				case 0, 1:
					err = q.mark(lba, uint32(n))
				case 2:
					err = q.write(lba, p)
				case 3:
					_, err = l.WriteAt(p, int64(lba)*512)
				case 4:
					_, err = q.do(rw(nvme.OpWriteZeroes, lba, uint32(n)), nil, nil)
					clear(p)
				case 5: // WRITE SAME of zeroes
					err = cdb(l, nil, cdb16(0x93, 1, lba, uint32(n))...)
					clear(p)
				case 6, 7:
					in, err = q.readBlocks(lba, len(in))
				case 8, 9:
					_, err = l.ReadAt(in, int64(lba)*512)
				case 10:
					_, err = q.do(rw(nvme.OpVerify, lba, uint32(n)), nil, nil)
				case 11: // VERIFY
					err = cdb(l, nil, cdb16(0x8F, 0, lba, uint32(n))...)
				}
				nvmeRead, scsiRead := kind == 6 || kind == 7 || kind == 10, kind == 8 || kind == 9 || kind == 11
				switch {
				case any && nvmeRead:
					if !errors.Is(err, unrecovered) {
						t.Fatalf("life %d, step %d: NVMe %d of [%d, +%d), of which %d is marked: %v", life, step, kind, lba, n, first, err)
					}
				case any && scsiRead:
					if !markedAt(err, first) {
						t.Fatalf("life %d, step %d: SCSI %d of [%d, +%d), of which %d is marked: %v", life, step, kind, lba, n, first, err)
					}
				case err != nil:
					t.Fatalf("life %d, step %d: kind %d of [%d, +%d): %v", life, step, kind, lba, n, err)
				}
				for i := range n {
					b := i * 512
					switch {
					case kind < 2:
						bad[lba+i] = true
					case kind < 6:
						bad[lba+i], data[lba+i] = false, bytes.Clone(p[b:b+512])
					case kind < 10 && !any && !bytes.Equal(in[b:b+512], data[lba+i]):
						t.Fatalf("life %d, step %d: block %d is not what was written", life, step, lba+i)
					}
				}
			}
		})
	}
}

// TestMarkedBlocks: whatever looks at a marked block fails, on both wires; Copy and
// deallocation of it make it readable where they write.
func TestMarkedBlocks(t *testing.T) {
	r := kept(t, t.TempDir())
	l, h := r.lun(), r.attach(hostNQN, 10, 1)
	q := h.io[0]
	block := pattern(512, 3)
	if err := errors.Join(q.write(8, pattern(8*512, 1)), q.mark(9, 1)); err != nil {
		t.Fatal(err)
	}
	var nsid2 nvme.SQE
	nsid2.Init(nvme.OpWriteUncorrectable, 2)
	var cp nvme.SQE
	cp.NewCopy(1, 100, 1)
	for name, err := range map[string]error{
		"Compare": func() error { _, err := q.do(rw(nvme.OpCompare, 9, 1), nil, block); return err }(),
		"Copy": func() error {
			_, err := q.do(cp, nil, nvme.AppendCopyRange(nil, nvme.BlockRange{LBA: 8, Blocks: 4}))
			return err
		}(),
		"fused": func() error { first, _ := q.fused(9, block, block); return first }(),
	} {
		if !errors.Is(err, unrecovered) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, c := range map[string]struct {
		cdb []byte
		out []byte
	}{
		"COMPARE AND WRITE": {append(append([]byte{0x89}, make([]byte, 8)...), 9, 0, 0, 0, 1, 0, 0), make([]byte, 1024)},
		"PRE-FETCH":         {cdb16(0x90, 0, 9, 1), nil},
		"VERIFY":            {cdb16(0x8F, 2, 9, 1), block},
	} {
		if err := cdb(l, c.out, c.cdb...); !markedAt(err, 9) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, c := range map[string]struct {
		s    nvme.SQE
		want nvme.Status
	}{
		"behind the end":    {rw(nvme.OpWriteUncorrectable, 2048, 1), nvme.LBAOutOfRange | nvme.DoNotRetry},
		"over the end":      {rw(nvme.OpWriteUncorrectable, 2047, 2), nvme.LBAOutOfRange | nvme.DoNotRetry},
		"another namespace": {nsid2, nvme.InvalidNamespace | nvme.DoNotRetry},
	} {
		if _, err := q.do(c.s, nil, nil); !errors.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	var trim nvme.SQE
	trim.NewDeallocate(1, 1)
	if _, err := q.do(trim, nil, nvme.AppendDSMRange(nil, nvme.BlockRange{LBA: 8, Blocks: 8})); err != nil {
		t.Fatal(err)
	}
	if _, err := q.readBlocks(8, 8*512); err != nil {
		t.Errorf("deallocated: %v", err)
	}
	if e := h.log(nvme.LogCommandEffects, nvme.EffectsLen); e[1024+4*int(nvme.OpWriteUncorrectable)] != 3 {
		t.Errorf("effects %x", e[1024+4*int(nvme.OpWriteUncorrectable)])
	}
	if c, err := nvme.ParseController(h.identify(nvme.CNSController, 0)); err != nil || c.ONCS&nvme.HasUncorrectable == 0 {
		t.Errorf("ONCS %x, %v", c.ONCS, err)
	}
}

// TestMarksForbidden: a mark is a write, to reservations and to write protection; where one
// namespace of two can keep marks it is offered, and refused for the other.
func TestMarksForbidden(t *testing.T) {
	dir := t.TempDir()
	d, err := file.Open(file.Config{Path: filepath.Join(dir, "disk"), Size: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	r := open(t, func(c *target.Config, s *nvmf.SubsystemConfig) {
		c.StateDir = dir
		s.Namespaces[0].Volume = d
		s.Namespaces = append(s.Namespaces, nvmf.NamespaceConfig{NSID: 2, Volume: newMem(t, 1<<20), ReadOnly: true})
	})
	h := r.attach(hostNQN, 10, 1)
	q := h.io[0]
	other := rw(nvme.OpWriteUncorrectable, 0, 1)
	other.SetNSID(2)
	if _, err := q.do(other, nil, nil); !errors.Is(err, nvme.NamespaceWriteProtect|nvme.DoNotRetry) {
		t.Errorf("read-only: %v", err)
	}
	const otherNQN = "nqn.2014-08.org.nvmexpress:uuid:00000000-0000-0000-0000-00000000000b"
	two := r.attach(otherNQN, 11, 1).io[0]
	if err := errors.Join(q.reserve(nvme.OpReservationRegister, 0, 0, false, 0, 1), q.reserve(nvme.OpReservationAcquire, 0, 1, false, 1, 0)); err != nil {
		t.Fatal(err)
	}
	if err := two.mark(0, 1); !errors.Is(err, nvme.ReservationConflict|nvme.DoNotRetry) {
		t.Errorf("reserved: %v", err)
	}
	if err := q.mark(0, 1); err != nil {
		t.Error(err)
	}
	if _, err := two.readBlocks(0, 512); !errors.Is(err, unrecovered) {
		t.Errorf("the other host: %v", err)
	}
}
