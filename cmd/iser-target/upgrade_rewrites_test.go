package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"

	"softiser/config"
	"softiser/initiator"
	"softiser/internal/await"
	"softiser/internal/loopback"
	"softiser/internal/spc"
	"softiser/target/registry"
)

// cdb carries out a SCSI command without data, or with data for the target.
func cdb(t *testing.T, l *initiator.LUN, out []byte, b ...byte) error {
	t.Helper()
	return l.Do(t.Context(), &initiator.Request{Op: initiator.OpCDB, CDB: b, Buf: out})
}

// rewriting returns how far a sanitize or a format of a volume is in parts of 65536; false: none runs.
func rewriting(t *testing.T, l *initiator.LUN, what spc.ASC) (progress uint16, runs bool) {
	t.Helper()
	err := cdb(t, l, nil, 0, 0, 0, 0, 0, 0)
	for err != nil {
		var e *initiator.SenseError
		switch {
		case !errors.As(err, &e):
			t.Fatal(err)
		case e.Sense.Key == spc.KeyUnitAttention:
			err = cdb(t, l, nil, 0, 0, 0, 0, 0, 0)
			continue
		case e.Sense.ASC != what || !e.Sense.ProgressValid:
			t.Fatal(err)
		}
		return e.Sense.Progress, true
	}
	return 0, false
}

// rewriteSizes are those of the volumes of serveSizes, which are in memory: not every file system has files
// of that size.
var rewriteSizes = []string{"1TiB", "15TiB", "15TiB", "15TiB"}

// serveSizes serves sparse volumes of these sizes, each at a target of its own, with a state folder.
func serveSizes(t *testing.T) *served {
	t.Helper()
	dir := t.TempDir()
	text := "admin: {state_dir: " + filepath.Join(dir, "state") + "}\n"
	volumes, targets := "volumes:\n", "targets:\n"
	for i, size := range rewriteSizes {
		volumes += fmt.Sprintf("- {name: v%d, type: memory, size: %s}\n", i, size)
		targets += fmt.Sprintf("- {iqn: %q, luns: [{lun: 0, volume: v%d}]}\n", rewriteTarget(i), i)
	}
	f, _ := configFile(t, dir, text+volumes+targets)
	return serveProgram(t, "--config", f)
}

func rewriteTarget(i int) string { return fmt.Sprintf("iqn.2026-11.test:v%d", i) }

// TestUpgradeRewrites: a sanitize and a format in the background go on in the new process from where
// they stand, and end there: what was written before is gone, and the volume serves again. The
// volumes are sparse. One whose rewrite has ended before it could be seen in the new process has been too
// small for this host; the next one is there for that.
func TestUpgradeRewrites(t *testing.T) {
	for _, c := range []struct {
		name      string
		what      spc.ASC
		cdb, list []byte
	}{
		{"sanitize", spc.ASCSanitizeInProgress, []byte{0x48, 0x82, 0, 0, 0, 0, 0, 0, 0, 0}, nil},
		{"format", spc.ASCFormatInProgress, []byte{0x04, 0x10, 0, 0, 0, 0}, []byte{0, 0x02, 0, 0}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := serveSizes(t)
			for i, size := range rewriteSizes {
				l := attach(t, s.addr, rewriteTarget(i))
				defer l.Close()
				places := []int64{0, l.Info().Size / 2, l.Info().Size - 4096}
				for _, off := range places {
					if _, err := l.WriteAt(bytes.Repeat([]byte("to go"), 4096)[:4096], off); err != nil {
						t.Fatal(err)
					}
				}
				if err := cdb(t, l, c.list, c.cdb...); err != nil {
					t.Fatal(err)
				}
				before, ran := rewriting(t, l, c.what)
				if _, err := s.upgrade(); err != nil {
					t.Fatal(err)
				}
				after, runs := rewriting(t, l, c.what)
				if runs && (!ran || after < before) {
					t.Fatalf("it was at %d (%v) and is at %d", before, ran, after)
				}
				await.True(t, "it ends", func() bool { _, runs := rewriting(t, l, c.what); return !runs })
				got := make([]byte, 4096)
				for _, off := range places {
					if _, err := l.ReadAt(got, off); err != nil || !bytes.Equal(got, make([]byte, 4096)) {
						t.Fatalf("at %d: %.8q, %v", off, got, err)
					}
				}
				if _, err := l.WriteAt(got, 0); err != nil || l.Stats().Logins != 1 {
					t.Fatalf("%v, %d logins", err, l.Stats().Logins)
				}
				if runs {
					t.Logf("%s: from %d to %d of 65536 of %s", c.name, before, after, size)
					return
				}
			}
			t.Fatal("all have ended before the new process was there")
		})
	}
}

// TestUpgradeReserve: the reservation of SPC-2 of one session keeps another one off in the new
// process, and ends with its session. A sanitize of a volume that is opened anew refuses an upgrade.
func TestUpgradeReserve(t *testing.T) {
	s := serveProgram(t, "--export", "m=memory,size=8MiB", "--export", "z=null,size=1PiB")
	l, other := attach(t, s.addr, "iqn.2026-11.softiser:m"), attach(t, s.addr, "iqn.2026-11.softiser:m")
	defer other.Close()
	if err := cdb(t, l, nil, 0x16, 0, 0, 0, 0, 0); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := s.upgrade(); err != nil {
			t.Fatal(err)
		}
		var e *initiator.SenseError
		if err := cdb(t, other, nil, 0, 0, 0, 0, 0, 0); !errors.As(err, &e) || e.Status != spc.StatusReservationConflict {
			t.Fatalf("another session: %v", err)
		}
		if _, err := l.WriteAt(make([]byte, 4096), 0); err != nil || l.Stats().Logins != 1 {
			t.Fatal(err)
		}
	}
	l.Close()
	await.True(t, "the reservation has ended", func() bool { return cdb(t, other, nil, 0, 0, 0, 0, 0, 0) == nil })

	await.True(t, "the null volume is served again", func() bool {
		st := statusOf(t, s.socket)
		return len(st.Targets) == 2 && len(st.Targets[1].LUNs) == 1 && st.Targets[1].LUNs[0].Error == ""
	})
	z := attach(t, s.addr, "iqn.2026-11.softiser:z")
	defer z.Close()
	if err := cdb(t, z, []byte{31, 0, 0, 1, 0x55}, 0x48, 0x81, 0, 0, 0, 0, 0, 0, 5, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := s.upgrade(); err == nil || !strings.Contains(err.Error(), "volume z: it is opened anew") {
		t.Fatal(err)
	}
	if _, runs := rewriting(t, z, spc.ASCSanitizeInProgress); !runs {
		t.Fatal("it does not run any more")
	}
	if err := cdb(t, other, nil, 0, 0, 0, 0, 0, 0); err != nil || other.Stats().Logins != 1 {
		t.Fatal(err)
	}
}

// TestSettle: a rewrite that an upgrade would have to wait for is found before any of them has to stand
// still; those that stand still go on when an administrator's request keeps the upgrade from beginning.
func TestSettle(t *testing.T) {
	cfg, err := exportConfig([]string{"m=memory,size=1MiB", "z=null,size=1PiB"})
	if err != nil {
		t.Fatal(err)
	}
	addr := loopback.FreeAddr(t)
	cfg.Portals = []config.Portal{{Listen: addr, Group: 1}}
	a, ls := &app{log: zap.NewNop()}, &listeners{}
	if err := a.build(cfg, &serveFlags{drain: time.Second, storage: await.Deadline}, registry.Config{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.reg.Close)
	if err := errors.Join(ls.open(a.srv, cfg), a.openVolumes(t.Context(), nil)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- a.srv.Serve(ctx) }()
	t.Cleanup(func() { cancel(); <-served })
	m, z := attach(t, addr, "iqn.2026-11.softiser:m"), attach(t, addr, "iqn.2026-11.softiser:z")
	defer m.Close()
	defer z.Close()
	overwrite := func(l *initiator.LUN) {
		t.Helper()
		if err := cdb(t, l, []byte{31, 0, 0, 1, 0x55}, 0x48, 0x81, 0, 0, 0, 0, 0, 0, 5, 0); err != nil {
			t.Fatal(err)
		}
	}
	g := newGiving(a, ls, "")
	if err := g.settle(); err != nil {
		t.Fatal(err)
	}
	overwrite(m)
	leave, err := a.changes.enter(t.Context(), "lun add")
	if err != nil {
		t.Fatal(err)
	}
	defer func(was time.Duration) { changePatience = was }(changePatience)
	changePatience = time.Millisecond
	if _, err := g.freeze(); err == nil || !strings.Contains(err.Error(), "by lun add (for ") {
		t.Fatal(err)
	}
	leave()
	await.True(t, "the sanitize goes on to its end", func() bool {
		_, runs := rewriting(t, m, spc.ASCSanitizeInProgress)
		return !runs
	})
	overwrite(z)
	if err := g.settle(); err == nil || !strings.Contains(err.Error(), "volume z: it is opened anew") {
		t.Fatal(err)
	}
}
