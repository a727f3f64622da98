package scsi

import (
	"bytes"
	"encoding/binary"
	"io"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"softiser/internal/await"
	"softiser/internal/spc"

	"softiser/blockdev"
	"softiser/blockdev/faulty"
	"softiser/target/volume"
)

func TestVerify(t *testing.T) {
	r := newRig(t, Config{})
	data := fill(8*512, 1)
	r.do(spc.AppendWrite(nil, 0, 8, false), data, 0).good()
	r.do(spc.AppendVerify(nil, 0, 8, 0), nil, 0).good()
	r.do(spc.AppendVerify(nil, 0, 8, 1), data, 0).good()
	bad := append([]byte(nil), data...)
	bad[515] ^= 1
	if got := r.do(spc.AppendVerify(nil, 0, 8, 1), bad, 0).sense(spc.KeyMiscompare, spc.ASCMiscompare); !got.sd.InfoValid || got.sd.Info != 515 {
		t.Errorf("information %+v, want offset 515", got.sd)
	}
	r.do(spc.AppendVerify(nil, 0, 8, 2), data, 0).illegal(spc.ASCInvalidFieldInCDB)
	r.do(spc.AppendVerify(nil, 0, 8, 1), data[:512], 0).illegal(spc.ASCInvalidFieldInIU)
	// BYTCHK 11b: one block for all.
	same := bytes.Repeat(data[:512], 8)
	r.do(spc.AppendWrite(nil, 16, 8, false), same, 0).good()
	r.do(spc.AppendVerify(nil, 16, 8, 3), data[:512], 0).good()
	r.do(spc.AppendVerify(nil, 0, 8, 3), data[:512], 0).sense(spc.KeyMiscompare, spc.ASCMiscompare)
	other := append([]byte(nil), data[:512]...)
	other[3] ^= 1
	if got := r.do(spc.AppendVerify(nil, 16, 8, 3), other, 0).sense(spc.KeyMiscompare, spc.ASCMiscompare); !got.sd.InfoValid || got.sd.Info != 3 {
		t.Errorf("information %+v, want offset 3", got.sd)
	}
	r.do(spc.AppendWriteVerify(nil, 4, 4, 1), data[:2048], 0).good()
	if got := r.do(spc.AppendRead(nil, 4, 4, false), nil, 2048).good(); !bytes.Equal(got.data, data[:2048]) {
		t.Error("WRITE AND VERIFY has written other data")
	}
}

func TestCompareAndWrite(t *testing.T) {
	r := newRig(t, Config{})
	old, now := fill(4*512, 1), fill(4*512, 2)
	r.do(spc.AppendWrite(nil, 8, 4, false), old, 0).good()
	both := append(append([]byte(nil), old...), now...)
	r.do(spc.AppendCompareAndWrite(nil, 8, 4, false), both, 0).good()
	got := r.do(spc.AppendCompareAndWrite(nil, 8, 4, false), both, 0).sense(spc.KeyMiscompare, spc.ASCMiscompare)
	if want := uint64(firstDiff(now, old)); !got.sd.InfoValid || got.sd.Info != want {
		t.Errorf("information %+v, want offset %d", got.sd, want)
	}
	if b := r.do(spc.AppendRead(nil, 8, 4, false), nil, 2048).good().data; !bytes.Equal(b, now) {
		t.Error("a miscompare has changed the blocks")
	}
	r.do(spc.AppendCompareAndWrite(nil, 8, 0, false), nil, 0).good()
	r.do(spc.AppendCompareAndWrite(nil, 8, 0, false), both, 0).illegal(spc.ASCInvalidFieldInCDB)
	r.do(spc.AppendCompareAndWrite(nil, 8, 4, false), both[:2048], 0).illegal(spc.ASCInvalidFieldInCDB)

	// A WRITE that waits for its initiator's data holds a COMPARE AND WRITE of the
	// same blocks back, though not for ever.
	w := r.start(r.nx[1], 0, spc.AppendWrite(nil, 10, 1, false), fill(512, 9), 0, held)
	c := r.start(r.nx[0], 0, spc.AppendCompareAndWrite(nil, 8, 4, false), append(append([]byte(nil), now...), old...), 0)
	// READs of other blocks go on, of these blocks wait for their turn.
	r.do(spc.AppendRead(nil, 20, 1, false), nil, 512).good()
	r.port.release(w)
	r.finish(w).good()
	r.finish(c).sense(spc.KeyMiscompare, spc.ASCMiscompare)

	w = r.start(r.nx[1], 0, spc.AppendWrite(nil, 10, 1, false), fill(512, 9), 0, held)
	r.do(spc.AppendCompareAndWrite(nil, 8, 4, false), append(append([]byte(nil), now...), old...), 0).is(spc.StatusBusy)
	r.port.release(w)
	r.finish(w).good()
}

// TestCompareAndWriteIsAtomic counts up one block from two nexuses at once; no
// step may be lost.
func TestCompareAndWriteIsAtomic(t *testing.T) {
	r := newRig(t, Config{})
	const steps = 200
	counter := func(n uint64) []byte { return binary.BigEndian.AppendUint64(make([]byte, 504), n) }
	done := make(chan int)
	for _, n := range r.nx {
		go func() {
			won := 0
			for v := uint64(0); v < steps; {
				list := append(counter(v), counter(v+1)...)
				switch got := r.on(n, 0, spc.AppendCompareAndWrite(nil, 3, 1, false), list, 0); got.status {
				case spc.StatusGood:
					won++
					v++
				case spc.StatusCheckCondition:
					b := r.on(n, 0, spc.AppendRead(nil, 3, 1, false), nil, 512).good().data
					v = binary.BigEndian.Uint64(b[504:])
				}
			}
			done <- won
		}()
	}
	if a, b := <-done, <-done; a+b != steps {
		t.Errorf("%d + %d steps won, want %d in all", a, b, steps)
	}
}

func TestOrWriteAndAtomic(t *testing.T) {
	r := newRig(t, Config{})
	a, b := fill(4*512, 1), fill(4*512, 77)
	r.do(spc.AppendWrite(nil, 0, 4, false), a, 0).good()
	r.do(spc.AppendOrWrite16(nil, 0, 4, false), b, 0).good()
	for i := range a {
		a[i] |= b[i]
	}
	if got := r.do(spc.AppendRead(nil, 0, 4, false), nil, 2048).good(); !bytes.Equal(got.data, a) {
		t.Error("ORWRITE")
	}
	r.do(spc.AppendWriteAtomic16(nil, 7, 4, false), b, 0).good()
	if got := r.do(spc.AppendRead(nil, 7, 4, false), nil, 2048).good(); !bytes.Equal(got.data, b) {
		t.Error("WRITE ATOMIC")
	}
	r.do(spc.AppendWriteAtomic16(nil, 0, 2049, false), make([]byte, 2049*512), 0).illegal(spc.ASCInvalidFieldInCDB)
}

func TestUnmap(t *testing.T) {
	r := newRig(t, Config{})
	ones := bytes.Repeat([]byte{0xFF}, 256*512)
	r.do(spc.AppendWrite(nil, 0, 256, false), ones, 0).good()
	unmap := func(rs ...spc.Range) *result {
		t.Helper()
		b := spc.AppendUnmapList(nil, rs)
		return r.do(spc.AppendUnmap(nil, uint16(len(b))), b, 0)
	}
	unmap(spc.Range{LBA: 8, Blocks: 64}, spc.Range{LBA: 100, Blocks: 3}, spc.Range{LBA: 5, Blocks: 0}).good()
	got := r.do(spc.AppendRead(nil, 0, 256, false), nil, len(ones)).good().data
	copy(ones[8*512:], make([]byte, 64*512))
	copy(ones[100*512:], make([]byte, 3*512))
	if !bytes.Equal(got, ones) {
		t.Error("UNMAP has changed other blocks than asked, or not those")
	}
	runs, err := spc.ParseLBAStatus(r.do(spc.AppendGetLBAStatus(nil, 10, 1024), nil, 1024).good().data)
	if err != nil || len(runs) < 2 || runs[0].LBA != 10 || runs[0].Status != spc.LBADeallocated || runs[0].Blocks != 62 || runs[1].Status != spc.LBAMapped {
		t.Errorf("%+v, %v", runs, err)
	}
	r.do(spc.AppendGetLBAStatus(nil, 8<<20/512, 1024), nil, 1024).illegal(spc.ASCLBAOutOfRange)
	unmap(spc.Range{LBA: 200, Blocks: 8}, spc.Range{LBA: 8<<20/512 - 1, Blocks: 2}).illegal(spc.ASCLBAOutOfRange)
	if got := r.do(spc.AppendRead(nil, 200, 8, false), nil, 8*512).good().data; !bytes.Equal(got, ones[200*512:][:8*512]) {
		t.Error("a list with a range that cannot be was carried out in part")
	}
	unmap(spc.Range{LBA: 1 << 63, Blocks: 2}).illegal(spc.ASCLBAOutOfRange)
	unmap().good()
	r.do(spc.AppendUnmap(nil, 0), nil, 0).good()
	r.do(spc.AppendUnmap(nil, 7), make([]byte, 7), 0).illegal(spc.ASCParameterListLength)
	b := spc.AppendUnmapList(nil, []spc.Range{{LBA: 1, Blocks: 1}})
	r.do(spc.AppendUnmap(nil, uint16(len(b)-1)), b[:len(b)-1], 0).illegal(spc.ASCParameterListLength)
	b = spc.AppendUnmapList(nil, []spc.Range{{LBA: 1, Blocks: 1}})
	anchored := spc.AppendUnmap(nil, uint16(len(b)))
	anchored[1] |= 1
	r.do(anchored, b, 0).illegal(spc.ASCInvalidFieldInCDB)
	many := make([]spc.Range, maxUnmapDescr+1)
	b = spc.AppendUnmapList(nil, many)
	r.do(spc.AppendUnmap(nil, uint16(len(b))), b, 0).illegal(spc.ASCInvalidFieldInParam)
}

func TestWriteSame(t *testing.T) {
	r := newRig(t, Config{})
	block := fill(512, 5)
	zero := make([]byte, 512)
	read := func(lba uint64, n uint32) []byte {
		t.Helper()
		return r.do(spc.AppendRead(nil, lba, n, false), nil, int(n)*512).good().data
	}
	r.do(spc.AppendWriteSame16(nil, 3, 5000, 0), block, 0).good()
	if got := read(0, 5010); !allZero(got[:3*512]) || !bytes.Equal(got[3*512:5003*512], bytes.Repeat(block, 5000)) || !allZero(got[5003*512:]) {
		t.Error("WRITE SAME")
	}
	// UNMAP of a block that is not zero writes it.
	r.do(spc.AppendWriteSame16(nil, 0, 8, spc.FlagUnmap), block, 0).good()
	if got := read(0, 8); !bytes.Equal(got, bytes.Repeat(block, 8)) {
		t.Error("WRITE SAME with UNMAP has lost the data")
	}
	r.do(spc.AppendWriteSame16(nil, 0, 4096, spc.FlagUnmap), zero, 0).good()
	if !allZero(read(0, 4096)) {
		t.Error("WRITE SAME with UNMAP and zeroes")
	}
	r.do(spc.AppendWriteSame16(nil, 4096, 904, spc.FlagNDOB), nil, 0).good()
	if !allZero(read(4096, 904)) {
		t.Error("WRITE SAME without Data-Out")
	}
	r.do(spc.AppendWriteSame16(nil, 0, 8, spc.FlagNDOB), block, 0).illegal(spc.ASCInvalidFieldInIU)
	ten := []byte{0x41, 0, 0, 0, 0, 0, 0, 0, 8, 0} // WRITE SAME(10)
	r.do(ten, block, 0).good()
	ten[1] |= spc.FlagNDOB // reserved there
	r.do(ten, block, 0).illegal(spc.ASCInvalidFieldInCDB)
	r.do(spc.AppendWriteSame16(nil, 0, 0, 0), block, 0).illegal(spc.ASCInvalidFieldInCDB)
	r.do(spc.AppendWriteSame16(nil, 0, 8, spc.FlagAnchor), block, 0).illegal(spc.ASCInvalidFieldInCDB)
	r.do(spc.AppendWriteSame16(nil, 0, 8, 0), block[:100], 0).illegal(spc.ASCInvalidFieldInIU)
	r.do(spc.AppendWriteSame16(nil, 0, 8, 0), fill(1024, 1), 0).illegal(spc.ASCInvalidFieldInIU)
	r.do(spc.AppendWriteSame16(nil, 0, 8, 4), block, 0).illegal(spc.ASCInvalidFieldInCDB)
}

// TestEndOfMedium: the last block is there, the next one is not, and the sense data tell which
// address was asked for.
func TestEndOfMedium(t *testing.T) {
	r := newRig(t, Config{})
	end := r.dev.lookup(0).geo().Blocks
	r.do(spc.AppendRead(nil, end-1, 1, false), nil, 512).good()
	if got := r.do(spc.AppendRead(nil, end-1, 2, false), nil, 1024).illegal(spc.ASCLBAOutOfRange); !got.sd.InfoValid || got.sd.Info != end-1 {
		t.Errorf("information %+v, want %d", got.sd, end-1)
	}
}

func TestWriteProtected(t *testing.T) {
	r := newRig(t, Config{}, LUConfig{Volume: newVolume(t, 1<<20, 512), ReadOnly: true})
	r.do(spc.AppendRead(nil, 0, 1, false), nil, 512).good()
	r.do(spc.AppendWrite(nil, 0, 1, false), make([]byte, 512), 0).sense(spc.KeyDataProtect, spc.ASCWriteProtected)
	r.do(spc.AppendWriteSame16(nil, 0, 1, spc.FlagNDOB), nil, 0).sense(spc.KeyDataProtect, spc.ASCWriteProtected)
	if b := r.do(spc.AppendModeSense6(nil, true, 0, 0x3F, 0, 255), nil, 255).good().data; b[2]&0x80 == 0 {
		t.Error("WP is clear")
	}
}

func TestRemovable(t *testing.T) {
	r := newRig(t, Config{}, LUConfig{Volume: newVolume(t, 1<<20, 512), Removable: true})
	a, b := r.nx[0], r.nx[1]
	prevent, allow := []byte{0x1E, 0, 0, 0, 1, 0}, []byte{0x1E, 0, 0, 0, 0, 0}
	eject, load := spc.AppendStartStop(nil, false, true, false), spc.AppendStartStop(nil, false, true, true)
	r.on(b, 0, prevent, nil, 0).good()
	r.on(a, 0, eject, nil, 0).illegal(spc.ASCRemovalPrevented)
	r.on(a, 0, allow, nil, 0).good()
	r.on(a, 0, eject, nil, 0).illegal(spc.ASCRemovalPrevented)
	r.on(b, 0, allow, nil, 0).good()
	r.on(a, 0, eject, nil, 0).good()
	for _, cdb := range [][]byte{spc.AppendTestUnitReady(nil), spc.AppendRead(nil, 0, 1, false), spc.AppendReadCapacity16(nil, 32)} {
		r.on(b, 0, cdb, nil, 512).sense(spc.KeyNotReady, spc.ASCMediumNotPresent)
	}
	r.on(a, 0, spc.AppendInquiry(nil, 36), nil, 36).good()
	r.on(a, 0, prevent, nil, 0).good()
	r.on(a, 0, load, nil, 0).illegal(spc.ASCRemovalPrevented) // *suite* PreventAllow.Eject
	r.on(a, 0, allow, nil, 0).good()
	r.on(a, 0, load, nil, 0).good()
	r.on(b, 0, spc.AppendTestUnitReady(nil), nil, 0).sense(spc.KeyUnitAttention, spc.ASCMediumMayHaveChanged)
	r.on(b, 0, spc.AppendRead(nil, 0, 1, false), nil, 512).good()
	// Without any medium.
	empty := newRig(t, Config{}, LUConfig{Removable: true})
	empty.do(load, nil, 0).sense(spc.KeyNotReady, spc.ASCMediumNotPresent)
	empty.do(spc.AppendWrite(nil, 0, 1, false), make([]byte, 512), 0).sense(spc.KeyNotReady, spc.ASCMediumNotPresent)
	empty.do(spc.AppendModeSense6(nil, false, 0, 0x3F, 0, 255), nil, 255).good()
	if _, err := empty.dev.AddLUN(LUConfig{LUN: 5}); err == nil {
		t.Error("a fixed disk without a volume was accepted")
	}
}

func TestSanitize(t *testing.T) { synctest.Test(t, testSanitize) }

func testSanitize(t *testing.T) {
	slow := faulty.New(newVolume(t, 8<<20, 512), 1, faulty.Rule{Op: faulty.Write, Delay: 5 * time.Millisecond})
	r := newRig(t, Config{}, LUConfig{Volume: slow})
	list := append([]byte{0x81, 0, 2, 0}, bytes.Repeat([]byte{0xA5}, 512)...) // invert, one pass
	cdb := []byte{0x48, 0x81, 0, 0, 0, 0, 0, 0x02, 0x04, 0}
	r.do(cdb, list, 0).good() // IMMED
	got := r.do(spc.AppendRead(nil, 0, 1, false), nil, 512).sense(spc.KeyNotReady, spc.ASCSanitizeInProgress)
	if !got.sd.ProgressValid {
		t.Error("no progress indication")
	}
	s, err := spc.ParseSense(r.do(spc.AppendRequestSense(nil, true, 64), nil, 64).good().data)
	if err != nil || s.ASC != spc.ASCSanitizeInProgress {
		t.Error(s, err)
	}
	r.do(spc.AppendInquiry(nil, 36), nil, 36).good()
	wait := func() {
		t.Helper()
		await.True(t, "sanitize ends", func() bool { return r.dev.lookup(0).gates()&volume.Sanitizing == 0 })
	}
	wait()
	b := r.do(spc.AppendRead(nil, 16000, 8, false), nil, 4096).good().data
	if !bytes.Equal(b, bytes.Repeat([]byte{0xA5}, 4096)) {
		t.Errorf("read % x… after the overwrite", b[:4])
	}
	// Aborting the command does not stop the operation.
	cdb[1] = 1
	c := r.start(r.nx[0], 0, cdb, list, 0)
	await.True(t, "sanitize begins", func() bool { return r.dev.lookup(0).gates()&volume.Sanitizing != 0 })
	done := make(chan TMFResponse, 1)
	r.dev.Manage(r.nx[0], AbortTask, 0, &c.Task, func(x TMFResponse) { done <- x })
	if x := <-done; x != TMFComplete {
		t.Errorf("ABORT TASK: %v", x)
	}
	if got := r.finish(c); !got.silent {
		t.Error("an aborted SANITIZE has sent status")
	}
	r.do(spc.AppendTestUnitReady(nil), nil, 0).sense(spc.KeyNotReady, spc.ASCSanitizeInProgress)
	wait()
	// Block erase leaves zeroes and no data.
	r.do([]byte{0x48, 2, 0, 0, 0, 0, 0, 0, 0, 0}, nil, 0).good()
	if !allZero(r.do(spc.AppendRead(nil, 0, 64, false), nil, 64*512).good().data) {
		t.Error("data survive a block erase")
	}
	// Malformed.
	for _, bad := range [][]byte{
		{0x48, 1, 0, 0, 0, 0, 0, 0, 4, 0}, {0x48, 0x41, 0, 0, 0, 0, 0, 2, 4, 0}, {0x48, 2, 0, 0, 0, 0, 0, 0, 8, 0},
		{0x48, 3, 0, 0, 0, 0, 0, 0, 0, 0}, {0x48, 1, 0, 1, 0, 0, 0, 2, 4, 0}, {0x48, 0x1F, 0, 0, 0, 0, 0, 0, 8, 0},
	} {
		r.do(bad, make([]byte, 1024), 0).illegal(spc.ASCInvalidFieldInCDB)
	}
}

func TestSanitizeFails(t *testing.T) {
	bad := faulty.New(newVolume(t, 8<<20, 512), 1, faulty.Rule{Op: faulty.Write, Off: 4 << 20, Len: 4096, Err: blockdev.ErrMedium, Times: 1})
	r := newRig(t, Config{}, LUConfig{Volume: bad})
	list := append([]byte{0x01, 0, 2, 0}, make([]byte, 512)...)
	r.do([]byte{0x48, 0x21, 0, 0, 0, 0, 0, 0x02, 0x04, 0}, list, 0).sense(spc.KeyMedium, spc.ASCSanitizeFailed)
	r.do(spc.AppendRead(nil, 0, 1, false), nil, 512).sense(spc.KeyMedium, spc.ASCSanitizeFailed)
	r.do([]byte{0x48, 0x1F, 0, 0, 0, 0, 0, 0, 0, 0}, nil, 0).good() // AUSE was set
	r.do(spc.AppendRead(nil, 0, 1, false), nil, 512).good()
}

// TestErrorsOfVolumes goes through the one table from errors to sense.
func TestErrorsOfVolumes(t *testing.T) {
	for _, c := range []struct {
		err error
		dir volume.Direction
		key spc.Key
		asc spc.ASC
	}{
		{blockdev.ErrMedium, volume.Reading, spc.KeyMedium, spc.ASCUnrecoveredRead},
		{blockdev.ErrMedium, volume.Writing, spc.KeyMedium, spc.ASCWriteError},
		{blockdev.ErrNoSpace, volume.Writing, spc.KeyDataProtect, spc.ASCSpaceAllocFailed},
		{blockdev.ErrReadOnly, volume.Writing, spc.KeyDataProtect, spc.ASCWriteProtected},
		{blockdev.ErrPoisoned, volume.Writing, spc.KeyMedium, spc.ASCWriteError},
		{&blockdev.Error{Kind: blockdev.ErrPoisoned, Cause: blockdev.ErrNoSpace}, volume.Writing, spc.KeyMedium, spc.ASCWriteError},
		{blockdev.ErrOutOfRange, volume.Reading, spc.KeyIllegalRequest, spc.ASCLBAOutOfRange},
		{blockdev.ErrClosed, volume.Reading, spc.KeyNotReady, spc.ASCCommFailure},
		{blockdev.ErrNotSupported, volume.Writing, spc.KeyIllegalRequest, spc.ASCInvalidFieldInCDB},
		{blockdev.ErrStopped, volume.Writing, spc.KeyAborted, 0},
		{io.ErrUnexpectedEOF, volume.Writing, spc.KeyHardware, spc.ASCInternalFailure}, // nothing that a volume should say
	} {
		op := faulty.Read
		if c.dir == volume.Writing {
			op = faulty.Write
		}
		v := faulty.New(newVolume(t, 1<<20, 512), 1, faulty.Rule{Op: op, Err: c.err})
		r := newRig(t, Config{}, LUConfig{Volume: v})
		if c.dir == volume.Reading {
			r.do(spc.AppendRead(nil, 0, 8, false), nil, 4096).sense(c.key, c.asc)
			r.do(spc.AppendVerify(nil, 0, 8, 0), nil, 0).sense(c.key, c.asc)
		} else {
			r.do(spc.AppendWrite(nil, 0, 8, false), make([]byte, 4096), 0).sense(c.key, c.asc)
			r.do(spc.AppendWrite(nil, 0, 8, false), make([]byte, 4096), 0, immediate(4096)).sense(c.key, c.asc)
			r.do(spc.AppendCompareAndWrite(nil, 0, 1, false), make([]byte, 1024), 0).sense(c.key, c.asc)
		}
	}
}

// tracedDevice notes where it is read, and begins when it is told.
type tracedDevice struct {
	blockdev.Device
	begin chan struct{}

	mu    sync.Mutex
	reads []int64 // guarded by mu: offsets
}

func (d *tracedDevice) ReadAt(p []byte, off int64) (int, error) {
	<-d.begin
	d.mu.Lock()
	d.reads = append(d.reads, off)
	d.mu.Unlock()
	return d.Device.ReadAt(p, off)
}

// TestVerifyTakesTurns: a VERIFY of the whole volume does not keep its worker from
// other commands.
func TestVerifyTakesTurns(t *testing.T) {
	const size = 3*verifySlice + 512
	for _, check := range []byte{0, 3} {
		d := &tracedDevice{Device: newVolume(t, size, 512), begin: make(chan struct{})}
		r := newRig(t, Config{}, LUConfig{Volume: d, Workers: 1})
		var block []byte
		if check == 3 {
			block = make([]byte, 512)
		}
		long := r.start(r.nx[0], 0, spc.AppendVerify(nil, 0, size/512, check), block, 0, immediate(len(block)))
		short := r.start(r.nx[1], 0, spc.AppendVerify(nil, size/512-1, 1, 0), nil, 0)
		close(d.begin)
		r.finish(long).good()
		r.finish(short).good()
		at := slices.Index(d.reads, size-512)
		if pieces := len(d.reads); at < 0 || at > pieces/2 {
			t.Errorf("BYTCHK %d: read %d of %d was for the second command", check, at+1, pieces)
		}
		if got := r.dev.lookup(0).vol.Counters.VerifyBytes.Load(); got != size+512 {
			t.Errorf("BYTCHK %d: %d bytes verified, want %d", check, got, size+512)
		}
	}
}
