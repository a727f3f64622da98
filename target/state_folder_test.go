package target_test

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"softiser/blockdev"
	"softiser/blockdev/file"
	"softiser/internal/iscsi"
	"softiser/internal/spc"
	"softiser/target"
	"softiser/target/scsi"
)

// stateFolder is a folder for state that can be made to take nothing.
type stateFolder struct {
	path   string
	fail   func()
	mend   func()
	served bool // a volume can be opened while it fails
}

// stateFolders are the ways in which a folder fails. Those of a file system of its own need
// root.
func stateFolders() map[string]func(t *testing.T) *stateFolder {
	own := func(t *testing.T) string {
		t.Helper()
		if os.Geteuid() != 0 {
			t.Skip("mounting a file system needs root")
		}
		dir := t.TempDir()
		if err := exec.Command("mount", "-t", "tmpfs", "-o", "size=256k", "state", dir).Run(); err != nil {
			t.Skipf("no tmpfs can be mounted: %v", err)
		}
		t.Cleanup(func() {
			if err := exec.Command("umount", dir).Run(); err != nil {
				t.Error(err)
			}
		})
		return dir
	}
	return map[string]func(t *testing.T) *stateFolder{
		"full": func(t *testing.T) *stateFolder {
			dir := own(t)
			filler := filepath.Join(dir, "filler")
			return &stateFolder{path: dir, served: true,
				fail: func() {
					f, err := os.Create(filler)
					if err != nil {
						t.Fatal(err)
					}
					defer f.Close()
					for err == nil {
						_, err = f.Write(make([]byte, 4096))
					}
				},
				mend: func() {
					if err := os.Remove(filler); err != nil {
						t.Fatal(err)
					}
				}}
		},
		"read-only": func(t *testing.T) *stateFolder {
			dir := own(t)
			remount := func(how string) func() {
				return func() {
					if out, err := exec.Command("mount", "-o", "remount,"+how, dir).CombinedOutput(); err != nil {
						t.Fatalf("%v: %s", err, out)
					}
				}
			}
			return &stateFolder{path: dir, served: true, fail: remount("ro"), mend: remount("rw")}
		},
		"gone": func(t *testing.T) *stateFolder { // somebody has moved it, and put something else there
			dir := filepath.Join(t.TempDir(), "state")
			if err := os.Mkdir(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			return &stateFolder{path: dir,
				fail: func() {
					if err := os.Rename(dir, dir+".moved"); err != nil {
						t.Fatal(err)
					}
					if err := os.WriteFile(dir, nil, 0o600); err != nil {
						t.Fatal(err)
					}
				},
				mend: func() {
					if err := os.Remove(dir); err != nil {
						t.Fatal(err)
					}
					if err := os.Rename(dir+".moved", dir); err != nil {
						t.Fatal(err)
					}
				}}
		},
	}
}

// life is one life of a target with state.
type life struct {
	srv    *target.Server
	vol    blockdev.Device
	served chan error
	logs   *observer.ObservedLogs
	ended  bool
}

func begin(t *testing.T, state, path string) *life {
	t.Helper()
	return beginWith(t, state, file.Config{Path: path, Size: 1 << 20, EpochDir: state})
}

func beginWith(t *testing.T, state string, c file.Config) *life {
	t.Helper()
	core, logs := observer.New(zap.InfoLevel)
	v, err := file.Open(c)
	if err != nil {
		t.Fatal(err)
	}
	l := &life{vol: v, served: make(chan error, 1), logs: logs}
	if l.srv, err = target.New(target.Config{Portals: []target.Portal{{Listen: "127.0.0.1:0"}}, StateDir: state, Log: zap.New(core)}); err != nil {
		t.Fatal(err)
	}
	if err := l.srv.AddTarget(target.Target{Name: stalledTarget, LUNs: []target.LUN{{Name: "disk", LUConfig: scsi.LUConfig{Volume: v}}}}); err != nil {
		t.Fatal(err)
	}
	if err := l.srv.Listen(); err != nil {
		t.Fatal(err)
	}
	go func() { l.served <- l.srv.Serve(context.Background()) }()
	t.Cleanup(func() { l.end(t) })
	return l
}

func (l *life) logIn(t *testing.T) *plain {
	t.Helper()
	return mustLogIn(t, l.srv.Addrs()[0], stalledTarget, 1, 0)
}

// end is an orderly end; what the folder does not take is no failure of it.
func (l *life) end(t *testing.T) {
	t.Helper()
	if l.ended {
		return
	}
	l.ended = true
	l.srv.Shutdown(over()) //nolint:errcheck // initiators are cut off
	if err := l.srv.Shutdown(context.Background()); err != nil {
		t.Errorf("Shutdown: %v", err)
	}
	<-l.served
	l.vol.Close() //nolint:errcheck // the record of its cache may not have been written
}

// said reports whether the log tells of a cause.
func (l *life) said() bool {
	for _, e := range l.logs.All() {
		if err, _ := e.ContextMap()["error"].(string); strings.Contains(err, "no space left") || strings.Contains(err, "read-only file system") ||
			strings.Contains(err, "not a directory") {
			return true
		}
	}
	return false
}

const internalFailure = uint32(spc.KeyHardware)<<16 | uint32(spc.ASCInternalFailure)

func persistOut(sa byte, key, action uint64, aptpl bool) (cdb, data []byte) {
	data = (&spc.PersistOut{Key: key, ActionKey: action, APTPL: aptpl}).Append(nil)
	return spc.AppendPersistOut(nil, sa, spc.PRWriteExclusive, uint32(len(data))), data
}

// keeping are commands that promise something for after a restart, in an order in which
// all of them work; holds tells from a new life of the target whether the promise was kept.
func keeping() []struct {
	name      string
	cdb, data []byte
} {
	type c = struct {
		name      string
		cdb, data []byte
	}
	register, registerList := persistOut(spc.SAProutRegisterIgnore, 0, 7, true)
	mode := []byte{0, 0, 0, 0, 0, 0, 0, 0, 0x0A, 10, 0, 0x10, 0, 0, 0, 0, 0, 0, 0, 0}
	selecting := []byte{0x55, 0x11, 0, 0, 0, 0, 0, 0, byte(len(mode)), 0}
	overwrite := []byte{0x48, 2, 0, 0, 0, 0, 0, 0, 0, 0} // SANITIZE, BLOCK ERASE
	return []c{
		{"PERSISTENT RESERVE OUT with APTPL", register, registerList},
		{"MODE SELECT with SP", selecting, mode},
		{"WRITE ATOMIC", spc.AppendWriteAtomic16(nil, 16, 8, false), block(6)},
		{"FORMAT UNIT", []byte{0x04, 0, 0, 0, 0, 0}, nil},
		{"SANITIZE", overwrite, nil},
	}
}

// TestStateFolderFullOrReadOnly: what has to be remembered is refused while it cannot be,
// and the log says why; everything else goes on, and what was refused has no effect, now
// or after a restart. When the folder takes things again nothing else has to be done.
func TestStateFolderFullOrReadOnly(t *testing.T) {
	for how, folder := range stateFolders() {
		t.Run(how, func(t *testing.T) {
			f := folder(t)
			path := filepath.Join(t.TempDir(), "v")
			l := begin(t, f.path, path)
			p := l.logIn(t)
			p.do(0, spc.AppendWrite(nil, 16, 8, false), block(5), 0).good()

			f.fail()
			for _, c := range keeping() {
				if status, sense := p.do(0, c.cdb, c.data, 0).status(); status != 2 || sense != internalFailure {
					t.Errorf("%s: status %#x, sense %#06x, want %#06x", c.name, status, sense, internalFailure)
				}
				if got := p.do(0, spc.AppendRead(nil, 16, 8, false), nil, 4096).good(); !bytes.Equal(got, block(5)) {
					t.Errorf("%s was refused, and has changed the volume", c.name)
				}
				p.do(0, spc.AppendWrite(nil, 32, 8, true), block(3), 0).good()
			}
			if !l.said() {
				t.Errorf("the log does not say why:\n%v", l.logs.All())
			}
			// What promises nothing works.
			register, list := persistOut(spc.SAProutRegisterIgnore, 0, 9, false)
			p.do(0, register, list, 0).good()
			unregister, list := persistOut(spc.SAProutRegister, 9, 0, false)
			p.do(0, unregister, list, 0).good()
			other := mustLogIn(t, l.srv.Addrs()[0], stalledTarget, 2, 0)
			other.do(0, spc.AppendSyncCache(nil, 0, 0, false), nil, 0).good()
			if code := other.logout().response(); code != iscsi.LogoutClosed {
				t.Errorf("logout: response %d", code)
			}
			if f.served { // an end and a beginning without anywhere to keep things
				l.end(t)
				l = begin(t, f.path, path)
				p = l.logIn(t)
				if got := p.do(0, spc.AppendRead(nil, 16, 8, false), nil, 4096).good(); !bytes.Equal(got, block(5)) {
					t.Error("after a restart the volume is not what it was")
				}
			}

			f.mend()
			for _, c := range keeping()[:3] {
				if status, sense := p.do(0, c.cdb, c.data, 0).status(); status != 0 {
					t.Errorf("%s when there is room again: status %#x, sense %#06x", c.name, status, sense)
				}
			}
			l.end(t)
			l = begin(t, f.path, path)
			p = l.logIn(t)
			keys := p.do(0, spc.AppendPersistIn(nil, 0, 64), nil, 64).good()
			if len(keys) < 16 || keys[15] != 7 {
				t.Errorf("registrations after a restart: % x", keys)
			}
			if page := p.do(0, spc.AppendModeSense6(nil, true, 0, 0x0A, 0, 64), nil, 64).good(); len(page) < 16 || page[4+3]>>4 != 1 {
				t.Errorf("saved mode page after a restart: % x", page)
			}
			if got := p.do(0, spc.AppendRead(nil, 16, 8, false), nil, 4096).good(); !bytes.Equal(got, block(6)) {
				t.Error("what WRITE ATOMIC has written is not there")
			}
		})
	}
}

// TestStateFolderFailsLater: what is kept and cannot be taken back any more stays in force:
// a reservation that a restart would bring back is not said to be gone.
func TestStateFolderFailsLater(t *testing.T) {
	for how, folder := range stateFolders() {
		t.Run(how, func(t *testing.T) {
			f := folder(t)
			path := filepath.Join(t.TempDir(), "v")
			l := begin(t, f.path, path)
			p := l.logIn(t)
			register, list := persistOut(spc.SAProutRegister, 0, 7, true)
			p.do(0, register, list, 0).good()
			reserve, list := persistOut(spc.SAProutReserve, 7, 0, false)
			p.do(0, reserve, list, 0).good()
			f.fail()
			for _, sa := range []byte{spc.SAProutRelease, spc.SAProutClear} {
				cdb, list := persistOut(sa, 7, 0, false)
				if status, sense := p.do(0, cdb, list, 0).status(); status != 2 || sense != internalFailure {
					t.Errorf("service action %d: status %#x, sense %#06x", sa, status, sense)
				}
			}
			other := mustLogIn(t, l.srv.Addrs()[0], stalledTarget, 2, 0)
			if status, _ := other.do(0, spc.AppendWrite(nil, 0, 8, false), block(1), 0).status(); status != byte(spc.StatusReservationConflict) {
				t.Errorf("a WRITE against the reservation: status %#x", status)
			}
			if f.served {
				l.end(t)
				l = begin(t, f.path, path)
				other = mustLogIn(t, l.srv.Addrs()[0], stalledTarget, 2, 0)
				if status, _ := other.do(0, spc.AppendWrite(nil, 0, 8, false), block(1), 0).status(); status != byte(spc.StatusReservationConflict) {
					t.Errorf("after a restart, a WRITE against the reservation: status %#x", status)
				}
				p = l.logIn(t)
			}
			f.mend()
			release, list := persistOut(spc.SAProutClear, 7, 0, false)
			p.do(0, release, list, 0).good()
			other.ready(0)
			other.do(0, spc.AppendWrite(nil, 0, 8, false), block(1), 0).good()
		})
	}
}

// TestStateFolderReadOnlyAtStart: what an orderly end and a crash have left in the folder,
// and what cannot be removed now, does not keep a volume from being served.
func TestStateFolderReadOnlyAtStart(t *testing.T) {
	f := stateFolders()["read-only"](t)
	c := file.Config{Path: filepath.Join(t.TempDir(), "v"), Size: 1 << 20} // whose epoch is the unit's
	l := beginWith(t, f.path, c)
	register, list := persistOut(spc.SAProutRegister, 0, 7, true)
	l.logIn(t).do(0, register, list, 0).good()
	l.end(t)
	left, err := filepath.Glob(filepath.Join(f.path, "lu-*"))
	if err != nil || len(left) != 2 {
		t.Fatalf("an orderly end leaves %v, %v; want the state and the epoch", left, err)
	}
	for _, name := range left {
		if err := os.WriteFile(name+".new-1", []byte("torn"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	f.fail()
	l = beginWith(t, f.path, c)
	keys := l.logIn(t).do(0, spc.AppendPersistIn(nil, 0, 64), nil, 64).good()
	if len(keys) < 16 || keys[15] != 7 {
		t.Errorf("registrations: % x", keys)
	}
	l.end(t)
	f.mend()
}
