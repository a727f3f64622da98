package scsi

import (
	"testing"
	"testing/synctest"
	"time"

	"softiser/internal/await"
	"softiser/internal/spc"

	"softiser/blockdev"
	"softiser/blockdev/faulty"
	"softiser/target/volume"
)

func sendDiagnostic(code byte) []byte { return []byte{0x1D, code << 5, 0, 0, 0, 0} }

// selfTestLog returns the latest results: code and result, and the rest of them.
func (r *rig) selfTestLog() [][]byte {
	r.t.Helper()
	m := r.logValues(0x10)
	if len(m) != maxTestResults {
		r.t.Fatalf("%d results", len(m))
	}
	all := make([][]byte, 0, len(m))
	for i := range uint16(len(m)) {
		if len(m[i+1]) != 16 {
			r.t.Fatalf("% x", m[i+1])
		}
		all = append(all, m[i+1])
	}
	return all
}

// Results, and the hours that they count, go to the process that takes the place of this one. A test that runs
// ends.
func TestCarriedSelfTests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := faulty.New(newVolume(t, 8<<20, 512), 1, faulty.Rule{Op: faulty.Read, Delay: time.Second})
		r := newRig(t, Config{}, LUConfig{Volume: v})
		time.Sleep(3 * time.Hour)
		r.do(sendDiagnostic(testForegroundShort), nil, 0).good()
		r.do(sendDiagnostic(testBackgroundExtended), nil, 0).good()
		got := r.carried()
		now := newRig(t, Config{}, LUConfig{Volume: newVolume(t, 8<<20, 512)})
		for range 2 { // by two targets with the volume
			if err := now.dev.Restore(got); err != nil {
				t.Fatal(err)
			}
		}
		l := now.selfTestLog()
		if l[0][0] != 0x42 || l[1][0] != 0xA0 || l[1][3] != 3 || l[1][4] != 0xFF || !allZero(l[2]) {
			t.Errorf("% x", l[:3])
		}
		time.Sleep(time.Hour)
		now.do(sendDiagnostic(testForegroundShort), nil, 0).good()
		if l := now.selfTestLog(); l[0][0] != 0xA0 || l[0][3] != 4 {
			t.Errorf("% x", l[0])
		}
		if again := r.selfTestLog(); again[0][0] != 0x40 { // which has gone on
			t.Errorf("% x", again[0])
		}
	})
}

func TestSelfTests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := faulty.New(newVolume(t, 8<<20, 512), 1, faulty.Rule{Op: faulty.Read, Delay: time.Second})
		r := newRig(t, Config{}, LUConfig{Volume: v})
		time.Sleep(3 * time.Hour)
		r.do([]byte{0x1D, 0x04, 0, 0, 0, 0}, nil, 0).good()
		if l := r.selfTestLog(); !allZero(l[0]) {
			t.Errorf("the default test is in the log: % x", l[0])
		}
		r.do(sendDiagnostic(testForegroundShort), nil, 0).good()
		if l := r.selfTestLog(); l[0][0] != 0xA0 || l[0][3] != 3 || l[0][4] != 0xFF || !allZero(l[1]) {
			t.Errorf("% x", l[0])
		}
		// In the background other commands go on, REQUEST SENSE tells the progress.
		r.do(sendDiagnostic(testBackgroundExtended), nil, 0).good()
		time.Sleep(4500 * time.Millisecond)
		r.do(spc.AppendTestUnitReady(nil), nil, 0).good()
		s, err := spc.ParseSense(r.do(spc.AppendRequestSense(nil, true, 64), nil, 64).good().data)
		if err != nil || s.Key != spc.KeyNotReady || s.ASC != spc.ASCSelfTestInProgress || !s.ProgressValid || s.Progress != 4*65536/8 {
			t.Errorf("%+v, %v", s, err)
		}
		if l := r.selfTestLog(); l[0][0] != 0x4F || l[1][0] != 0xA0 {
			t.Errorf("% x", l[0])
		}
		r.do(sendDiagnostic(testBackgroundShort), nil, 0).sense(spc.KeyNotReady, spc.ASCSelfTestInProgress)
		time.Sleep(4 * time.Second)
		if l := r.selfTestLog(); l[0][0] != 0x40 {
			t.Errorf("% x", l[0])
		}
		if s, _ := spc.ParseSense(r.do(spc.AppendRequestSense(nil, true, 64), nil, 64).good().data); s.Key != spc.KeyNoSense {
			t.Errorf("%+v", s)
		}
		// Ended by SEND DIAGNOSTIC, by a reset, by SANITIZE.
		for _, c := range []struct {
			end    func()
			result byte
		}{
			{func() { r.do(sendDiagnostic(testAbort), nil, 0).good() }, testAborted},
			{func() {
				done := make(chan TMFResponse, 1)
				r.dev.Manage(r.nx[0], LogicalReset, 0, nil, func(x TMFResponse) { done <- x })
				<-done
				for _, n := range r.nx {
					r.attention(n, spc.ASCDeviceReset)
				}
			}, testEnded},
			{func() { r.do([]byte{0x48, 0x82, 0, 0, 0, 0, 0, 0, 0, 0}, nil, 0).good() }, testEnded},
		} {
			r.do(sendDiagnostic(testBackgroundExtended), nil, 0).good()
			time.Sleep(time.Millisecond)
			c.end()
			time.Sleep(time.Minute)
			if l := r.selfTestLog(); l[0][0] != 0x40|c.result {
				t.Errorf("% x, want result %d", l[0], c.result)
			}
		}
		r.do(sendDiagnostic(testAbort), nil, 0).good() // nothing to abort
		// A foreground test keeps others off.
		c := r.start(r.nx[0], 0, sendDiagnostic(testForegroundShort), nil, 0)
		time.Sleep(1500 * time.Millisecond)
		got := r.on(r.nx[1], 0, spc.AppendRead(nil, 0, 1, false), nil, 512).sense(spc.KeyNotReady, spc.ASCSelfTestInProgress)
		if got.sd.Progress != 65536/3 {
			t.Errorf("%+v", got.sd)
		}
		r.on(r.nx[1], 0, spc.AppendInquiry(nil, 36), nil, 36).good()
		// Aborting its command ends it.
		done := make(chan TMFResponse, 1)
		r.dev.Manage(r.nx[0], AbortTask, 0, &c.Task, func(x TMFResponse) { done <- x })
		<-done
		r.finish(c)
		r.on(r.nx[1], 0, spc.AppendRead(nil, 0, 1, false), nil, 512).good()
		if l := r.selfTestLog(); l[0][0] != 0xA0|testEnded {
			t.Errorf("% x", l[0])
		}
		for range maxTestResults {
			r.do(sendDiagnostic(testForegroundShort), nil, 0).good()
		}
		for _, l := range r.selfTestLog() {
			if l[0] != 0xA0 {
				t.Errorf("% x", l)
			}
		}
		r.close()
		r.nx = nil
	})
}

func TestSelfTestFails(t *testing.T) {
	bad := faulty.New(newVolume(t, 8<<20, 512), 1, faulty.Rule{Op: faulty.Read, Off: 5 << 20, Len: 4096, Err: blockdev.ErrMedium})
	r := newRig(t, Config{}, LUConfig{Volume: bad})
	r.do(sendDiagnostic(testForegroundShort), nil, 0).good() // it does not read there
	r.do(sendDiagnostic(testBackgroundExtended), nil, 0).good()
	await.True(t, "the test ends", func() bool { return r.selfTestLog()[0][0]&0xF != testInProgress })
	l := r.selfTestLog()[0]
	if l[0] != 0x45 || l[1] != 1 || l[4] != 0 || l[10] != 5<<20/512>>8 || l[12] != byte(spc.KeyMedium) || l[13] != 0x11 {
		t.Errorf("% x", l)
	}
	if n := r.logCounter(5, 6); n != 1 {
		t.Errorf("%d verify errors counted", n)
	}
	worse := faulty.New(newVolume(t, 8<<20, 512), 1, faulty.Rule{Op: faulty.Read, Err: blockdev.ErrMedium})
	r = newRig(t, Config{}, LUConfig{Volume: worse})
	r.do(sendDiagnostic(testForegroundShort), nil, 0).sense(spc.KeyHardware, spc.ASCFailedSelfTest)
	r.do([]byte{0x1D, 0x04, 0, 0, 0, 0}, nil, 0).sense(spc.KeyHardware, spc.ASCFailedSelfTest)
	r.do(spc.AppendTestUnitReady(nil), nil, 0).good()
}

func TestSelfTestsRefused(t *testing.T) {
	r := newRig(t, Config{})
	for _, cdb := range [][]byte{
		sendDiagnostic(3), sendDiagnostic(6), sendDiagnostic(7), // extended, in the foreground
		{0x1D, 0x24, 0, 0, 0, 0}, {0x1D, 0x05, 0, 0, 0, 0}, {0x1D, 0x10, 0, 0, 4, 0},
	} {
		r.do(cdb, make([]byte, 4), 0).illegal(spc.ASCInvalidFieldInCDB)
	}
	r.do([]byte{0x1D, 0x10, 0, 0, 0, 0}, nil, 0).good() // no list, no test: nothing to do
	empty := newRig(t, Config{}, LUConfig{Removable: true})
	empty.do(sendDiagnostic(testBackgroundShort), nil, 0).sense(spc.KeyNotReady, spc.ASCMediumNotPresent)
	empty.do([]byte{0x1D, 0x04, 0, 0, 0, 0}, nil, 0).good()
}

// TestSelfTestEndsMeanwhile: a command that met a self-test which is over when it is told so has not been
// carried out, and must not be taken for one that has (as initiators do with NO SENSE).
func TestSelfTestEndsMeanwhile(t *testing.T) {
	r := newRig(t, Config{})
	v := r.dev.lookup(0).vol
	v.SetGate(volume.Testing, true) // which the end of the test has not taken down yet
	r.do(spc.AppendRead(nil, 0, 1, false), nil, 512).sense(spc.KeyNotReady, spc.ASCSelfTestInProgress)
	v.SetGate(volume.Testing, false)
	r.do(spc.AppendRead(nil, 0, 1, false), nil, 512).good()
}

// shrinking is a volume that is cut off just before its last piece is read.
type shrinking struct{ blockdev.Device }

func (v shrinking) ReadAt(p []byte, off int64) (int, error) {
	if off+int64(len(p)) == v.Info().Size && off > 0 {
		if err := v.Device.(sameVolume).Device.Resize(off); err != nil {
			return 0, err
		}
	}
	return v.Device.ReadAt(p, off)
}

// TestSelfTestBesideAShrink: a volume that becomes shorter has not failed its self-test.
func TestSelfTestBesideAShrink(t *testing.T) {
	r := newRig(t, Config{}, LUConfig{Volume: shrinking{newVolume(t, 8<<20, 512)}})
	r.do(sendDiagnostic(testForegroundShort), nil, 0).good()
	if size := r.dev.LUs()[0].geo().Info.Size; size != 7<<20 {
		t.Errorf("%d bytes are left", size)
	}
}
