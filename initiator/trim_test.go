package initiator

import (
	"bytes"
	"context"
	"errors"
	"testing"

	"softiser/blockdev"
	"softiser/internal/iscsi"
	"softiser/internal/spc"
)

// A target that trims by WRITE SAME and then refuses that command is not asked
// again: in particular not with 0 blocks, which would mean all of them up to the
// end of the medium.
func TestTrimAfterRefusedWriteSame(t *testing.T) {
	zero := func(l *LUN) error { return l.Do(context.Background(), &Request{Op: OpWriteZeroes, Len: 4096}) }
	trim := func(l *LUN) error { return l.Do(context.Background(), &Request{Op: OpDiscard, Len: 4096}) }
	for name, first := range map[string]func(*LUN) error{"zeroes": zero, "trim": trim} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, ft *fakeTarget) {
				ft.noUnmap = true
				l := dialLUN(t, ft.config())
				if !l.Info().Discard {
					t.Fatal("this LUN does not trim: the test proves nothing")
				}
				copy(ft.disk, bytes.Repeat([]byte{5}, len(ft.disk)))
				same := 0
				ft.mu.Lock()
				ft.hook = func(d *fakeDM, p *iscsi.PDU) bool {
					cdb := p.BHS.SCSICommand().CDB()
					if spc.Opcode(cdb[0]) != spc.OpWriteSame16 {
						return false
					}
					if same++; spc.ParseIO(cdb[:16]).Blocks == 0 {
						t.Error("WRITE SAME of 0 blocks")
					}
					d.check(p, spc.Sense{Key: spc.KeyIllegalRequest, ASC: spc.ASCInvalidOpcode})
					return true
				}
				ft.mu.Unlock()
				defer letGo(ft)
				// Both are built before the refusal: the second is refused as well.
				held := &Request{Op: OpDiscard, Off: 8192, Len: 4096}
				q, _ := l.prepare(held)
				if err := first(l); !errors.Is(err, blockdev.ErrNotSupported) {
					t.Fatal(err)
				}
				ended := make(chan struct{})
				held.Done = func(*Request) { close(ended) }
				l.paths[0].submit(q)
				if <-ended; !errors.Is(held.Err, blockdev.ErrNotSupported) {
					t.Error(held.Err)
				}
				sent := same
				// From now on nothing is trimmed, and zeroes are written; a look at the LUN
				// again does not change that.
				for range 2 {
					if err := trim(l); !errors.Is(err, blockdev.ErrNotSupported) || l.Info().Discard {
						t.Errorf("trim: %v", err)
					}
					if err := zero(l); err != nil {
						t.Errorf("zeroes: %v", err)
					}
					if err := l.recheck(context.Background(), l.paths[0]); err != nil {
						t.Fatal(err)
					}
				}
				if same != sent {
					t.Errorf("%d more WRITE SAME", same-sent)
				}
				if !bytes.Equal(ft.disk[:4096], make([]byte, 4096)) || ft.disk[4096] != 5 || ft.disk[len(ft.disk)-1] != 5 {
					t.Error("something else was zeroed")
				}
			})
		})
	}
}
