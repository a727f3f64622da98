package nvmf_test

import (
	"bytes"
	"errors"
	"sync/atomic"
	"testing"

	"softiser/blockdev"
	"softiser/internal/nvme"
	"softiser/internal/nvmetcp"
	"softiser/target"
	"softiser/target/nvmf"
	"softiser/target/volume"
)

// Writes in the capsule and by R2T, short and long, are what is read again, with both
// placements.
func TestReadWrite(t *testing.T) {
	for _, p := range []volume.Placement{volume.PlacementDirect, volume.PlacementVerified} {
		t.Run(p.String(), func(t *testing.T) {
			r := open(t, func(_ *target.Config, s *nvmf.SubsystemConfig) { s.Namespaces[0].Placement = p })
			q := r.attach(hostNQN, 10, 2).io[1]
			for i, n := range []int{512, 1024, 4096, 8192, 8704, 64 << 10, 1 << 20, 4 << 20} {
				want := pattern(n, byte(i))
				if err := q.write(uint64(i), want); err != nil {
					t.Fatalf("%d bytes: %v", n, err)
				}
				got, err := q.readBlocks(uint64(i), n)
				if err != nil || !bytes.Equal(got, want) {
					t.Fatalf("%d bytes are read again: %v", n, err)
				}
			}
		})
	}
}

func TestOtherCommands(t *testing.T) {
	r := open(t, nil)
	q := r.attach(hostNQN, 10, 1).io[0]
	want := pattern(64<<10, 1)
	must := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	must("write", q.write(0, want))
	var s nvme.SQE
	s.Init(nvme.OpFlush, 1)
	_, err := q.do(s, nil, nil)
	must("flush", err)
	s.SetNSID(nvme.NSIDAll)
	_, err = q.do(s, nil, nil)
	must("flush all", err)
	_, err = q.do(rw(nvme.OpCompare, 0, 128), nil, want)
	must("compare", err)
	other := bytes.Clone(want)
	other[60000] ^= 1
	if _, err = q.do(rw(nvme.OpCompare, 0, 128), nil, other); !errors.Is(err, nvme.CompareFailure|nvme.DoNotRetry) {
		t.Errorf("compare with something else: %v", err)
	}
	_, err = q.do(rw(nvme.OpVerify, 0, 1000), nil, nil)
	must("verify", err)
	_, err = q.do(rw(nvme.OpWriteZeroes, 8, 8), nil, nil)
	must("write zeroes", err)
	clear(want[8*512 : 16*512])
	d := s.NewDeallocate(1, 2)
	ranges := nvme.AppendDSMRange(nvme.AppendDSMRange(nil, nvme.BlockRange{LBA: 32, Blocks: 8}), nvme.BlockRange{LBA: 64, Blocks: 8})
	_, err = q.do(*d.SQE, nil, ranges)
	must("deallocate", err)
	clear(want[32*512 : 40*512])
	clear(want[64*512 : 72*512])
	got, err := q.readBlocks(0, len(want))
	must("read", err)
	if !bytes.Equal(got, want) {
		t.Error("the blocks are not what was written")
	}
}

// What is refused, and how.
func TestRefusedCommands(t *testing.T) {
	r := open(t, nil)
	h := r.attach(hostNQN, 10, 1)
	q := h.io[0]
	const blocks = 16 << 20 / 512
	nsid := func(s nvme.SQE, id uint32) nvme.SQE { s.SetNSID(id); return s }
	prp := rw(nvme.OpRead, 0, 1)
	prp[1] &= 0x3F
	protected := rw(nvme.OpRead, 0, 1)
	protected.SetCDW(12, 1<<29)
	page := make([]byte, 512)
	if err := q.write(0, pattern(512, 1)); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name string
		s    nvme.SQE
		in   []byte
		out  []byte
		want nvme.Status
	}{
		{"unknown opcode", rw(0x7E, 0, 1), nil, nil, nvme.InvalidOpcode},
		{"no such namespace", nsid(rw(nvme.OpRead, 0, 1), 2), page, nil, nvme.InvalidNamespace},
		{"namespace 0", nsid(rw(nvme.OpRead, 0, 1), 0), page, nil, nvme.InvalidNamespace},
		{"all namespaces", nsid(rw(nvme.OpRead, 0, 1), nvme.NSIDAll), page, nil, nvme.InvalidNamespace},
		{"behind the end", rw(nvme.OpRead, blocks, 1), page, nil, nvme.LBAOutOfRange},
		{"across the end", rw(nvme.OpWriteZeroes, blocks-1, 2), nil, nil, nvme.LBAOutOfRange},
		{"2^64-1", rw(nvme.OpRead, 1<<64-1, 1), page, nil, nvme.LBAOutOfRange},
		{"less data than blocks", rw(nvme.OpWrite, 0, 2), nil, page, nvme.SGLDataLengthInvalid},
		{"more room than blocks", rw(nvme.OpRead, 0, 1), make([]byte, 1024), nil, nvme.SGLDataLengthInvalid},
		{"no data", rw(nvme.OpWrite, 0, 1), nil, nil, nvme.SGLDataLengthInvalid},
		{"longer than MDTS", rw(nvme.OpRead, 0, 8193), make([]byte, 8193*512), nil, nvme.InvalidField},
		{"a second range behind the end", sqe(func(s *nvme.SQE) { s.NewDeallocate(1, 2) }), nil,
			nvme.AppendDSMRange(nvme.AppendDSMRange(nil, nvme.BlockRange{LBA: 0, Blocks: 8}), nvme.BlockRange{LBA: blocks, Blocks: 1}), nvme.LBAOutOfRange},
		{"parameters longer than MDTS", sqe(func(s *nvme.SQE) { s.NewDeallocate(1, 1) }), nil, make([]byte, 4<<20+512), nvme.InvalidField},
		{"keys longer than MDTS", sqe(func(s *nvme.SQE) { s.NewReservation(nvme.OpReservationRegister, 1, nvme.RegisterKey, 0, false) }), nil, make([]byte, 4<<20+512), nvme.InvalidField},
		{"PRP", prp, page, nil, nvme.InvalidField},
		{"protection", protected, page, nil, nvme.InvalidField},
	} {
		if _, err := q.do(tt.s, tt.in, tt.out); !errors.Is(err, tt.want|nvme.DoNotRetry) {
			t.Errorf("%s: %v, want %v", tt.name, err, tt.want)
		}
	}
	if got, err := q.readBlocks(0, 512); err != nil || !bytes.Equal(got, pattern(512, 1)) {
		t.Errorf("block 0 is another: %v", err)
	}
	cc := sqe(func(s *nvme.SQE) {
		s.NewPropertySet(nvme.PropCC, uint64(nvme.NewConfig(nvme.CommandSetAll, false)))
		s[40] = 1
	})
	if _, err := h.do(cc, nil, nil); !errors.Is(err, nvme.InvalidField|nvme.DoNotRetry) {
		t.Errorf("CC with 8 bytes: %v", err)
	}
}

// Data in the capsule goes with a command that carries some, begins where the capsule's does, and is all of it.
func TestCapsuleData(t *testing.T) {
	r := open(t, nil)
	q := r.attach(hostNQN, 10, 1).io[0]
	page := pattern(512, 1)
	for i, tt := range []struct {
		name   string
		op     nvme.Opcode
		offset uint64
		length uint32
		data   []byte
		want   nvme.Status
	}{
		{"good", nvme.OpWrite, 0, 512, page, nvme.Success},
		{"at an offset", nvme.OpWrite, 512, 512, page, nvme.SGLOffsetInvalid | nvme.DoNotRetry},
		{"more than there is", nvme.OpWrite, 0, 512, page[:256], nvme.SGLDataLengthInvalid | nvme.DoNotRetry},
		{"less than there is", nvme.OpWrite, 0, 512, pattern(1024, 1), nvme.SGLDataLengthInvalid | nvme.DoNotRetry},
		{"none", nvme.OpWrite, 0, 512, nil, nvme.SGLDataLengthInvalid | nvme.DoNotRetry},
		{"of a Read", nvme.OpRead, 0, 512, page, nvme.InvalidField | nvme.DoNotRetry},
	} {
		c := &command{cid: uint16(1000 + i), done: make(chan struct{})}
		s := rw(tt.op, 0, 1)
		s.SetCID(c.cid)
		s.SGL().SetBlock(nvme.SGLInCapsule, tt.offset, tt.length)
		q.mu.Lock()
		q.wait[c.cid] = c
		q.mu.Unlock()
		var p nvmetcp.CapsuleCmd
		*p.SQE() = s
		p.SetHeader(q.digests, uint32(len(tt.data)), 0)
		q.send(p[:], tt.data)
		if st := q.status(c); st != tt.want {
			t.Errorf("%s: %v, want %v", tt.name, st, tt.want)
		}
	}
}

// Nobody writes to a namespace that is read only.
func TestReadOnly(t *testing.T) {
	r := open(t, func(_ *target.Config, s *nvmf.SubsystemConfig) { s.Namespaces[0].ReadOnly = true })
	h := r.attach(hostNQN, 10, 1)
	q := h.io[0]
	for _, op := range []nvme.Opcode{nvme.OpWrite, nvme.OpWriteZeroes} {
		var out []byte
		if op == nvme.OpWrite {
			out = make([]byte, 512)
		}
		if _, err := q.do(rw(op, 0, 1), nil, out); !errors.Is(err, nvme.NamespaceWriteProtect|nvme.DoNotRetry) {
			t.Errorf("%s: %v", op.IOName(), err)
		}
	}
	if _, err := q.readBlocks(0, 512); err != nil {
		t.Error(err)
	}
	var s nvme.SQE
	s.Init(nvme.OpFlush, 1)
	if _, err := q.do(s, nil, nil); err != nil {
		t.Errorf("flush: %v", err)
	}
	n, err := nvme.ParseNamespace(h.identify(nvme.CNSNamespace, 1))
	if err != nil || n.NSATTR != nvme.NamespaceProtected {
		t.Errorf("%+v, %v", n, err)
	}
}

// lateWriter has a write cache, counts ranges that are made durable, and turns the cache of a volume off before it writes,
// unless it is to keep it.
type lateWriter struct {
	blockdev.Device
	keep    bool
	cached  atomic.Pointer[volume.Volume]
	flushes atomic.Int64
}

func (d *lateWriter) Info() blockdev.Info {
	i := d.Device.Info()
	i.WriteCache = true
	return i
}

func (d *lateWriter) WriteAt(p []byte, off int64) (int, error) {
	if !d.keep {
		d.cached.Load().SetWriteCache(false)
	}
	return d.Device.WriteAt(p, off)
}

func (d *lateWriter) FlushRange(off, n int64) error {
	d.flushes.Add(1)
	return d.Device.FlushRange(off, n)
}

// TestWhetherThereIsACache: the namespace tells what the volume does (SCSI's WCE), and of the controller one is to be expected.
func TestWhetherThereIsACache(t *testing.T) {
	for _, cached := range []bool{false, true} { // of memory there is none
		r := open(t, func(_ *target.Config, s *nvmf.SubsystemConfig) {
			if cached {
				s.Namespaces[0].Volume = &lateWriter{Device: s.Namespaces[0].Volume}
			}
		})
		h := r.attach(hostNQN, 10, 1)
		if none := h.identify(nvme.CNSIndependentNamespace, 1)[0]&nvme.FeatNoCache != 0; none == cached {
			t.Errorf("with a cache: %v; the namespace says that there is none: %v", cached, none)
		}
		if c, err := nvme.ParseController(h.identify(nvme.CNSController, 0)); err != nil || c.VWC&nvme.CachePresent == 0 {
			t.Errorf("with a cache: %v; the controller's VWC is %x, %v", cached, c.VWC, err)
		}
	}
}

// TestCacheTurnedOffMeanwhile: a Write that began with the write cache on, and whose blocks get there when it
// has been turned off and flushed, by somebody who has the volume as a LUN, is durable when it is answered.
func TestCacheTurnedOffMeanwhile(t *testing.T) {
	for name, n := range map[string]int{"in the capsule": 4096, "by R2T": 64 << 10} {
		t.Run(name, func(t *testing.T) {
			var d *lateWriter
			r := open(t, func(_ *target.Config, s *nvmf.SubsystemConfig) {
				d = &lateWriter{Device: s.Namespaces[0].Volume}
				s.Namespaces[0].Volume, s.Namespaces[0].Placement = d, volume.PlacementVerified
			})
			d.cached.Store(r.srv.Volume(d))
			if err := r.attach(hostNQN, 10, 2).io[1].write(0, pattern(n, 1)); err != nil {
				t.Fatal(err)
			}
			if d.flushes.Load() == 0 {
				t.Error("the cache is off, and the blocks may be lost")
			}
		})
	}
}

// TestDeallocateWithoutACache: while the write cache is off, blocks that were deallocated do not come back with the power.
func TestDeallocateWithoutACache(t *testing.T) {
	for _, cached := range []bool{true, false} {
		var d *lateWriter
		r := open(t, func(_ *target.Config, s *nvmf.SubsystemConfig) {
			d = &lateWriter{Device: s.Namespaces[0].Volume}
			s.Namespaces[0].Volume = d
		})
		r.srv.Volume(d).SetWriteCache(cached)
		var s nvme.SQE
		s.Init(nvme.OpDatasetManagement, 1)
		s.SetCDW(11, 4)
		if _, err := r.attach(hostNQN, 10, 2).io[1].do(s, nil, nvme.AppendDSMRange(nil, nvme.BlockRange{LBA: 32, Blocks: 8})); err != nil {
			t.Fatal(err)
		}
		if flushed := d.flushes.Load() > 0; flushed == cached {
			t.Errorf("with the cache on %v: flushed %v", cached, flushed)
		}
	}
}
