package lvm

import (
	"bytes"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"softiser/blockdev"
	"softiser/blockdev/open"
	"softiser/lvm/vg"
)

// fileConfig keeps everything that tests write below their own directory.
func fileConfig(t testing.TB) (Config, string) {
	dir := t.TempDir()
	return Config{Config: vg.Config{LockDir: dir + "/lock", ArchiveDir: dir + "/archive", BackupDir: dir + "/backup"}}, dir
}

// TestManagerLayouts: what a configuration can create.
func TestManagerLayouts(t *testing.T) {
	cfg, dir := fileConfig(t)
	m := &Manager{Config: cfg}
	base := Spec{VG: "vg0", Devices: []string{filepath.Join(dir, "a.img"), filepath.Join(dir, "b.img")}, Size: 16 << 20, DeviceSize: 128 << 20}
	striped, thin, second, nowhere := base, base, base, base
	striped.LV, striped.Stripes, striped.StripeSize = "striped", 2, 16<<10
	thin.LV, thin.Pool, thin.PoolSize, thin.Size, thin.Stripes, thin.ErrorWhenFull = "thin", "pool", 32<<20, 1<<40, 2, true
	second.LV, second.Pool = "second", "pool" // which is there by then
	nowhere.LV, nowhere.Pool = "nowhere", "nopool"
	for range 2 { // made, and found
		for _, s := range []Spec{striped, thin, second} {
			d, err := m.Open(s)
			must(t, err)
			if is := m.Group("vg0").Metadata().LV(s.LV).Segments[0].Pool; d.Info().Size != s.Size || is != s.Pool {
				t.Errorf("%s: %+v, in pool %q", s.LV, d.Info(), is)
			}
			must(t, d.Close())
		}
	}
	if _, err := m.Open(nowhere); err == nil || !strings.Contains(err.Error(), "pool_size") {
		t.Error(err)
	}
	v := m.Group("vg0").Metadata()
	if s := v.LV("striped").Segments[0]; len(s.Stripes) != 2 || s.StripeSize != 32 {
		t.Errorf("striped: %+v", s)
	}
	if s := v.LV("pool_tdata").Segments[0]; len(s.Stripes) != 2 || s.StripeSize != DefaultStripe || !v.LV("pool").Is("ERROR_WHEN_FULL") {
		t.Errorf("the pool's data: %+v", s)
	}
	must(t, m.Close())
}

// TestManagerRefusesParts: what users do not see is not served.
func TestManagerRefusesParts(t *testing.T) {
	cfg, dir := fileConfig(t)
	m := &Manager{Config: cfg}
	s := Spec{VG: "vg0", LV: "thin", Devices: []string{filepath.Join(dir, "a.img")}, Size: 16 << 20, DeviceSize: 128 << 20, Pool: "pool", PoolSize: 32 << 20}
	d, err := m.Open(s)
	must(t, err)
	must(t, m.Group("vg0").Create(CreateOptions{Name: "o", Extents: 2}, "lvcreate"))
	must(t, m.Group("vg0").Snapshot(bg, SnapshotOptions{Origin: "o", Name: "s", Extents: 2}, "lvcreate"))
	for lv, want := range map[string]string{
		"pool": "no content of its own", "pool_tdata": "part of another volume", "pool_tmeta": "part of another volume",
		"lvol0_pmspare": "part of another volume", "snapshot0": "no content of its own", "o": "", "s": "", "thin": "",
	} {
		s.LV = lv
		switch d, err := m.Open(s); {
		case err == nil:
			must(t, d.Close())
			if want != "" {
				t.Errorf("%s is served", lv)
			}
		case want == "" || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "vg0/"+lv):
			t.Errorf("%s: %v", lv, err)
		}
	}
	must(t, d.Close())
	must(t, m.Close())
}

func TestManager(t *testing.T) {
	cfg, dir := fileConfig(t)
	spec := Spec{VG: "vg0", LV: "data", Devices: []string{filepath.Join(dir, "a.img"), filepath.Join(dir, "b.img")}, Size: 20 << 20, DeviceSize: 64 << 20}
	for round := range 2 {
		m := &Manager{Config: cfg}
		d, err := m.Open(spec)
		must(t, err)
		other := spec
		other.LV = "more"
		e, err := m.Open(other)
		must(t, err)
		p := []byte(strings.Repeat("x", 512))
		if round == 0 {
			if _, err := d.WriteAt(p, 4096); err != nil {
				t.Fatal(err)
			}
		}
		got := make([]byte, 512)
		if _, err := d.ReadAt(got, 4096); err != nil || !bytes.Equal(got, p) {
			t.Fatal("content", err)
		}
		if d.Info().Size != 20<<20 {
			t.Fatal(d.Info().Size)
		}
		must(t, d.Close())
		must(t, e.Close())
		must(t, m.Close())
		spec.Size = 0 // the second time everything is there
	}
	if _, err := (&Manager{Config: cfg}).Open(Spec{VG: "nope", LV: "x", Devices: spec.Devices}); err == nil {
		t.Fatal("a group that does not exist was opened")
	}
	g, err := Open(cfg, spec.Devices, "vg0")
	must(t, err)
	must(t, volume(t, g, "more").Close())
	must(t, g.Close())
	if pvck, err := exec.LookPath("pvck"); err == nil {
		out, err := exec.Command(pvck, "--dump", "metadata", spec.Devices[0]).CombinedOutput()
		if err != nil || !strings.Contains(string(out), "data {") {
			t.Fatalf("pvck: %v\n%s", err, out)
		}
	}
}

// badClose is a disk whose Close fails, and closes it.
type badClose struct {
	blockdev.Device
	err error
}

func (d badClose) Close() error { return errors.Join(d.err, d.Device.Close()) }

// TestDrop: a group is closed unless a volume of it is open, and is opened again when it is needed, also if
// its end was not a good one.
func TestDrop(t *testing.T) {
	cfg, dir := fileConfig(t)
	var bad error
	cfg.Open = func(path string) (blockdev.Device, error) {
		d, err := open.Open(open.Spec{Path: path})
		if err == nil && bad != nil {
			d = badClose{d, bad}
		}
		return d, err
	}
	m := &Manager{Config: cfg}
	spec := Spec{VG: "vg0", LV: "v", Devices: []string{filepath.Join(dir, "a.img")}, Size: 4 << 20}
	for _, bad = range []error{errors.New("boom"), fmt.Errorf("a lease is open: %w", blockdev.ErrInUse)} {
		d, err := m.Open(spec)
		must(t, err)
		if err := m.Drop("vg0"); !errors.Is(err, blockdev.ErrInUse) || m.Group("vg0") == nil {
			t.Fatalf("with an open volume: %v", err)
		}
		must(t, d.Close())
		if err := m.Drop("vg0"); !errors.Is(err, bad) || m.Group("vg0") != nil {
			t.Fatalf("with a disk that cannot be closed well: %v", err)
		}
	}
	bad = nil
	d, err := m.Open(spec)
	must(t, err)
	must(t, d.Close())
	must(t, m.Drop("vg0"))
	if err := m.Drop("vg0"); !errors.Is(err, vg.ErrNotFound) {
		t.Fatalf("twice: %v", err)
	}
	must(t, m.Close())
}

// TestMadeOnce: of several that ask at once for a volume that is missing, or for volumes of a pool that is,
// one makes it, and the others find it. Two others keep the group busy: who has waited for a mutex
// for over a millisecond gets it in turn, so that all look before one makes anything.
func TestMadeOnce(t *testing.T) {
	cfg, dir := fileConfig(t)
	m := &Manager{Config: cfg}
	base := Spec{VG: "vg0", LV: "first", Devices: []string{filepath.Join(dir, "a.img")}, Size: 4 << 20, DeviceSize: 1 << 30}
	first, err := m.Open(base)
	must(t, err)
	must(t, first.Close())
	g := m.Group("vg0")
	var busy sync.WaitGroup
	enough := make(chan struct{})
	for range 2 {
		busy.Go(func() {
			for {
				select {
				case <-enough:
					return
				default:
				}
				g.mu.Lock()
				time.Sleep(2 * time.Millisecond) // longer than the millisecond
				g.mu.Unlock()
			}
		})
	}
	opened := make(chan error)
	for _, specs := range []func(i int) Spec{
		func(int) Spec { s := base; s.LV = "data"; return s },
		func(i int) Spec {
			s := base
			s.LV, s.Pool, s.PoolSize = fmt.Sprint("thin", i), "pool", 16<<20
			return s
		},
	} {
		for i := range 4 {
			go func() {
				v, err := m.Open(specs(i))
				if err == nil {
					err = v.Close()
				}
				opened <- err
			}()
		}
		for range 4 {
			if err := <-opened; err != nil {
				t.Error(err)
			}
		}
	}
	close(enough)
	busy.Wait()
	must(t, m.Close())
}

// TestDroppedWhileOpened: who opens a volume while its group is dropped has the group, or opens it anew.
func TestDroppedWhileOpened(t *testing.T) {
	cfg, dir := fileConfig(t)
	m := &Manager{Config: cfg}
	s := Spec{VG: "vg0", LV: "data", Devices: []string{filepath.Join(dir, "a.img")}, Size: 4 << 20, DeviceSize: 64 << 20}
	enough := make(chan struct{})
	var dropping sync.WaitGroup
	dropping.Go(func() {
		for {
			select {
			case <-enough:
				return
			default:
			}
			if err := m.Drop("vg0"); err != nil && !errors.Is(err, blockdev.ErrInUse) && !errors.Is(err, vg.ErrNotFound) {
				t.Error(err)
			}
		}
	})
	for range 100 {
		v, err := m.Open(s)
		if err != nil {
			t.Error(err)
			break
		}
		must(t, v.Close())
	}
	close(enough)
	dropping.Wait()
	must(t, m.Close())
}

// TestHungDisk: a disk that does not answer while its group is opened holds that group up, twice asked for
// and opened once, and no other one.
func TestHungDisk(t *testing.T) {
	cfg, dir := fileConfig(t)
	hung, answers := make(chan struct{}, 1), make(chan struct{})
	cfg.Open = func(p string) (blockdev.Device, error) {
		if filepath.Base(p) == "hung.img" {
			hung <- struct{}{}
			<-answers
		}
		return open.Open(open.Spec{Path: p})
	}
	m := &Manager{Config: cfg}
	spec := func(vg string) Spec {
		return Spec{VG: vg, LV: "data", Devices: []string{filepath.Join(dir, vg+".img")}, Size: 4 << 20, DeviceSize: 64 << 20}
	}
	opened := make(chan error, 2)
	for range 2 {
		go func() {
			v, err := m.Open(spec("hung"))
			if err == nil {
				err = v.Close()
			}
			opened <- err
		}()
	}
	<-hung
	v, err := m.Open(spec("well"))
	must(t, err)
	must(t, v.Close())
	if got := m.Groups(); len(got) != 1 || got[0] != "well" {
		t.Errorf("groups %v", got)
	}
	must(t, m.Drop("well"))
	close(answers)
	must(t, <-opened)
	must(t, <-opened)
	must(t, m.Close())
	if len(hung) != 0 {
		t.Error("the disk was opened twice")
	}
}
