package target_test

import (
	"bytes"
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"softiser/blockdev"
	"softiser/blockdev/faulty"
	"softiser/blockdev/file"
	"softiser/internal/await"
	"softiser/internal/iscsi"
	"softiser/internal/spc"
	"softiser/target"
	"softiser/target/scsi"
)

// over is a context that has ended: who has it does not wait.
func over() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

// quick has a shutdown give storage up at once.
func quick(c *target.Config) { c.Timeouts.Storage = time.Millisecond }

// held shuts the server down, which gives up and says which volume stalls; others are
// through before long, and named no more.
func held(t *testing.T, s *stalls) {
	t.Helper()
	for range 2 { // it has not become untrue
		if err := s.Shutdown(over()); !errors.Is(err, target.ErrVolumesHeld) || !strings.Contains(err.Error(), "volume sick") || !strings.Contains(err.Error(), stalledTarget) {
			t.Errorf("it does not say which volume holds it: %v", err)
		}
	}
	await.True(t, "only the volume that stalls is waited for", func() bool {
		return !strings.Contains(s.Shutdown(over()).Error(), "healthy")
	})
}

// TestStalledStorage: a shutdown during an endless stall ends, says which volume holds
// it, and has flushed the others; what was acknowledged is there afterwards.
func TestStalledStorage(t *testing.T) {
	for _, backend := range []string{"mem", "file", "linear", "thin", "snapshot"} {
		for _, c := range stallingCommands() {
			if backend == "mem" && c.op == faulty.Flush || (backend == "linear" || backend == "thin") && c.name == "UNMAP" {
				continue // nothing to wait for
			}
			t.Run(backend+"/"+c.name, func(t *testing.T) {
				s := serveStallable(t, backend, quick)
				second := addHealthy(t, s)
				p := mustLogIn(t, s.addr, stalledTarget, 1, 0, 2)
				p.do(0, spc.AppendWrite(nil, 0, 8, false), block(9), 0).good()
				p.do(0, spc.AppendSyncCache(nil, 0, 0, false), nil, 0).good()
				p.do(0, spc.AppendWrite(nil, 256, 8, false), block(7), 0).good()
				p.do(2, spc.AppendWrite(nil, 0, 8, false), block(8), 0).good()
				release := s.vol.stall(c.op)
				defer func() { release() }()
				a := p.start(0, c.cdb, c.data, c.n)
				await.True(t, "storage has the command", func() bool { return s.vol.below.Held() > 0 })

				flushes := second.flushes()
				held(t, s)
				if second.flushes() == flushes {
					t.Error("the last flush of another volume waits for the stall")
				}
				if _, err := a.get(); err == nil {
					t.Error("the stalled command was answered")
				}

				release()
				release = func() {}
				if err := s.Shutdown(context.Background()); err != nil {
					t.Errorf("the rest of the shutdown: %v", err)
				}
				want := map[int64][]byte{256 * 512: block(7)}
				if !strings.HasPrefix(c.name, "W") && c.name != "FUA" && c.name != "UNMAP" && c.name != "COMPARE AND WRITE" {
					want[0] = block(9)
				}
				for off, w := range want {
					got := make([]byte, len(w))
					if _, err := s.vol.ReadAt(got, off); err != nil || !bytes.Equal(got, w) {
						t.Errorf("what was acknowledged is not there at %d: %v", off, err)
					}
				}
			})
		}
	}
}

// flushed counts the flushes of a volume that have succeeded.
type flushed struct {
	blockdev.Device
	done chan struct{} // its length is their number
}

func (f *flushed) Flush() error {
	err := f.Device.Flush()
	if err == nil {
		f.done <- struct{}{}
	}
	return err
}

func (f *flushed) flushes() int { return len(f.done) }

// addHealthy puts a file that stalls never on LUN 2.
func addHealthy(t *testing.T, s *stalls) *flushed {
	t.Helper()
	v, err := file.Open(file.Config{Path: filepath.Join(t.TempDir(), "healthy"), Size: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	s.closers = append(s.closers, v.Close)
	f := &flushed{Device: faulty.New(v, 1), done: make(chan struct{}, 100)}
	if err := s.AddLUN(stalledTarget, target.LUN{Name: "healthy", LUConfig: scsi.LUConfig{LUN: 2, Volume: f}}); err != nil {
		t.Fatal(err)
	}
	return f
}

// TestStalledLastFlush: no command is under way, but the volume cannot be flushed: whoever
// ends its use waits as long as he likes, and can come back.
func TestStalledLastFlush(t *testing.T) {
	for how, end := range map[string]func(s *stalls, ctx context.Context) error{
		"Shutdown":     func(s *stalls, ctx context.Context) error { return s.Shutdown(ctx) },
		"RemoveLUN":    func(s *stalls, ctx context.Context) error { return s.RemoveLUN(ctx, stalledTarget, 0) },
		"RemoveTarget": func(s *stalls, ctx context.Context) error { return s.RemoveTarget(ctx, stalledTarget) },
	} {
		for _, backend := range []string{"file", "thin"} {
			t.Run(how+"/"+backend, func(t *testing.T) {
				s := serveStallable(t, backend, quick)
				p := mustLogIn(t, s.addr, stalledTarget, 1, 0)
				p.do(0, spc.AppendWrite(nil, 0, 8, false), block(1), 0).good()
				if code := p.logout().response(); code != iscsi.LogoutClosed {
					t.Fatalf("logout: response %d", code)
				}
				<-p.gone
				release := s.vol.stall(faulty.Flush)
				defer func() { release() }()
				for range 2 {
					if err := end(s, over()); err == nil || !strings.Contains(err.Error(), "LUN 0") {
						t.Errorf("%s while the flush stalls: %v", how, err)
					}
				}
				await.True(t, "the flush is with storage", func() bool { return s.vol.below.Held() > 0 })
				if how == "RemoveLUN" {
					st := s.Status().Targets[0].LUNs[0]
					if !st.Leaving || st.LUN != 0 {
						t.Errorf("status while it leaves: %+v", st)
					}
				}
				release()
				release = func() {}
				if err := end(s, context.Background()); err != nil {
					t.Errorf("%s after the stall: %v", how, err)
				}
			})
		}
	}
}

// TestStalledFlushFails: what a shutdown did not wait for is not forgotten: a flush that
// fails after the stall is the error of whoever asks again, initiators cut off or not.
func TestStalledFlushFails(t *testing.T) {
	s := serveStallable(t, "file", quick)
	p := mustLogIn(t, s.addr, stalledTarget, 1, 0)
	p.do(0, spc.AppendWrite(nil, 0, 8, false), block(1), 0).good()
	gate := make(chan struct{})
	s.vol.below.SetRules(faulty.Rule{Op: faulty.Flush, Hold: gate, Err: blockdev.ErrMedium})
	held(t, s)
	close(gate)
	if err := s.Shutdown(context.Background()); !errors.Is(err, blockdev.ErrMedium) {
		t.Errorf("the rest of the shutdown: %v", err)
	}
}

// TestFailedLastFlushIsTold: Serve fails when a volume could not be flushed, also when
// initiators had to be cut off.
func TestFailedLastFlushIsTold(t *testing.T) {
	vol := openStallable(t, "file")
	defer vol.close() //nolint:errcheck // its last flush has failed
	srv, err := target.New(target.Config{Portals: []target.Portal{{Listen: "127.0.0.1:0"}}, Timeouts: target.Timeouts{Drain: time.Millisecond}})
	if err != nil {
		t.Fatal(err)
	}
	if err := srv.AddTarget(target.Target{Name: stalledTarget, LUNs: []target.LUN{{Name: "sick", LUConfig: scsi.LUConfig{Volume: vol.Device}}}}); err != nil {
		t.Fatal(err)
	}
	if err := srv.Listen(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- srv.Serve(ctx) }()
	p := mustLogIn(t, srv.Addrs()[0], stalledTarget, 1, 0)
	p.do(0, spc.AppendWrite(nil, 0, 8, false), block(1), 0).good()
	vol.below.SetRules(faulty.Rule{Op: faulty.Flush, Err: blockdev.ErrMedium})
	cancel() // p does not log out
	if err := <-served; !errors.Is(err, blockdev.ErrMedium) {
		t.Errorf("Serve: %v", err)
	}
}

// TestRemoveTargetAsksEverybody: one session that waits for storage does not keep the
// others of a removed target.
func TestRemoveTargetAsksEverybody(t *testing.T) {
	s := serveStallable(t, "file", nil)
	var ps []*plain
	for i := range byte(3) {
		ps = append(ps, mustLogIn(t, s.addr, stalledTarget, 1+i, 0))
	}
	release := s.vol.stall(faulty.Read)
	defer func() { release() }()
	ps[0].start(0, spc.AppendRead(nil, 0, 8, false), nil, 4096) // the first in the server's order
	await.True(t, "storage has the command", func() bool { return s.vol.below.Held() > 0 })
	if err := s.RemoveTarget(over(), stalledTarget); !errors.Is(err, context.Canceled) {
		t.Errorf("RemoveTarget: %v", err)
	}
	for _, p := range ps[1:] {
		<-p.gone
	}
	release()
	release = func() {}
	if err := s.RemoveTarget(context.Background(), stalledTarget); err != nil {
		t.Error(err)
	}
}
