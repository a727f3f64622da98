package initiator

import (
	"bytes"
	"errors"
	"testing"

	"softiser/blockdev"
	"softiser/internal/iscsi"
	"softiser/internal/spc"
)

// TestDeferredSense: a command that ends with what the target has to say about an earlier
// one has not been carried out, however harmless that is. What was acknowledged and not
// kept makes the next flush fail, or the command that is told of it.
func TestDeferredSense(t *testing.T) {
	for _, c := range []struct {
		name       string
		key        spc.Key
		asc        spc.ASC
		descriptor bool
		flushed    bool  // nothing waits for a flush
		write      error // what the command ends with
		flush      error // what the next flush ends with
	}{
		{name: "recovered", key: spc.KeyRecovered, asc: 0x0C01},
		{name: "recovered, descriptor format", key: spc.KeyRecovered, asc: 0x0C01, descriptor: true},
		{name: "completed", key: spc.KeyCompleted, descriptor: true},
		{name: "no sense", key: spc.KeyNoSense},
		{name: "unit attention", key: spc.KeyUnitAttention, asc: spc.ASCModeChanged},
		{name: "medium error", key: spc.KeyMedium, asc: spc.ASCWriteError, flush: ErrCacheLost},
		{name: "hardware error", key: spc.KeyHardware, asc: spc.ASCInternalFailure, flush: ErrCacheLost},
		{name: "medium error, all flushed", key: spc.KeyMedium, asc: spc.ASCWriteError, flushed: true, write: blockdev.ErrMedium},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, ft *fakeTarget) {
				l := dialLUN(t, ft.config())
				if _, err := l.WriteAt(make([]byte, 512), 4096); err != nil {
					t.Fatal(err)
				}
				if c.flushed {
					if err := l.Flush(); err != nil {
						t.Fatal(err)
					}
				}
				told := false
				ft.hook = func(d *fakeDM, p *iscsi.PDU) bool {
					if told || spc.Opcode(p.BHS.SCSICommand().CDB()[0]) == spc.OpSyncCache16 {
						return false
					}
					told = true
					s := spc.Sense{Key: c.key, ASC: c.asc, Deferred: true}
					b := s.AppendFixed(nil)
					if c.descriptor {
						b = s.AppendDescriptor(nil)
					}
					d.status(p, spc.StatusCheckCondition, b, 0)
					return true
				}
				defer letGo(ft)
				want := bytes.Repeat([]byte{7}, 512)
				if _, err := l.WriteAt(want, 0); !errors.Is(err, c.write) {
					t.Errorf("the WRITE: %v, want %v", err, c.write)
				}
				if done := bytes.Equal(ft.disk[:512], want); done != (c.write == nil) {
					t.Errorf("the WRITE was carried out: %v", done)
				}
				if err := l.Flush(); !errors.Is(err, c.flush) {
					t.Errorf("the next flush: %v, want %v", err, c.flush)
				}
				if err := l.Flush(); err != nil {
					t.Errorf("the flush after it: %v", err)
				}
			})
		})
	}
}

// TestRecoveredAndShort: a command that was carried out with something to tell is no
// better than GOOD: data that did not come are missed.
func TestRecoveredAndShort(t *testing.T) {
	bubble(t, func(t *testing.T, ft *fakeTarget) {
		l := dialLUN(t, ft.config())
		ft.hook = func(d *fakeDM, p *iscsi.PDU) bool {
			s := spc.Sense{Key: spc.KeyRecovered, ASC: 0x1701}
			d.status(p, spc.StatusCheckCondition, s.AppendFixed(nil), 512)
			return true
		}
		defer letGo(ft)
		if _, err := l.ReadAt(make([]byte, 512), 0); !errors.Is(err, ErrShort) {
			t.Errorf("a READ whose data did not come: %v", err)
		}
	})
}
