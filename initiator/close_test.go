package initiator

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"softiser/internal/spc"
)

func TestClose(t *testing.T) {
	t.Run("outstanding commands end first", func(t *testing.T) {
		bubble(t, func(t *testing.T, ft *fakeTarget) {
			l := dialLUN(t, ft.config())
			held := hold(ft, spc.OpRead10)
			ended := make(chan error, 1)
			l.Submit(&Request{Op: OpRead, Buf: make([]byte, 512), Done: func(r *Request) { ended <- r.Err }})
			synctest.Wait()
			d := ft.last()
			time.AfterFunc(time.Second, func() {
				letGo(ft)
				d.execute(held()[0])
			})
			if err := l.Close(); err != nil {
				t.Fatal(err)
			}
			if err := <-ended; err != nil {
				t.Fatal(err)
			}
			if _, err := l.ReadAt(make([]byte, 512), 0); err == nil {
				t.Fatal("a closed LUN reads")
			}
		})
	})
	// LIO over siw fails the Send of its Logout Response when a FIN comes right
	// after it, and its kernel log shows a warning.
	t.Run("the target closes first", func(t *testing.T) {
		bubble(t, func(t *testing.T, ft *fakeTarget) {
			l := dialLUN(t, ft.config())
			closed := errors.New("closed by the target")
			ft.onLogout = func(d *fakeDM) { time.AfterFunc(closeGrace/2, func() { d.cut(closed) }) }
			d := ft.last()
			if err := l.Close(); err != nil {
				t.Fatal(err)
			}
			if d.endErr != closed {
				t.Fatalf("the connection ended with %v, not by the target", d.endErr)
			}
		})
	})
	t.Run("a target that does not close", func(t *testing.T) {
		bubble(t, func(t *testing.T, ft *fakeTarget) {
			l := dialLUN(t, ft.config())
			begin := time.Now()
			if err := l.Close(); err != nil {
				t.Fatal(err)
			}
			if took := time.Since(begin); took > 2*closeGrace {
				t.Fatalf("waited %v", took)
			}
		})
	})
	t.Run("a target that does not answer", func(t *testing.T) {
		bubble(t, func(t *testing.T, ft *fakeTarget) {
			cfg := ft.config()
			cfg.NopInterval = -1
			l := dialLUN(t, cfg)
			hold(ft, spc.OpRead10)
			ended := make(chan error, 1)
			l.Submit(&Request{Op: OpRead, Buf: make([]byte, 512), Done: func(r *Request) { ended <- r.Err }})
			begin := time.Now()
			l.Close()
			if err := <-ended; !errors.Is(err, ErrClosed) || time.Since(begin) != 15*time.Second {
				t.Fatalf("%v after %v", err, time.Since(begin))
			}
		})
	})
	t.Run("while recovering", func(t *testing.T) {
		bubble(t, func(t *testing.T, ft *fakeTarget) {
			l := dialLUN(t, ft.config())
			ft.mu.Lock()
			ft.dialErr = func(int) error { return errors.New("refused") }
			ft.mu.Unlock()
			ft.last().cut(errors.New("gone"))
			synctest.Wait()
			ended := make(chan error, 1)
			l.Submit(&Request{Op: OpRead, Buf: make([]byte, 512), Done: func(r *Request) { ended <- r.Err }})
			begin := time.Now()
			l.Close()
			if err := <-ended; !errors.Is(err, ErrClosed) || time.Since(begin) > time.Second {
				t.Fatalf("%v after %v", err, time.Since(begin))
			}
		})
	})
}
