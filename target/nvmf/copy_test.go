package nvmf_test

import (
	"bytes"
	"errors"
	"slices"
	"testing"

	"softiser/internal/await"
	"softiser/internal/nvme"
	"softiser/target"
	"softiser/target/nvmf"
	"softiser/target/volume"
)

// copyCommand makes a Copy of ranges to slba, with its parameters.
func copyCommand(slba uint64, ranges ...nvme.BlockRange) (nvme.SQE, []byte) {
	var s nvme.SQE
	s.NewCopy(1, slba, len(ranges))
	var b []byte
	for _, r := range ranges {
		b = nvme.AppendCopyRange(b, r)
	}
	return s, b
}

// The ranges follow each other at the destination.
func TestCopy(t *testing.T) {
	r := open(t, nil)
	q := r.attach(hostNQN, 10, 1).io[0]
	data := pattern(4<<20, 1)
	if err := q.write(0, data); err != nil {
		t.Fatal(err)
	}
	for _, fua := range []bool{false, true} {
		s, b := copyCommand(16384, nvme.BlockRange{LBA: 8, Blocks: 1}, nvme.BlockRange{LBA: 4096, Blocks: 4096}, nvme.BlockRange{LBA: 0, Blocks: 8})
		if fua {
			s, b = copyCommand(10000, nvme.BlockRange{LBA: 7, Blocks: 33})
			s.SetCDW(12, s.CDW(12)|1<<30)
		}
		if _, err := q.do(s, nil, b); err != nil {
			t.Fatal(err)
		}
	}
	want := bytes.Join([][]byte{data[8*512 : 9*512], data[4096*512 : 8192*512], data[:8*512]}, nil)
	if got, err := q.readBlocks(16384, len(want)); err != nil || !bytes.Equal(got, want) {
		t.Errorf("the copy is another: %v", err)
	}
	if got, err := q.readBlocks(10000, 33*512); err != nil || !bytes.Equal(got, data[7*512:40*512]) {
		t.Errorf("the copy with FUA is another: %v", err)
	}
}

func TestCopyRefused(t *testing.T) {
	r := open(t, nil)
	h := r.attach(hostNQN, 10, 1)
	q := h.io[0]
	const blocks = 16 << 20 / 512
	n, err := nvme.ParseNamespace(h.identify(nvme.CNSNamespace, 1))
	if err != nil || n.MSSRL != 65535 || n.MCL != 262144 || n.MSRC != 127 {
		t.Errorf("limits %d, %d, %d, %v", n.MSSRL, n.MCL, n.MSRC, err)
	}
	c, err := nvme.ParseController(h.identify(nvme.CNSController, 0))
	if err != nil || c.ONCS&nvme.HasCopy == 0 || c.OCFS != nvme.CopyFormat0 {
		t.Errorf("%x, %x, %v", c.ONCS, c.OCFS, err)
	}
	one := nvme.BlockRange{LBA: 0, Blocks: 1}
	many := make([]nvme.BlockRange, 129)
	for i := range many {
		many[i] = one
	}
	edit := func(s nvme.SQE, cdw int, v uint32) nvme.SQE { s.SetCDW(cdw, s.CDW(cdw)|v); return s }
	for _, tt := range []struct {
		name   string
		to     uint64
		ranges []nvme.BlockRange
		change func(nvme.SQE) nvme.SQE
		want   nvme.Status
		at     uint32
	}{
		{"format 1", 100, []nvme.BlockRange{one}, func(s nvme.SQE) nvme.SQE { return edit(s, 12, 1<<8) }, nvme.InvalidField, 0},
		{"protection", 100, []nvme.BlockRange{one}, func(s nvme.SQE) nvme.SQE { return edit(s, 12, 1<<29) }, nvme.InvalidField, 0},
		{"too many ranges", 100, many, nil, nvme.CommandSizeExceeded, 0},
		{"too long a range", 100, []nvme.BlockRange{{LBA: 0, Blocks: 65536}}, nil, nvme.CommandSizeExceeded, 0},
		{"too much in all", 100, slices.Repeat([]nvme.BlockRange{{LBA: 0, Blocks: blocks}}, 9), nil, nvme.CommandSizeExceeded, 0},
		{"a source behind the end", 100, []nvme.BlockRange{one, {LBA: blocks, Blocks: 1}}, nil, nvme.LBAOutOfRange, 0},
		{"a destination behind the end", blocks - 1, []nvme.BlockRange{one, one}, nil, nvme.LBAOutOfRange, 0},
		{"overlap", 100, []nvme.BlockRange{{LBA: 99, Blocks: 2}}, nil, nvme.InvalidField, 0},
	} {
		s, b := copyCommand(tt.to, tt.ranges...)
		if tt.change != nil {
			s = tt.change(s)
		}
		if e, err := q.do(s, nil, b); !errors.Is(err, tt.want|nvme.DoNotRetry) || e.DW0() != tt.at {
			t.Errorf("%s: %v, %v", tt.name, err, e)
		}
	}
	s, b := copyCommand(100, nvme.BlockRange{LBA: 99, Blocks: 1}, nvme.BlockRange{LBA: 102, Blocks: 1})
	if _, err := q.do(s, nil, b); err != nil {
		t.Errorf("sources next to the destination: %v", err)
	}
	s, b = copyCommand(100, one, one)
	if _, err := q.do(s, nil, b[:32]); !errors.Is(err, nvme.SGLDataLengthInvalid|nvme.DoNotRetry) {
		t.Errorf("too little data: %v", err)
	}
}

// A Copy with FUA is durable when it is answered; without it the cache may have the blocks.
func TestCopyFUA(t *testing.T) {
	for _, fua := range []bool{false, true} {
		var d *lateWriter
		r := open(t, func(_ *target.Config, s *nvmf.SubsystemConfig) {
			d = &lateWriter{Device: s.Namespaces[0].Volume, keep: true}
			s.Namespaces[0].Volume = d
		})
		s, b := copyCommand(1000, nvme.BlockRange{LBA: 0, Blocks: 8})
		if fua {
			s.SetCDW(12, s.CDW(12)|1<<30)
		}
		if _, err := r.attach(hostNQN, 10, 1).io[0].do(s, nil, b); err != nil {
			t.Fatal(err)
		}
		if flushed := d.flushes.Load() > 0; flushed != fua {
			t.Errorf("FUA %v: flushed %v", fua, flushed)
		}
	}
}

// A reservation of another host stands against a copy, which would write.
func TestCopyReserved(t *testing.T) {
	r := open(t, nil)
	a, b := r.attach("nqn.a", 1, 1).io[0], r.attach("nqn.b", 2, 1).io[0]
	if err := a.reserve(nvme.OpReservationRegister, nvme.RegisterKey, 0, false, 0, 1); err != nil {
		t.Fatal(err)
	}
	if err := a.reserve(nvme.OpReservationAcquire, nvme.AcquireReservation, nvme.WriteExclusive, false, 1, 0); err != nil {
		t.Fatal(err)
	}
	s, p := copyCommand(100, nvme.BlockRange{LBA: 0, Blocks: 1})
	if _, err := b.do(s, nil, p); !errors.Is(err, nvme.ReservationConflict|nvme.DoNotRetry) {
		t.Error(err)
	}
	if _, err := a.do(s, nil, p); err != nil {
		t.Error(err)
	}
}

// A Copy waits for the rate limit of its volume as reads and writes do.
func TestCopyIsLimited(t *testing.T) {
	r := open(t, func(_ *target.Config, s *nvmf.SubsystemConfig) { s.Namespaces[0].QoS = volume.QoS{IOPS: 1e-6} })
	q := r.attach(hostNQN, 10, 1).io[0]
	// The bucket has enough for the first range, read and written, and then none.
	s, b := copyCommand(1000, nvme.BlockRange{LBA: 0, Blocks: 8}, nvme.BlockRange{LBA: 8, Blocks: 8})
	c := q.start(s, nil, b)
	v := r.srv.Volume(r.vol)
	await.True(t, "the copy has been begun", func() bool { return v.Copies() == 1 })
	if _, err := q.do(rw(nvme.OpVerify, 0, 1), nil, nil); err != nil { // which has no rate
		t.Error(err)
	}
	select {
	case <-c.done:
		t.Error("the copy has ended")
	default:
	}
	v.SetQoS(volume.QoS{})
	if e, err := q.result(c); err != nil || !e.Status().OK() {
		t.Errorf("%+v, %v", e, err)
	}
}
