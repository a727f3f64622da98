package registry

import (
	"bytes"
	"context"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"softiser/blockdev"
	"softiser/config"
	"softiser/lvm"
	"softiser/lvm/vg"
	"softiser/target/snapshots"
)

// lvs are two volumes, one thin and one not, of a group in a file.
type lvs struct {
	t     *testing.T
	m     *lvm.Manager
	specs map[string]lvm.Spec
	open  map[string]blockdev.Device
}

func newLVs(t *testing.T) *lvs {
	file := filepath.Join(t.TempDir(), "disk")
	x := &lvs{t: t, m: &lvm.Manager{Config: lvm.Config{Config: vg.Config{LockDir: "-", ArchiveDir: "-", BackupDir: "-"}}}, open: map[string]blockdev.Device{}, specs: map[string]lvm.Spec{
		"thin":  {VG: "vg", LV: "thin", Devices: []string{file}, DeviceSize: 96 << 20, Size: 16 << 20, Pool: "pool", PoolSize: 16 << 20},
		"plain": {VG: "vg", LV: "plain", Devices: []string{file}, Size: 8 << 20},
	}}
	for _, name := range []string{"thin", "plain"} {
		dev, err := x.m.Open(x.specs[name])
		if err != nil {
			t.Fatal(err)
		}
		x.open[name] = dev
	}
	return x
}

func (x *lvs) close() {
	for name, dev := range x.open {
		if err := dev.Close(); err != nil {
			x.t.Errorf("%s: %v", name, err)
		}
	}
	if err := x.m.Close(); err != nil {
		x.t.Error(err)
	}
}

// write fills the beginning of both volumes.
func (x *lvs) write(fill byte) {
	x.t.Helper()
	for _, dev := range x.open {
		if _, err := dev.WriteAt(bytes.Repeat([]byte{fill}, 128<<10), 0); err != nil {
			x.t.Fatal(err)
		}
	}
}

// holds tells what the beginning of a volume is filled with.
func (x *lvs) holds(name string) byte {
	x.t.Helper()
	v, err := x.m.Group("vg").Volume(name)
	if err != nil {
		x.t.Fatal(err)
	}
	defer v.Close()
	p := make([]byte, 128<<10)
	if _, err := v.ReadAt(p, 0); err != nil {
		x.t.Fatal(err)
	}
	if !bytes.Equal(p, bytes.Repeat(p[:1], len(p))) {
		x.t.Errorf("%s is torn", name)
	}
	return p[0]
}

// names are those of the snapshots that begin with prefix, without it.
func (x *lvs) names(prefix string) string {
	v := x.m.Group("vg").Metadata()
	var all []string
	for _, lv := range v.LVs {
		if rest, ok := strings.CutPrefix(lv.Name, prefix); ok && v.Shown(lv) {
			all = append(all, rest)
		}
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

// Scheduled snapshots of a group in a file hold what their volume held at the time; only the
// oldest of the scheduler's own go, and none that is open, configured, tagged by nobody or named by
// a person.
func TestSnapshotsOfLogicalVolumes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newLVs(t)
		defer x.close()
		core, log := observer.New(zap.InfoLevel)
		configured := []config.Volume{{Type: config.VolumeLVM, VG: "vg", LV: "thin-20000101T010000Z"}}
		s := snapshots.New(snapshotStore{x.m, func() []config.Volume { return configured }}, zap.New(core))
		plan := snapshots.Plan{Volume: "t", Group: "vg", LV: "thin", Every: time.Hour, Keep: 2, Prefix: "thin"}
		plain := snapshots.Plan{Volume: "p", Group: "vg", LV: "plain", Every: time.Hour, Keep: 1, Prefix: "plain", Size: 1 << 20}
		s.Set([]snapshots.Plan{plan, plain})
		g := x.m.Group("vg")
		for _, o := range []lvm.ThinOptions{ // of a person
			{Name: "thin-mine", Origin: "thin", Tags: []string{snapshotTag}},
			{Name: "thin-19991231T000000Z", Origin: "thin"},
			{Name: "thin-19991230T000000Z", Pool: "pool", Extents: 1, Tags: []string{snapshotTag}},
		} {
			if err := g.CreateThin(t.Context(), o, "test"); err != nil {
				t.Fatal(err)
			}
		}
		const persons = "-19991230T000000Z -19991231T000000Z"
		ctx, cancel := context.WithCancel(t.Context())
		over := make(chan struct{})
		go func() {
			defer close(over)
			s.Run(ctx, func(string) (func(), error) { return func() {}, nil })
		}()
		var reader *lvm.Volume
		for hour := byte(0); hour < 6; hour++ {
			x.write(hour)
			if hour == 0 {
				s.Set([]snapshots.Plan{plan, plain}) // nothing new
			}
			time.Sleep(time.Hour) // virtual
			synctest.Wait()
			if hour == 1 {
				var err error
				if reader, err = g.Volume("thin-20000101T020000Z"); err != nil {
					t.Fatal(err)
				}
			}
		}
		if n, want := x.names("thin"), " "+persons+" -20000101T010000Z -20000101T020000Z -20000101T050000Z -20000101T060000Z -mine"; n != want {
			t.Errorf("thin: %q, want %q", n, want)
		}
		if n, want := x.names("plain"), " -20000101T060000Z"; n != want {
			t.Errorf("plain: %q, want %q", n, want)
		}
		for name, want := range map[string]byte{"thin-20000101T010000Z": 0, "thin-20000101T020000Z": 1, "thin-20000101T060000Z": 5, "plain-20000101T060000Z": 5} {
			if got := x.holds(name); got != want {
				t.Errorf("%s holds %d, want %d", name, got, want)
			}
		}
		if st := s.Status("t"); st.Failed != 0 || st.Kept != 4 || st.Last != "thin-20000101T060000Z" {
			t.Errorf("%+v", st)
		}
		for _, why := range []string{"it is open", "it is a volume of the configuration"} {
			n := 0
			for _, e := range log.All() {
				if e.ContextMap()["reason"] == why {
					n++
				}
			}
			if n != 1 {
				t.Errorf("%d lines say that %s", n, why)
			}
		}
		if err := reader.Close(); err != nil {
			t.Error(err)
		}
		plain.Size = 1 << 40
		s.Set([]snapshots.Plan{plan, plain})
		time.Sleep(time.Hour) // virtual
		synctest.Wait()
		if n := x.names("thin"); strings.Contains(n, "T020000Z") {
			t.Errorf("what is not open any more stays: %s", n)
		}
		if st := s.Status("p"); st.Failed != 1 || st.Kept != 1 || !strings.Contains(st.Error, "plain-20000101T070000Z") {
			t.Errorf("a store that does not fit: %+v", st)
		}
		plain.Size = 0
		plan.LV = "elsewhere"
		s.Set([]snapshots.Plan{plan, plain})
		time.Sleep(time.Hour) // virtual
		synctest.Wait()
		if st := s.Status("p"); !strings.Contains(st.Error, "snapshots.size") {
			t.Errorf("no size: %+v", st)
		}
		if st := s.Status("t"); st.Failed != 0 || !strings.Contains(st.Waiting, "vg/elsewhere is not open") {
			t.Errorf("a volume that is not open: %+v", st)
		}
		cancel()
		<-over
	})
}

// Volumes that say how often are taken snapshots of, as they say.
func TestSnapshotPlans(t *testing.T) {
	c := &config.Config{Volumes: []config.Volume{
		{Name: "never", Type: config.VolumeLVM, VG: "vg", LV: "a"},
		{Name: "hourly", Type: config.VolumeLVM, VG: "vg", LV: "b", Snapshots: config.Snapshots{Every: config.Duration(time.Hour), At: "00:30", Keep: 3, Size: 1 << 20}},
	}}
	want := []snapshots.Plan{{Volume: "hourly", Group: "vg", LV: "b", Every: time.Hour, At: 30 * time.Minute, Keep: 3, Prefix: "b", Size: 1 << 20}}
	if got := snapshotPlans(c); !slices.Equal(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
}
