package nvmf_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"sync"
	"testing"

	"softiser/blockdev"
	"softiser/initiator"
	"softiser/internal/nvme"
	"softiser/internal/spc"
	"softiser/target"
	"softiser/target/nvmf"
)

func half(f nvme.Fuse, op nvme.Opcode, lba uint64, blocks uint32) nvme.SQE {
	s := rw(op, lba, blocks)
	s.SetFuse(f)
	return s
}

// fused sends both halves of a Compare and Write and returns how they end.
func (q *queue) fused(lba uint64, old, now []byte) (first, second nvme.Status) {
	q.t.Helper()
	a := q.start(half(nvme.FuseFirst, nvme.OpCompare, lba, uint32(len(old)/512)), nil, old)
	b := q.start(half(nvme.FuseSecond, nvme.OpWrite, lba, uint32(len(now)/512)), nil, now)
	return q.status(a), q.status(b)
}

func (q *queue) status(c *command) nvme.Status {
	q.t.Helper()
	e, err := q.result(c)
	if err != nil {
		q.t.Fatal(err)
	}
	return e.Status()
}

// Both halves succeed or neither does, whether their data comes in the capsule or not.
func TestFused(t *testing.T) {
	r := open(t, nil)
	q := r.attach(hostNQN, 10, 1).io[0]
	for i, n := range []int{512, 8192, 16 << 10, 512 << 10} {
		lba := uint64(i * 2048)
		old, now := pattern(n, byte(i)), pattern(n, byte(i+100))
		if err := q.write(lba, old); err != nil {
			t.Fatal(err)
		}
		if a, b := q.fused(lba, now, now); a != nvme.CompareFailure|nvme.DoNotRetry || b != nvme.AbortedFailedFused {
			t.Errorf("%d bytes that differ: %v, %v", n, a, b)
		}
		if got, err := q.readBlocks(lba, n); err != nil || !bytes.Equal(got, old) {
			t.Errorf("%d bytes: a compare that failed has written: %v", n, err)
		}
		if a, b := q.fused(lba, old, now); a != nvme.Success || b != nvme.Success {
			t.Errorf("%d bytes: %v, %v", n, a, b)
		}
		if got, err := q.readBlocks(lba, n); err != nil || !bytes.Equal(got, now) {
			t.Errorf("%d bytes: nothing was written: %v", n, err)
		}
	}
}

// What is refused of a fused operation, and what each half says then.
func TestFusedRefused(t *testing.T) {
	r := open(t, nil)
	h := r.attach(hostNQN, 10, 1)
	q := h.io[0]
	one, two := make([]byte, 512), make([]byte, 1024)
	const blocks = 16 << 20 / 512
	type cmd struct {
		s    nvme.SQE
		data []byte
	}
	first := cmd{half(nvme.FuseFirst, nvme.OpCompare, 0, 1), one}
	other := func(s nvme.SQE) nvme.SQE { s.SetNSID(9); return s }
	dnr := func(s nvme.Status) nvme.Status { return s | nvme.DoNotRetry }
	for _, tt := range []struct {
		name string
		cmds []cmd
		want []nvme.Status
	}{
		{"a second half alone", []cmd{{half(nvme.FuseSecond, nvme.OpWrite, 0, 1), one}}, []nvme.Status{nvme.AbortedMissingFused}},
		{"the first is no Compare", []cmd{{half(nvme.FuseFirst, nvme.OpWrite, 0, 1), one}, {half(nvme.FuseSecond, nvme.OpWrite, 0, 1), one}}, []nvme.Status{dnr(nvme.InvalidOpcode), nvme.AbortedMissingFused}},
		{"the second is no Write", []cmd{first, {half(nvme.FuseSecond, nvme.OpCompare, 0, 1), one}}, []nvme.Status{nvme.AbortedMissingFused, dnr(nvme.InvalidOpcode)}},
		{"something between", []cmd{first, {rw(nvme.OpWrite, 8, 1), one}, {half(nvme.FuseSecond, nvme.OpWrite, 0, 1), one}}, []nvme.Status{nvme.AbortedMissingFused, nvme.Success, nvme.AbortedMissingFused}},
		{"something refused between", []cmd{first, {sqe(func(s *nvme.SQE) { *s = rw(nvme.OpRead, 8, 1); s[1] = 0 }), nil}}, []nvme.Status{nvme.AbortedMissingFused, dnr(nvme.InvalidField)}},
		{"a Fabrics command between", []cmd{first, {sqe(func(s *nvme.SQE) { s.NewPropertyGet(nvme.PropCSTS) }), nil}}, []nvme.Status{nvme.AbortedMissingFused, dnr(nvme.InvalidOpcode)}},
		{"two first halves", []cmd{first, first, {half(nvme.FuseSecond, nvme.OpWrite, 0, 1), one}}, []nvme.Status{nvme.AbortedMissingFused, nvme.Success, nvme.Success}},
		{"no such place", []cmd{{half(3, nvme.OpCompare, 0, 1), one}}, []nvme.Status{dnr(nvme.InvalidField)}},
		{"other blocks", []cmd{first, {half(nvme.FuseSecond, nvme.OpWrite, 1, 1), one}}, []nvme.Status{dnr(nvme.InvalidField), nvme.AbortedFailedFused}},
		{"more blocks", []cmd{first, {half(nvme.FuseSecond, nvme.OpWrite, 0, 2), two}}, []nvme.Status{dnr(nvme.InvalidField), nvme.AbortedFailedFused}},
		{"another namespace", []cmd{first, {other(half(nvme.FuseSecond, nvme.OpWrite, 0, 1)), one}}, []nvme.Status{dnr(nvme.InvalidField), nvme.AbortedFailedFused}},
		{"no such namespace", []cmd{{other(first.s), one}, {other(half(nvme.FuseSecond, nvme.OpWrite, 0, 1)), one}}, []nvme.Status{dnr(nvme.InvalidNamespace), nvme.AbortedFailedFused}},
		{"behind the end", []cmd{{half(nvme.FuseFirst, nvme.OpCompare, blocks, 1), one}, {half(nvme.FuseSecond, nvme.OpWrite, blocks, 1), one}}, []nvme.Status{dnr(nvme.LBAOutOfRange), nvme.AbortedFailedFused}},
		{"the second has too little data", []cmd{{half(nvme.FuseFirst, nvme.OpCompare, 0, 2), two}, {half(nvme.FuseSecond, nvme.OpWrite, 0, 2), one}}, []nvme.Status{nvme.AbortedFailedFused, dnr(nvme.SGLDataLengthInvalid)}},
		{"too long", []cmd{{half(nvme.FuseFirst, nvme.OpCompare, 0, 1025), make([]byte, 1025*512)}, {half(nvme.FuseSecond, nvme.OpWrite, 0, 1025), make([]byte, 1025*512)}}, []nvme.Status{dnr(nvme.AtomicWriteUnit), nvme.AbortedFailedFused}},
	} {
		var l []*command
		for _, c := range tt.cmds {
			l = append(l, q.start(c.s, nil, c.data))
		}
		for i, c := range l {
			if s := q.status(c); s != tt.want[i] {
				t.Errorf("%s: command %d: %v, want %v", tt.name, i, s, tt.want[i])
			}
		}
	}
	var s nvme.SQE
	s.NewIdentify(nvme.CNSController, 0)
	s.SetFuse(nvme.FuseFirst)
	if _, err := h.do(s, make([]byte, 4096), nil); !errors.Is(err, nvme.InvalidField|nvme.DoNotRetry) {
		t.Errorf("a fused admin command: %v", err)
	}
	c, err := nvme.ParseController(h.identify(nvme.CNSController, 0))
	if err != nil || c.FUSES != nvme.FusesCompareWrite {
		t.Errorf("FUSES %x, %v", c.FUSES, err)
	}
	if n, err := nvme.ParseNamespace(h.identify(nvme.CNSNamespace, 1)); err != nil || n.NSFEAT&nvme.FeatOwnAtomics == 0 || n.NACWU != 1023 {
		t.Errorf("%+v, %v", n, err)
	}
}

// A reservation and write protection keep the Write from its blocks, and with it the pair.
func TestFusedReserved(t *testing.T) {
	r := open(t, nil)
	a, b := r.attach("nqn.a", 1, 1).io[0], r.attach("nqn.b", 2, 1).io[0]
	if err := a.reserve(nvme.OpReservationRegister, nvme.RegisterKey, 0, false, 0, 1); err != nil {
		t.Fatal(err)
	}
	if err := a.reserve(nvme.OpReservationAcquire, nvme.AcquireReservation, nvme.WriteExclusive, false, 1, 0); err != nil {
		t.Fatal(err)
	}
	zero := make([]byte, 512)
	if x, y := b.fused(0, zero, zero); x != nvme.AbortedFailedFused || y != nvme.ReservationConflict|nvme.DoNotRetry {
		t.Errorf("against Write Exclusive: %v, %v", x, y)
	}
	if x, y := a.fused(0, zero, zero); x != nvme.Success || y != nvme.Success {
		t.Errorf("the holder: %v, %v", x, y)
	}
}

// A write whose host does not send its data ends when it is aborted, at once.
func TestAbortWithoutData(t *testing.T) {
	r := open(t, nil)
	h := r.attach(hostNQN, 10, 1)
	q := h.io[0]
	c := q.startSilent(rw(nvme.OpWrite, 0, 128), make([]byte, 64<<10))
	<-q.asked
	if e, err := h.abort(c.cid); err != nil || e.DW0() != 0 {
		t.Fatalf("%v, %v", e, err)
	}
	if s := q.status(c); s != nvme.AbortRequested {
		t.Error(s)
	}
}

// abort aborts a command of I/O queue 1.
func (h *host) abort(cid uint16) (*nvme.CQE, error) {
	var s nvme.SQE
	s.Init(nvme.AdminAbort, 0)
	s.SetCDW(10, 1|uint32(cid)<<16)
	return h.do(s, nil, nil)
}

// An abort of either half ends both, and a half whose host leaves is not waited for.
func TestFusedAborted(t *testing.T) {
	r := open(t, nil)
	h := r.attach(hostNQN, 10, 1)
	q := h.io[0]
	for which := range 2 {
		// The host is asked for the first half's data and does not answer.
		data := make([]byte, 64<<10)
		a := q.startSilent(half(nvme.FuseFirst, nvme.OpCompare, 0, 128), data)
		b := q.startSilent(half(nvme.FuseSecond, nvme.OpWrite, 0, 128), data)
		<-q.asked
		e, err := h.abort([]*command{a, b}[which].cid)
		if err != nil || e.DW0() != 0 {
			t.Fatalf("abort: %v, %v", e, err)
		}
		if x, y := q.status(a), q.status(b); x != nvme.AbortRequested || y != nvme.AbortRequested {
			t.Errorf("abort of half %d: %v, %v", which, x, y)
		}
	}
	zero := make([]byte, 512)
	if x, y := q.fused(0, zero, zero); x != nvme.Success || y != nvme.Success {
		t.Errorf("afterwards: %v, %v", x, y)
	}
	q.start(half(nvme.FuseFirst, nvme.OpCompare, 0, 1), nil, zero)
}

// gatedWriter begins a write when it is asked for, and ends it when it is told to.
type gatedWriter struct {
	blockdev.Device
	begun, goOn chan struct{}
}

func (d *gatedWriter) WriteAt(p []byte, off int64) (int, error) {
	d.begun <- struct{}{}
	<-d.goOn
	return d.Device.WriteAt(p, off)
}

// TestFusedAbortedLate: an abort that comes when the device has the data leaves no half that has succeeded
// beside one that has not.
func TestFusedAbortedLate(t *testing.T) {
	d := &gatedWriter{newMem(t, 1<<20), make(chan struct{}), make(chan struct{})}
	r := open(t, func(_ *target.Config, c *nvmf.SubsystemConfig) { c.Namespaces[0].Volume = d })
	h := r.attach(hostNQN, 10, 1)
	q := h.io[0]
	for which := range 2 {
		zero := make([]byte, 512)
		a := q.start(half(nvme.FuseFirst, nvme.OpCompare, 0, 1), nil, zero)
		b := q.start(half(nvme.FuseSecond, nvme.OpWrite, 0, 1), nil, zero)
		<-d.begun
		if e, err := h.abort([]*command{a, b}[which].cid); err != nil || e.DW0() != 0 {
			t.Fatalf("abort: %v, %v", e, err)
		}
		d.goOn <- struct{}{}
		if x, y := q.status(a), q.status(b); x != nvme.AbortedFailedFused || y != nvme.AbortRequested {
			t.Errorf("abort of half %d: %v, %v", which, x, y)
		}
	}
}

// A counter in one block that NVMe raises by fused operations on two queues and SCSI by
// COMPARE AND WRITE loses no step.
func TestFusedAndSCSI(t *testing.T) {
	r := open(t, nil)
	l := r.lun()
	h := r.attach(hostNQN, 10, 2)
	const steps = 60
	next := func(old []byte) []byte {
		now := bytes.Clone(old)
		binary.LittleEndian.PutUint64(now, binary.LittleEndian.Uint64(old)+1)
		return now
	}
	var wg sync.WaitGroup
	for _, q := range h.io {
		wg.Go(func() {
			for n := 0; n < steps; {
				old, err := q.readBlocks(0, 512)
				if err != nil {
					t.Error(err)
					return
				}
				switch a, b := q.fused(0, old, next(old)); {
				case a == nvme.Success && b == nvme.Success:
					n++
				case a != nvme.CompareFailure|nvme.DoNotRetry || b != nvme.AbortedFailedFused:
					t.Errorf("%v, %v", a, b)
					return
				}
			}
		})
	}
	old := make([]byte, 512)
	for n := 0; n < steps; {
		if _, err := l.ReadAt(old, 0); err != nil {
			t.Fatal(err)
		}
		err := l.Do(context.Background(), &initiator.Request{Op: initiator.OpCDB, CDB: []byte{0x89, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0}, Buf: append(bytes.Clone(old), next(old)...)})
		switch e, failed := errors.AsType[*spc.SenseError](err); {
		case err == nil:
			n++
		case !failed || e.Sense.Key != spc.KeyMiscompare: // whether it was done is not known
			t.Fatal(err)
		}
	}
	wg.Wait()
	if _, err := l.ReadAt(old, 0); err != nil || binary.LittleEndian.Uint64(old) != 3*steps {
		t.Errorf("%d steps of %d: %v", binary.LittleEndian.Uint64(old), 3*steps, err)
	}
}
