package scsi

import (
	"encoding/binary"
	"errors"
	"math"
	"sync"
	"time"

	"softiser/blockdev"
	"softiser/internal/spc"
	"softiser/target/volume"
)

// Self-tests (SPC-5 §5.15). All that a volume can be tested for is whether it can
// be read: the short test reads its beginning, middle and end, the extended one
// all of it. In the background other commands go on; a foreground test keeps
// them off with 2/04/09. The extended test is for the background alone: nobody
// should lose a unit for as long as its volume is large.

// Values of the SELF-TEST CODE field of SEND DIAGNOSTIC.
const (
	testDefault            = 0
	testBackgroundShort    = 1
	testBackgroundExtended = 2
	testAbort              = 4
	testForegroundShort    = 5
)

// Values of the SELF-TEST RESULTS field of the log page.
const (
	testPassed     = 0x0
	testAborted    = 0x1 // by SEND DIAGNOSTIC
	testEnded      = 0x2 // aborted in another way
	testFailed     = 0x5 // in its first segment, which is the only one
	testInProgress = 0xF
)

// maxTestResults is how many results are kept; the log page has room for them.
const maxTestResults = 20

// testResult is a parameter of the Self-Test Results log page.
type testResult struct {
	code, result byte
	hours        uint16 // since the unit was added
	lba          uint64 // first failure; all ones: none
	key          spc.Key
	asc          spc.ASC
}

// selfTest is the self-test of a unit that runs, and how earlier ones ended.
type selfTest struct {
	mu          sync.Mutex // guards what follows
	results     []testResult
	running     bool // results[0] is in progress
	stop        byte // the result to end it with; 0: go on
	done, total int64
}

// begin files a new test; false if one runs already.
func (s *selfTest) begin(code byte) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.running {
		return false
	}
	s.running, s.stop, s.done, s.total = true, 0, 0, 0
	s.results = append([]testResult{{code: code, result: testInProgress, lba: math.MaxUint64}}, s.results[:min(len(s.results), maxTestResults-1)]...)
	return true
}

// abort ends the background test that runs, if any, with the given result.
func (s *selfTest) abort(result byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.running && s.stop == 0 {
		s.stop = result
	}
}

// inBackground reports whether a test runs for which no command waits.
func (s *selfTest) inBackground() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.running && s.results[0].code != testForegroundShort
}

// step notes how far the test is, and returns the result to end it with, or 0.
func (s *selfTest) step(done, total int64) byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.done, s.total = done, total
	return s.stop
}

// finish files the result of the test that runs.
func (s *selfTest) finish(r testResult) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r.code = s.results[0].code
	s.results[0] = r
	s.running = false
}

// cmdSendDiagnostic is SEND DIAGNOSTIC (SPC-5 §6.42): self-tests, and no pages.
func cmdSendDiagnostic(t *Task) {
	lu := t.lu
	code, self := t.CDB[1]>>5, t.CDB[1]&0x04 != 0
	if t.CDB[1]&0x0B != 0 || self && code != testDefault {
		t.badCDB(1)
		return
	}
	if binary.BigEndian.Uint16(t.CDB[3:]) != 0 {
		t.badCDB(3)
		return
	}
	medium := lu.gates() & volume.MediumGates
	switch code {
	case testDefault:
		if !self || medium != 0 {
			t.good() // nothing to test
			return
		}
		t.toWorker(func(t *Task) {
			tested(t, lu.readTest(false, func(_, _ int64) byte { return 0 }))
		})
	case testAbort:
		lu.selfTest.abort(testAborted)
		t.good()
	case testBackgroundShort, testBackgroundExtended, testForegroundShort:
		if medium != 0 {
			t.refuse(medium)
			return
		}
		if code == testForegroundShort {
			t.toWorker(foregroundTest)
			return
		}
		if !lu.selfTest.begin(code) {
			t.refuse(volume.Testing)
			return
		}
		lu.place.Hold()
		go func() {
			defer lu.place.Unuse()
			lu.selfTest.finish(lu.readTest(code == testBackgroundExtended, lu.testGoesOn))
		}()
		t.good()
	default:
		t.badCDB(1)
	}
}

// testGoesOn ends a background test with the unit, its medium or a reset.
func (lu *LU) testGoesOn(done, total int64) byte {
	stop := lu.selfTest.step(done, total)
	if stop == 0 && (lu.place.Removed() || lu.gates()&volume.MediumGates != 0) {
		stop = testEnded
	}
	return stop
}

func foregroundTest(t *Task) {
	lu := t.lu
	if !lu.selfTest.begin(testForegroundShort) {
		t.refuse(volume.Testing)
		return
	}
	lu.vol.SetGate(volume.Testing, true)
	r := lu.readTest(false, func(done, total int64) byte {
		lu.selfTest.step(done, total)
		if t.Aborted() {
			return testEnded
		}
		return 0
	})
	lu.selfTest.finish(r)
	lu.vol.SetGate(volume.Testing, false)
	tested(t, r)
}

// tested ends the task that waited for a test.
func tested(t *Task, r testResult) {
	switch r.result {
	case testPassed:
		t.good()
	case testEnded:
		t.end()
	default:
		t.fail(spc.KeyHardware, spc.ASCFailedSelfTest)
	}
}

// testPiece is how much a self-test reads at once, bytes.
const testPiece = 1 << 20

// readTest reads the volume, or three pieces of it. stop is asked before each
// piece.
func (lu *LU) readTest(all bool, stop func(done, total int64) byte) testResult {
	buf := lu.dev.bufs.Get(testPiece)
	defer lu.dev.bufs.Put(buf)
	g := lu.geo()
	last := max(g.Info.Size-testPiece, 0)
	pieces := []int64{0, last / 2 &^ (int64(g.Info.BlockSize) - 1), last}
	total := int64(len(pieces))
	if all {
		total = (g.Info.Size + testPiece - 1) / testPiece
	}
	r := testResult{lba: math.MaxUint64, hours: uint16(min(time.Since(lu.added)/time.Hour, math.MaxUint16))}
	for i := range total {
		if r.result = stop(i, total); r.result != testPassed {
			return r
		}
		off := i * testPiece
		if !all {
			off = pieces[i]
		}
		n := min(testPiece, lu.geo().Info.Size-off) // it may have shrunk meanwhile
		if n <= 0 {
			break
		}
		if _, err := lu.vol.ReadAt(buf[:n], off); errors.Is(err, blockdev.ErrOutOfRange) {
			continue // just now
		} else if err != nil {
			lu.vol.Counters.CountError(err, volume.Verifying)
			r.result, r.lba = testFailed, uint64(off)>>g.Shift
			r.key, r.asc = senseOf(err, volume.Reading)
			return r
		}
	}
	return r
}

// appendSelfTestLog is the Self-Test Results page (SPC-5 §7.3.19): always 20 results,
// the latest first, zeroes for those that are not there.
//
//	+--+-------------------------------------------+
//	| 0| self-test code (E0h) | result (0Fh)       |
//	| 1| number of the segment                     |
//	| 2| hours of operation (2)                    |
//	| 4| address of the first failure (8)          |
//	|12| sense key, ASC, ASCQ, vendor specific     |
//	+--+-------------------------------------------+
func appendSelfTestLog(lu *LU, l *logParams) {
	s := &lu.selfTest
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range maxTestResults {
		var v [16]byte
		if i < len(s.results) {
			r := &s.results[i]
			v[0] = r.code<<5 | r.result
			if r.result == testFailed {
				v[1] = 1
			}
			binary.BigEndian.PutUint16(v[2:], r.hours)
			binary.BigEndian.PutUint64(v[4:], r.lba)
			v[12], v[13], v[14] = byte(r.key), byte(r.asc>>8), byte(r.asc)
		}
		l.list(uint16(i+1), v[:])
	}
}
