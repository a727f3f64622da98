package attach

import (
	"errors"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"softiser/initiator/nbd"

	"softiser/initiator/blockio"
)

func TestWriteBackIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var notices []string
		a := &Attachment{lun: &fakeLUN{}, export: &nbd.Export{}, opt: Options{FinishTimeout: 30 * time.Second, OnNotice: func(s string) { notices = append(notices, s) }}}
		takes := func(d time.Duration, err error) func(string) error {
			return func(path string) error { time.Sleep(d); return err }
		}
		if err := a.writeBack("/dev/nbd7", takes(time.Millisecond, nil)); err != nil || len(notices) != 0 {
			t.Errorf("a fast one: %v, %q", err, notices)
		}
		if err := a.writeBack("/dev/nbd7", takes(15*time.Second, nil)); err != nil || len(notices) != 2 || !strings.Contains(notices[1], "/dev/nbd7") {
			t.Errorf("a slow one: %v, %q", err, notices)
		}
		if err := a.writeBack("/dev/nbd7", takes(0, syscall.EIO)); !errors.Is(err, syscall.EIO) {
			t.Errorf("a failed one: %v", err)
		}
		begun := time.Now()
		if err := a.writeBack("/dev/nbd7", takes(time.Hour, nil)); err == nil || time.Since(begun) != 30*time.Second {
			t.Errorf("one that hangs: %v after %v", err, time.Since(begun))
		}
		time.Sleep(time.Hour) // its goroutine ends
		a.export.ReadOnly = true
		if err := a.writeBack("/dev/nbd7", takes(0, syscall.EIO)); err != nil {
			t.Errorf("read-only: %v", err)
		}
	})
}

// A device whose requests are with a target that is away is stopped in time: they end with the
// volume. Without such requests the volume stays.
func TestFinishWithoutTarget(t *testing.T) {
	for _, away := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			l := &fakeLUN{data: make([]byte, 1<<20)}
			if away {
				l.away = make(chan struct{})
			}
			a := &Attachment{opt: Options{FinishTimeout: 5 * time.Second}, lun: l}
			begun := time.Now()
			err := a.finish("/dev/ublkb7", func() error { // as the driver, which waits for what the volume has
				done := make(chan struct{})
				l.SubmitBatch([]*blockio.Request{{Op: blockio.OpRead, Buf: make([]byte, 512), Done: func(*blockio.Request) { close(done) }}})
				<-done
				return nil
			})
			if took := time.Since(begun); away != (err != nil) || away != (took == 5*time.Second) || away != (l.closed == 1) {
				t.Errorf("away %v: %v after %v, closed %d times", away, err, took, l.closed)
			}
			if away && (!strings.Contains(err.Error(), "/dev/ublkb7") || !strings.Contains(err.Error(), "given up")) {
				t.Error(err)
			}
		})
	}
}
