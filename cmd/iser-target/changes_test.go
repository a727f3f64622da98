package main

import (
	"context"
	"errors"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"

	"softiser/config"
	"softiser/target/registry"
)

// TestChangesAfterATakeover: an administrator who asks for a change while a new process still
// opens what was not handed over is answered when it has; a further handover waits for that, too.
func TestChangesAfterATakeover(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := changeGate{opened: make(chan struct{})}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := g.enter(ctx, ""); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("a change whose patience has ended: %v", err)
		}
		if err := g.close(time.Second); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("a handover whose patience has ended: %v", err)
		}
		changed := make(chan error)
		go func() {
			end, err := g.enter(t.Context(), "")
			if err == nil {
				end()
			}
			changed <- err
		}()
		synctest.Wait()
		select {
		case err := <-changed:
			t.Fatalf("a change before everything is open: %v", err)
		default:
		}
		close(g.opened)
		if err := <-changed; err != nil {
			t.Fatal(err)
		}
		if err := g.close(time.Second); err != nil {
			t.Fatal(err)
		}
		if _, err := g.enter(t.Context(), ""); !errors.Is(err, errHandingOver) {
			t.Fatalf("a change during a handover: %v", err)
		}
	})
}

// TestHandoverNamesChanges: who is kept out by a change that hangs is told which one that is.
func TestHandoverNamesChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g changeGate
		var ends []func()
		for _, what := range []string{"lvm lvcreate -s g/v", "the scheduled snapshot of volume v"} {
			end, err := g.enter(t.Context(), what)
			if err != nil {
				t.Fatal(err)
			}
			ends = append(ends, end)
		}
		time.Sleep(time.Minute)
		err := g.close(time.Second)
		if want := "lvm lvcreate -s g/v (for 1m1s), the scheduled snapshot of volume v (for 1m1s)"; err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
		for _, end := range ends {
			end()
		}
		if err := g.close(time.Second); err != nil || g.underWay() != "" {
			t.Errorf("afterwards: %v; %s", err, g.underWay())
		}
	})
}

// TestHandoverWaitsForChanges: it goes on when the last change has ended, at once; who comes meanwhile is let in, who
// comes during it waits for its end or is refused, and one handover waits for another.
func TestHandoverWaitsForChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g changeGate
		enter := func() func() {
			t.Helper()
			end, err := g.enter(t.Context(), "a change")
			if err != nil {
				t.Fatal(err)
			}
			return end
		}
		began, first, closed := time.Now(), enter(), make(chan error, 1)
		go func() { closed <- g.close(time.Hour) }()
		synctest.Wait()
		second := enter()
		first()
		synctest.Wait()
		if len(closed) > 0 {
			t.Fatal("a handover began during a change")
		}
		second()
		if err := <-closed; err != nil || time.Since(began) != 0 {
			t.Fatalf("%v, after %v", err, time.Since(began))
		}

		if _, err := g.enter(t.Context(), ""); !errors.Is(err, errHandingOver) {
			t.Errorf("a change during a handover: %v", err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := g.wait(ctx, ""); !errors.Is(err, context.Canceled) {
			t.Errorf("a change that nobody waits for any more: %v", err)
		}
		waited := make(chan error)
		go func() {
			leave, err := g.wait(t.Context(), "the reload by SIGHUP")
			if err == nil {
				leave()
			}
			waited <- err
		}()
		synctest.Wait()
		g.open()
		if err := <-waited; err != nil {
			t.Error(err)
		}
		if err := g.close(time.Hour); err != nil {
			t.Error(err)
		}
		go func() { closed <- g.close(time.Hour) }()
		synctest.Wait()
		g.open()
		if err := <-closed; err != nil || time.Since(began) != 0 {
			t.Errorf("one handover after another: %v, after %v", err, time.Since(began))
		}
	})
}

// TestHangupAfterATakeover: SIGHUP waits for that as an administrator does.
func TestHangupAfterATakeover(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		t.Setenv("RUNTIME_DIRECTORY", t.TempDir())
		cfg, err := exportConfig([]string{"m=memory,size=1MiB"})
		if err != nil {
			t.Fatal(err)
		}
		defaultPortal(cfg)
		loaded := make(chan struct{}, 1)
		a := &app{log: zap.NewNop()}
		if err := a.build(cfg, &serveFlags{}, registry.Config{Load: func() (*config.Config, error) {
			loaded <- struct{}{}
			return nil, errors.New("it is enough that it was read")
		}}); err != nil {
			t.Fatal(err)
		}
		defer a.reg.Close()
		a.changes.opened = make(chan struct{})
		hup := make(chan os.Signal, 1)
		go a.reloadOn(t.Context(), hup)
		hup <- syscall.SIGHUP
		synctest.Wait()
		if len(loaded) > 0 {
			t.Error("the file was read before everything was open")
		}
		close(a.changes.opened)
		<-loaded
	})
}
