package nvmf_test

import (
	"bytes"
	"context"
	"math/rand/v2"
	"testing"

	"softiser/blockdev/crashlog"
	"softiser/initiator"
	"softiser/internal/nvme"
	"softiser/internal/spc"
	"softiser/target"
	"softiser/target/nvmf"
)

const lossyBlocks = 64 // of a volume whose power fails

// lossyStep is a command for n blocks from first on, and what is to become of them.
type lossyStep struct {
	first, n int
	fua      bool
	was, to  []byte // a block of each
	data     []byte // blocks of the step's own number
	durable  bool   // the command makes what it writes durable
	flushed  []byte // its blocks, and those of all others, that it makes durable; nil: none
}

// lossy is a volume that is a namespace and a LUN at once.
type lossy struct {
	q *queue
	l *initiator.LUN
	r *rand.Rand
}

// nvme sends a command with the range of a step.
func (w *lossy) nvme(s *lossyStep, op nvme.Opcode, out []byte) error {
	c := rw(op, uint64(s.first), uint32(s.n))
	c.ReadWrite().SetFUA(s.fua)
	c.ReadWrite().SetDeallocate(op == nvme.OpWriteZeroes && w.r.IntN(2) == 0)
	_, err := w.q.do(c, nil, out)
	return err
}

func (w *lossy) cdb(cdb, out []byte) error {
	return w.l.Do(context.Background(), &initiator.Request{Op: initiator.OpCDB, CDB: cdb, Buf: out})
}

func blocksOf(bs []byte) (p []byte) {
	for _, b := range bs {
		p = append(p, bytes.Repeat([]byte{b}, 512)...)
	}
	return p
}

// lossyCommands are what both wires have that writes or makes durable.
var lossyCommands = []struct {
	name string
	do   func(w *lossy, s *lossyStep) error
}{
	{"Write", func(w *lossy, s *lossyStep) error { return w.nvme(s, nvme.OpWrite, s.data) }},
	{"Write Zeroes", func(w *lossy, s *lossyStep) error { clear(s.to); return w.nvme(s, nvme.OpWriteZeroes, nil) }},
	{"Dataset Management", func(w *lossy, s *lossyStep) error {
		clear(s.to)
		s.durable = false
		var c nvme.SQE
		c.NewDeallocate(1, 1)
		_, err := w.q.do(c, nil, nvme.AppendDSMRange(nil, nvme.BlockRange{LBA: uint64(s.first), Blocks: uint64(s.n)}))
		return err
	}},
	{"Copy", func(w *lossy, s *lossyStep) error { // of its first block to the last
		s.to = s.was[:1]
		s.first += s.n - 1
		c, b := copyCommand(uint64(s.first), nvme.BlockRange{LBA: uint64(s.first - s.n + 1), Blocks: 1})
		if s.fua {
			c.SetCDW(12, c.CDW(12)|1<<30)
		}
		_, err := w.q.do(c, nil, b)
		return err
	}},
	{"Compare and Write", func(w *lossy, s *lossyStep) error {
		a := w.q.start(half(nvme.FuseFirst, nvme.OpCompare, uint64(s.first), uint32(s.n)), nil, blocksOf(s.was))
		c := half(nvme.FuseSecond, nvme.OpWrite, uint64(s.first), uint32(s.n))
		c.ReadWrite().SetFUA(s.fua)
		b := w.q.start(c, nil, s.data)
		if x := w.q.status(a); x != nvme.Success {
			return x
		}
		if y := w.q.status(b); y != nvme.Success {
			return y
		}
		return nil
	}},
	{"Flush", func(w *lossy, s *lossyStep) error {
		s.flushAll()
		var c nvme.SQE
		c.Init(nvme.OpFlush, 1)
		if s.fua {
			c.SetNSID(nvme.NSIDAll)
		}
		_, err := w.q.do(c, nil, nil)
		return err
	}},
	{"WRITE", func(w *lossy, s *lossyStep) error {
		return w.cdb(spc.AppendWrite(nil, uint64(s.first), uint32(s.n), s.fua), s.data)
	}},
	{"WRITE SAME", func(w *lossy, s *lossyStep) error {
		s.durable = false
		return w.cdb(spc.AppendWriteSame16(nil, uint64(s.first), uint32(s.n), 0), s.data[:512])
	}},
	{"UNMAP", func(w *lossy, s *lossyStep) error {
		clear(s.to)
		s.durable = false
		list := spc.AppendUnmapList(nil, []spc.Range{{LBA: uint64(s.first), Blocks: uint32(s.n)}})
		return w.cdb(spc.AppendUnmap(nil, uint16(len(list))), list)
	}},
	{"COMPARE AND WRITE", func(w *lossy, s *lossyStep) error {
		return w.cdb(spc.AppendCompareAndWrite(nil, uint64(s.first), uint8(s.n), s.fua), append(blocksOf(s.was), s.data...))
	}},
	{"ORWRITE", func(w *lossy, s *lossyStep) error {
		for i := range s.to {
			s.to[i] |= s.was[i]
		}
		return w.cdb(spc.AppendOrWrite16(nil, uint64(s.first), uint32(s.n), s.fua), s.data)
	}},
	{"WRITE AND VERIFY", func(w *lossy, s *lossyStep) error {
		s.durable = true
		return w.cdb(spc.AppendWriteVerify(nil, uint64(s.first), uint32(s.n), 1), s.data)
	}},
	{"SYNCHRONIZE CACHE of a range", func(w *lossy, s *lossyStep) error {
		s.to = s.to[:0]
		s.flushed = []byte{byte(s.first), byte(s.first + s.n)}
		return w.cdb(spc.AppendSyncCache(nil, uint64(s.first), uint32(s.n), false), nil)
	}},
	{"SYNCHRONIZE CACHE", func(w *lossy, s *lossyStep) error { s.flushAll(); return w.l.Flush() }},
}

func (s *lossyStep) flushAll() { s.to, s.flushed = s.to[:0], []byte{0, lossyBlocks} }

// TestPowerLoss: what either wire has been told is durable is in every state that a loss of power may leave,
// whichever of them has written it, flushed it or turned the cache off.
func TestPowerLoss(t *testing.T) {
	t.Run("cache", func(t *testing.T) { powerLoss(t, true) })
	t.Run("no cache", func(t *testing.T) { powerLoss(t, false) })
}

func powerLoss(t *testing.T, cached bool) {
	d, err := crashlog.New(lossyBlocks*512, 512)
	if err != nil {
		t.Fatal(err)
	}
	r := open(t, func(_ *target.Config, c *nvmf.SubsystemConfig) { c.Namespaces[0].Volume = d })
	r.vol = d
	w := &lossy{q: r.attach(hostNQN, 1, 1).io[0], l: r.lun(), r: rand.New(rand.NewPCG(3, 5))}
	if !cached { // caching page with WCE clear
		page := append(make([]byte, 4), append([]byte{0x08, 0x12}, make([]byte, 0x12)...)...)
		if err := w.cdb(spc.AppendModeSelect6(nil, false, byte(len(page))), page); err != nil {
			t.Fatal(err)
		}
	}
	var may [lossyBlocks][]byte // what each block may hold, oldest first
	for b := range may {
		may[b] = []byte{0}
	}
	lost := 0
	for i := byte(1); i <= 200; i++ {
		s := lossyStep{first: w.r.IntN(lossyBlocks - 1), fua: w.r.IntN(3) == 0}
		s.n = 2 + w.r.IntN(min(20, lossyBlocks-s.first-1))
		s.to = bytes.Repeat([]byte{i}, s.n)
		s.data, s.durable = blocksOf(s.to), s.fua
		for _, c := range may[s.first:][:s.n] {
			s.was = append(s.was, c[len(c)-1])
		}
		c := lossyCommands[w.r.IntN(len(lossyCommands))]
		if err := c.do(w, &s); err != nil {
			t.Fatalf("%s of %d at %d: %v", c.name, s.n, s.first, err)
		}
		settle := func(b int) { may[b] = may[b][len(may[b])-1:] }
		for k, to := range s.to {
			may[s.first+k] = append(bytes.Clone(may[s.first+k]), to)
			if s.durable || !cached {
				settle(s.first + k)
			}
		}
		for b := 0; s.flushed != nil && b < lossyBlocks; b++ {
			if b >= int(s.flushed[0]) && b < int(s.flushed[1]) {
				settle(b)
			}
		}
		for im := range d.States(d.Now(), 20, 7) {
			for b, all := range may {
				got := im.Bytes()[b*512]
				if !bytes.Contains(all, []byte{got}) {
					t.Fatalf("behind %s of %d at %d, FUA %v: block %d holds %d, may hold %v", c.name, s.n, s.first, s.fua, b, got, all)
				}
				if got != all[len(all)-1] {
					lost++
				}
			}
		}
	}
	if lost > 0 != cached { // else it shows nothing
		t.Errorf("%d blocks lost", lost)
	}
}
