package registry

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"

	"softiser/blockdev"
	"softiser/blockdev/mem"
	"softiser/config"
	"softiser/internal/await"
	"softiser/internal/leaktest"
	"softiser/target"
	"softiser/target/volume"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// storage stands for the volumes of a configuration: in memory, and held up on demand.
type storage struct {
	mu     sync.Mutex
	gates  map[string]chan struct{} // of volumes that do not answer; open or resize waits for it
	broken map[string]error         // why volumes cannot be opened
	opened map[string]int
	closed map[string]int
}

// stall has storage not answer for a volume until the returned function is called.
func (s *storage) stall(name string) (answer func()) {
	g := make(chan struct{})
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gates[name] = g
	return sync.OnceFunc(func() {
		s.mu.Lock()
		delete(s.gates, name)
		s.mu.Unlock()
		close(g)
	})
}

// breakDown has a volume not be opened for that reason; nil: it is.
func (s *storage) breakDown(name string, why error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.broken = map[string]error{name: why}
}

func (s *storage) wait(name string) {
	s.mu.Lock()
	g := s.gates[name]
	s.mu.Unlock()
	if g != nil {
		<-g
	}
}

func (s *storage) openings(name string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.opened[name]
}

func (s *storage) closings(name string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closed[name]
}

func (s *storage) open(v config.Volume) (blockdev.Device, error) {
	s.wait(v.Name)
	s.mu.Lock()
	err := s.broken[v.Name]
	if err == nil {
		s.opened[v.Name]++
	}
	s.mu.Unlock()
	if err != nil {
		return nil, err
	}
	d, err := mem.Open(mem.Config{Size: int64(v.Size)})
	if err != nil {
		return nil, err
	}
	return &device{Device: d, storage: s, name: v.Name}, nil
}

// device is a volume in memory.
type device struct {
	*mem.Device
	storage  *storage
	name     string
	resizing atomic.Int32
}

func (d *device) Resize(n int64) error {
	d.resizing.Add(1)
	defer d.resizing.Add(-1)
	d.storage.wait(d.name)
	return d.Device.Resize(n)
}

func (d *device) Close() error {
	if d.resizing.Load() > 0 {
		panic("closed while it is being resized")
	}
	d.storage.wait(d.name)
	d.storage.mu.Lock()
	d.storage.closed[d.name]++
	d.storage.mu.Unlock()
	return d.Device.Close()
}

// bed is a registry over such storage, with a configuration file.
type bed struct {
	*Registry
	t       *testing.T
	storage storage
	file    string
}

const base = `
portals: [{listen: "127.0.0.1:0"}]
volumes:
  - {name: sick, type: memory, size: 1MiB}
  - {name: well, type: memory, size: 1MiB}
targets:
  - iqn: iqn.2026-11.test:a
    luns: [{lun: 0, volume: sick}, {lun: 1, volume: well}]
`

func newBed(t *testing.T, text string) *bed {
	t.Helper()
	b := newClosedBed(t, text)
	if err := b.OpenVolumes(t.Context()); err != nil {
		t.Fatal(err)
	}
	return b
}

// newClosedBed is a bed whose volumes have not been opened.
func newClosedBed(t *testing.T, text string) *bed {
	t.Helper()
	t.Setenv("RUNTIME_DIRECTORY", t.TempDir())
	b := &bed{t: t, file: filepath.Join(t.TempDir(), "c.yaml")}
	b.storage.gates, b.storage.opened, b.storage.closed = map[string]chan struct{}{}, map[string]int{}, map[string]int{}
	b.write(text)
	cfg, err := config.Load(b.file)
	if err != nil {
		t.Fatal(err)
	}
	tc, err := ServerConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	srv, err := target.New(tc)
	if err != nil {
		t.Fatal(err)
	}
	b.Registry, err = New(cfg, Config{
		Server: srv, Log: zap.NewNop(), Open: b.storage.open, Load: func() (*config.Config, error) { return config.Load(b.file) },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return b
}

func (b *bed) write(text string) {
	b.t.Helper()
	if err := os.WriteFile(b.file, []byte(text), 0o600); err != nil {
		b.t.Fatal(err)
	}
}

// size of the volume of a LUN, 0 if it is not served.
func (b *bed) size(lun uint16) int64 {
	for _, t := range b.Status().Targets {
		for _, l := range t.LUNs {
			if l.LUN == lun && l.Error == "" {
				return l.Size
			}
		}
	}
	return 0
}

// impatient reloads for whoever waits only until nothing goes on any more but what storage
// does not answer: time in the test's bubble passes no sooner, however loaded the machine
// is. It returns what has not been done by then, as "action object: error".
func (b *bed) impatient() []string {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), time.Second)
	defer cancel()
	changes, _, err := b.Reload(ctx, false)
	if err != nil {
		b.t.Error(err)
	}
	var left []string
	for _, c := range changes {
		if c.Error != "" {
			left = append(left, c.Action+" "+c.Object+": "+c.Error)
		}
	}
	return left
}

// A volume whose storage does not answer at the start is served when it does, and holds up no other.
func TestStalledStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newClosedBed(t, base)
		answer := b.storage.stall("sick")
		defer answer()
		opened := make(chan error, 1)
		go func() { opened <- b.OpenVolumes(t.Context()) }()
		select {
		case err := <-opened:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(time.Minute):
			t.Fatal("the start waits")
		}
		if b.size(0) != 0 || b.size(1) != 1<<20 {
			t.Errorf("meanwhile the LUNs have %d and %d bytes", b.size(0), b.size(1))
		}
		if l := b.Status().Targets[0].LUNs[0]; !strings.Contains(l.Error, "storage has not answered yet") {
			t.Errorf("the status says %q", l.Error)
		}
		select {
		case <-b.Started():
			t.Error("it has started")
		default:
		}
		answer()
		<-b.Started()
		if b.size(0) != 1<<20 || b.Busy() != "" {
			t.Errorf("in the end the LUN has %d bytes, and storage is busy with %q", b.size(0), b.Busy())
		}
	})
}

// stalledStart is a bed whose volume sick does not answer at the start, over two wires, until answer is called.
func stalledStart(t *testing.T) (b *bed, answer func()) {
	b = newClosedBed(t, withSick())
	answer = b.storage.stall("sick")
	if err := b.OpenVolumes(t.Context()); err != nil {
		t.Error(err)
	}
	return b, answer
}

// withSick serves volume sick as a LUN and as a namespace.
func withSick() string {
	return base + `
subsystems:
  - nqn: nqn.2026-11.test:a
    namespaces: [{nsid: 1, volume: sick}, {nsid: 2, volume: well}]
`
}

// A reload that finds a volume on its way from the start brings it, as it would otherwise.
func TestReloadDuringAStalledStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, answer := stalledStart(t)
		defer answer()
		left := make(chan []Change, 1)
		go func() {
			changes, _, err := b.Reload(t.Context(), false)
			if err != nil {
				t.Error(err)
			}
			left <- changes
		}()
		synctest.Wait()
		answer()
		for _, c := range <-left {
			if c.Error != "" {
				t.Errorf("%s %s: %s", c.Action, c.Object, c.Error)
			}
		}
		<-b.Started()
		if b.size(0) != 1<<20 || !strings.Contains(b.spaces(), "1=sick") {
			t.Errorf("in the end the LUN has %d bytes, namespaces are %s", b.size(0), b.spaces())
		}
		if changes, _, err := b.Reload(t.Context(), false); err != nil || len(changes) > 0 {
			t.Errorf("afterwards: %v, %v", changes, err)
		}
	})
}

// A reload that waits for the attempt of another one goes on by itself when only the time of that is over.
func TestReloadAfterAnothersTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t, base)
		p, l := place{"iqn.2026-11.test:a", 2}, config.LUN{LUN: 2, Volume: "well"}
		others := b.mapping.ask(p, l)
		added := 0
		brought := make(chan error, 1)
		go func() {
			brought <- b.mapping.bring(t.Context(), p, l, func(c *coming) error {
				added++
				b.mapping.ended(c, p, nil)
				return nil
			})
		}()
		synctest.Wait()
		b.mapping.ended(others, p, fmt.Errorf("storage is busy: %w", context.DeadlineExceeded))
		if err := <-brought; err != nil || added != 1 {
			t.Errorf("%v, added %d times", err, added)
		}
	})
}

// What is removed by hand while its volume is on its way from the start is not served when the storage answers, and a
// reload brings it back.
func TestRemovedByHandDuringAStalledStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, answer := stalledStart(t)
		defer answer()
		const node = "2026-11.test:a"
		if err := errors.Join(b.RemoveLUN(t.Context(), "iqn."+node, 0), b.RemoveNamespace(t.Context(), "nqn."+node, 1)); err != nil {
			t.Error(err)
		}
		if gone := b.Status().Targets[0].LUNs[0].Error; !strings.Contains(gone, "removed by iser-target lun remove") {
			t.Errorf("status says %q", gone)
		}
		if err := b.RemoveLUN(t.Context(), "iqn."+node, 0); err == nil || !strings.Contains(err.Error(), "there is no LUN 0") {
			t.Errorf("once more: %v", err)
		}
		answer()
		<-b.Started()
		synctest.Wait()
		if b.size(0) != 0 || strings.Contains(b.spaces(), "sick") || b.storage.openings("sick") != b.storage.closings("sick") {
			t.Errorf("the LUN has %d bytes, namespaces are %s; opened %d times, closed %d", b.size(0), b.spaces(), b.storage.openings("sick"), b.storage.closings("sick"))
		}
		if _, _, err := b.Reload(t.Context(), false); err != nil || b.size(0) != 1<<20 || !strings.Contains(b.spaces(), "1=sick") {
			t.Errorf("after a reload: %v, the LUN has %d bytes, namespaces are %s", err, b.size(0), b.spaces())
		}
	})
}

// What a reload takes out of the configuration while its volume is on its way from the start is not served when the
// storage answers.
func TestRemovedDuringAStalledStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, answer := stalledStart(t)
		defer answer()
		b.write(strings.NewReplacer("{lun: 0, volume: sick}, ", "", "{nsid: 1, volume: sick}, ", "").Replace(withSick()))
		if left := b.impatient(); len(left) > 0 {
			t.Errorf("not done: %q", left)
		}
		answer()
		<-b.Started()
		synctest.Wait()
		if b.size(0) != 0 || strings.Contains(b.spaces(), "sick") || b.storage.openings("sick") != b.storage.closings("sick") {
			t.Errorf("in the end the LUN has %d bytes, namespaces are %s; opened %d times, closed %d", b.size(0), b.spaces(), b.storage.openings("sick"), b.storage.closings("sick"))
		}
	})
}

// A target that is asked to end while storage does not answer at the start opens nothing more.
func TestEndDuringAStalledStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newClosedBed(t, base)
		answer := b.storage.stall("sick")
		defer answer()
		ctx, cancel := context.WithCancel(t.Context())
		opened := make(chan error, 1)
		go func() { opened <- b.OpenVolumes(ctx) }()
		synctest.Wait()
		cancel()
		if err := <-opened; err != nil {
			t.Error(err)
		}
		answer()
		synctest.Wait()
		if b.storage.openings("well") != 0 {
			t.Error("it opens the next one")
		}
	})
}

// A volume whose storage does not answer while it is resized holds up no other, neither in
// the same reload nor in the next one; what it was asked for comes about in the end.
func TestStalledResize(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t, base)
		answer := b.storage.stall("sick")
		defer answer()
		grown := func(size string) string { return strings.ReplaceAll(base, "size: 1MiB", "size: "+size) }
		third := func(text string) string {
			return strings.NewReplacer("targets:", "  - {name: third, type: memory, size: 1MiB}\ntargets:", "volume: well}", "volume: well}, {lun: 2, volume: third}").Replace(text)
		}
		b.write(third(grown("2MiB")))
		left := b.impatient()
		if len(left) != 1 || !strings.HasPrefix(left[0], "resize volume sick to 2MiB: storage has not answered") {
			t.Errorf("not done: %q", left)
		}
		if b.size(1) != 2<<20 || b.size(2) != 1<<20 {
			t.Errorf("beside the volume that stalls: one that grows has %d bytes, a new one %d", b.size(1), b.size(2))
		}
		if busy := b.Busy(); busy != "resizing volume sick" {
			t.Errorf("storage is busy with %q", busy)
		}
		b.write(strings.Replace(third(grown("2MiB")), "well, type: memory, size: 2MiB", "well, type: memory, size: 3MiB", 1))
		left = b.impatient()
		if len(left) != 1 || !strings.HasPrefix(left[0], "resize volume sick to 2MiB: ") || b.size(1) != 3<<20 {
			t.Errorf("the second time not done: %q; the other volume has %d bytes", left, b.size(1))
		}
		answer()
		synctest.Wait()
		if b.size(0) != 2<<20 || b.Busy() != "" {
			t.Errorf("in the end the volume has %d bytes, and storage is busy with %q", b.size(0), b.Busy())
		}
		if changes, _, err := b.Reload(t.Context(), false); err != nil || len(changes) > 0 {
			t.Errorf("afterwards: %v, %v", changes, err)
		}
	})
}

// A reload that hangs, as on the storage of the file, holds up for ever neither who has asked for it nor who
// asks for the next one; when it goes on nothing is changed any more.
func TestStalledReload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t, base)
		answer, load := make(chan struct{}), b.load
		b.load = func() (*config.Config, error) { <-answer; return load() }
		b.write(strings.Replace(base, "{lun: 0, volume: sick}, ", "", 1))
		ended := make(chan error, 2)
		for range 2 {
			go func() {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				_, _, err := b.Reload(ctx, false)
				ended <- err
			}()
		}
		for range 2 {
			select {
			case err := <-ended:
				if !errors.Is(err, context.DeadlineExceeded) {
					t.Error(err)
				}
			case <-time.After(time.Minute):
				close(answer)
				t.Fatal("a reload waits for ever")
			}
		}
		close(answer)
		synctest.Wait()
		if b.size(0) != 1<<20 {
			t.Error("a reload that nobody waits for has changed something")
		}
		if changes, _, err := b.Reload(t.Context(), false); err != nil || len(changes) != 1 || b.size(0) != 0 {
			t.Errorf("the next one: %v, %v", changes, err)
		}
	})
}

// A volume whose storage does not let it be closed holds up neither the rest of a reload nor the next one.
func TestStalledClosing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t, base)
		answer := b.storage.stall("sick")
		defer answer()
		text := strings.NewReplacer("targets:", "  - {name: third, type: memory, size: 1MiB}\ntargets:", "{lun: 0, volume: sick}", "{lun: 2, volume: third}").Replace(base)
		b.write(text)
		changes, _, err := b.Reload(t.Context(), false)
		if err != nil || len(changes) != 2 || !strings.Contains(changes[0].Error, "volume sick: storage has not closed it yet") || changes[1].Error != "" || b.size(2) != 1<<20 {
			t.Errorf("%+v, %v; the volume that came has %d bytes", changes, err, b.size(2))
		}
		b.write(strings.Replace(text, "well, type: memory, size: 1MiB", "well, type: memory, size: 2MiB", 1))
		if changes, _, err := b.Reload(t.Context(), false); err != nil || len(changes) != 1 || changes[0].Error != "" {
			t.Errorf("the next time: %+v, %v", changes, err)
		}
		if busy := b.Busy(); busy != "closing volume sick" {
			t.Errorf("storage is busy with %q", busy)
		}
		answer()
		synctest.Wait()
		if b.storage.closings("sick") != 1 || b.Busy() != "" {
			t.Errorf("closed %d times, storage is busy with %q", b.storage.closings("sick"), b.Busy())
		}
	})
}

// A volume that is being resized when its last place goes is closed afterwards.
func TestCloseAfterResize(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t, base)
		answer := b.storage.stall("sick")
		defer answer()
		resized := make(chan error, 1)
		go func() { resized <- b.ResizeLUN(context.Background(), "iqn.2026-11.test:a", 0, 2<<20) }()
		synctest.Wait()
		if b.Busy() != "resizing volume sick" {
			t.Errorf("storage is busy with %q", b.Busy())
		}
		b.write(strings.Replace(base, "{lun: 0, volume: sick}, ", "", 1))
		b.impatient()
		if b.size(0) != 0 || b.storage.closings("sick") > 0 {
			t.Errorf("meanwhile: LUN 0 has %d bytes, and the volume has been closed %d times", b.size(0), b.storage.closings("sick"))
		}
		answer()
		if err := <-resized; err != nil {
			t.Error(err)
		}
		synctest.Wait()
		if b.storage.closings("sick") != 1 {
			t.Errorf("afterwards it has been closed %d times", b.storage.closings("sick"))
		}
	})
}

// Whoever waits for a volume that does not open holds up nobody who wants another one.
func TestStalledOpening(t *testing.T) {
	b := newBed(t, base)
	late := config.Volume{Name: "late", Type: config.VolumeMemory, Size: 1 << 20}
	answer := b.storage.stall("late")
	defer answer()
	added := make(chan error, 1)
	go func() { added <- b.AddLUN(context.Background(), "iqn.2026-11.test:a", 5, late) }()
	await.True(t, "it is being opened", func() bool { return b.Busy() == "opening volume late" })
	if err := b.AddLUN(t.Context(), "iqn.2026-11.test:a", 6, config.Volume{Name: "other", Type: config.VolumeMemory, Size: 1 << 20}); err != nil {
		t.Error(err)
	}
	if err := b.RemoveLUN(t.Context(), "iqn.2026-11.test:a", 1); err != nil || b.storage.closings("well") != 1 {
		t.Errorf("a LUN that is removed meanwhile: %v, closed %d times", err, b.storage.closings("well"))
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := b.AddLUN(ctx, "iqn.2026-11.test:a", 7, late); err == nil || !strings.Contains(err.Error(), "busy with volume late") {
		t.Errorf("once more: %v", err)
	}
	answer()
	if err := <-added; err != nil || b.size(5) != 1<<20 {
		t.Errorf("in the end: %v, %d bytes", err, b.size(5))
	}
}

// A volume that cannot be served is closed again, and its name is free.
func TestRefusedLUNLeavesNothing(t *testing.T) {
	b := newBed(t, base)
	const wwid = "6000000000000000000000000000da7a"
	if err := b.AddLUN(t.Context(), "iqn.2026-11.test:a", 3, config.Volume{Name: "first", Type: config.VolumeMemory, Size: 1 << 20, WWID: wwid}); err != nil {
		t.Fatal(err)
	}
	v := config.Volume{Name: "more", Type: config.VolumeMemory, Size: 1 << 20, WWID: wwid}
	if err := b.AddLUN(t.Context(), "iqn.2026-11.test:a", 2, v); err == nil {
		t.Error("two volumes have one name")
	}
	if b.storage.openings("more") != 1 || b.storage.closings("more") != 1 {
		t.Errorf("opened %d times, closed %d times", b.storage.openings("more"), b.storage.closings("more"))
	}
	v.Size, v.WWID = 2<<20, ""
	if err := b.AddLUN(t.Context(), "iqn.2026-11.test:a", 2, v); err != nil || b.size(2) != 2<<20 {
		t.Errorf("under the same name: %v, %d bytes", err, b.size(2))
	}
}

// What has no place is not opened, which may make a file: a LUN or a namespace of that number is
// there, or no such target or subsystem is.
func TestNoPlaceOpensNothing(t *testing.T) {
	b := newBed(t, withSubsystems())
	v := config.Volume{Name: "more", Type: config.VolumeMemory, Size: 1 << 20}
	for what, err := range map[string]error{
		"LUN 1 is there twice":             b.AddLUN(t.Context(), "iqn.2026-11.test:a", 1, v),
		"there is a target of any name":    b.AddLUN(t.Context(), "iqn.2026-11.test:other", 0, v),
		"namespace 1 is there twice":       b.AddNamespace(t.Context(), "nqn.2026-11.test:s", 1, v),
		"there is a subsystem of any name": b.AddNamespace(t.Context(), "nqn.2026-11.test:other", 1, v),
	} {
		if err == nil {
			t.Error(what)
		}
	}
	if n := b.storage.openings("more"); n != 0 {
		t.Errorf("the volume was opened %d times", n)
	}
}

const subsystems = `
subsystems:
  - nqn: nqn.2026-11.test:s
    namespaces: [{nsid: 1, volume: well}, {nsid: 2, volume: solo}]
`

// withSubsystems is the base with a subsystem of one volume that is a LUN as well and one
// that is not.
func withSubsystems() string {
	return strings.Replace(base, "targets:", "  - {name: solo, type: memory, size: 1MiB}\ntargets:", 1) + subsystems
}

// spaces lists what is served over NVMe, as "s1=well(1048576) s2=solo(1048576)".
func (b *bed) spaces() string {
	var all []string
	for _, s := range b.Status().Subsystems {
		for _, n := range s.Namespaces {
			if n.Error == "" {
				all = append(all, fmt.Sprintf("%s%d=%s(%d)", strings.TrimPrefix(s.NQN, "nqn.2026-11.test:"), n.NSID, n.Volume, n.Size))
			}
		}
	}
	return strings.Join(all, " ")
}

// Subsystems and their namespaces follow the file as targets and LUNs do.
func TestReloadSubsystems(t *testing.T) {
	b := newBed(t, withSubsystems())
	reload := func(text, changes, serves string) {
		t.Helper()
		b.write(text)
		dry, _, err := b.Reload(t.Context(), true)
		if err != nil {
			t.Fatal(err)
		}
		done, _, err := b.Reload(t.Context(), false)
		if err != nil || !reflect.DeepEqual(dry, done) {
			t.Errorf("%v; foreseen %v, done %v", err, dry, done)
		}
		var got []string
		for _, c := range done {
			got = append(got, strings.TrimSpace(c.Action+" "+c.Object+" "+c.Error))
		}
		if s := strings.Join(got, "\n"); s != changes {
			t.Errorf("changes:\n%s\nwant\n%s", s, changes)
		}
		if s := b.spaces(); s != serves {
			t.Errorf("serves %s\nwant   %s", s, serves)
		}
		if again, _, err := b.Reload(t.Context(), false); err != nil || len(again) > 0 {
			t.Errorf("once more: %v, %v", again, err)
		}
	}
	const s = "nqn.2026-11.test:s"
	text := withSubsystems()
	reload(text, "", "s1=well(1048576) s2=solo(1048576)")
	text = strings.NewReplacer("{nsid: 1, volume: well}", "{nsid: 1, volume: sick}", "{nsid: 2, volume: solo}", "{nsid: 3, volume: solo}").Replace(text)
	reload(text, "remove "+s+" namespace 2\nreplace "+s+" namespace 1 = sick\nadd "+s+" namespace 3 = solo", "s1=sick(1048576) s3=solo(1048576)")
	if b.storage.closings("solo")+b.storage.closings("well") != 0 {
		t.Error("a volume that is served elsewhere has been closed")
	}
	text = strings.Replace(text, "    namespaces", "    hosts: [\"nqn.2014-08.*\"]\n    namespaces", 1)
	reload(text, "update "+s+" hosts, keys, networks", "s1=sick(1048576) s3=solo(1048576)")
	if h := b.Status().Subsystems[0].Hosts; len(h) != 1 || h[0] != "nqn.2014-08.*" {
		t.Errorf("hosts %v", h)
	}
	state := func(want volume.PathState) {
		t.Helper()
		for _, n := range b.Status().Subsystems[0].Namespaces {
			if n.NSID == 3 && n.Access[1] != want {
				t.Errorf("namespace 3 is %v, want %v", n.Access, want)
			}
		}
	}
	text = strings.Replace(text, "{nsid: 3, volume: solo}", "{nsid: 3, volume: solo, ana: inaccessible}", 1)
	reload(text, "update "+s+" namespace 3 = solo ana", "s1=sick(1048576) s3=solo(1048576)")
	state(volume.PathInaccessible)
	text = strings.Replace(text, "volume: solo, ana: inaccessible}", "volume: solo}", 1)
	reload(text, "update "+s+" namespace 3 = solo ana", "s1=sick(1048576) s3=solo(1048576)")
	state(volume.PathOptimized)
	text = "discovery: {referrals: [{address: \"192.0.2.2:8009\"}]}\n" + text
	reload(text, "update discovery.referrals", "s1=sick(1048576) s3=solo(1048576)")
	text = strings.Replace(text, "solo, type: memory, size: 1MiB", "solo, type: memory, size: 2MiB, qos: {iops: 5}", 1)
	reload(text, "update volume solo qos\nresize volume solo to 2MiB", "s1=sick(1048576) s3=solo(2097152)")
	text = strings.Replace(text, "nqn: "+s, "nqn: nqn.2026-11.test:t", 1)
	reload(text, "remove "+s+"\nadd nqn.2026-11.test:t\nadd nqn.2026-11.test:t namespace 1 = sick\nadd nqn.2026-11.test:t namespace 3 = solo", "t1=sick(1048576) t3=solo(2097152)")
	if b.storage.closings("solo") != 0 {
		t.Error("a volume in memory has not kept its content")
	}
	reload(base, "remove nqn.2026-11.test:t\nupdate discovery.referrals", "")
	if b.storage.closings("solo") != 1 || b.storage.closings("sick") != 0 {
		t.Errorf("solo has been closed %d times, sick %d times", b.storage.closings("solo"), b.storage.closings("sick"))
	}
}

// A namespace that is added by hand is the volume that a LUN is, and what reload does not know.
func TestNamespaceByHand(t *testing.T) {
	b := newBed(t, withSubsystems())
	const s = "nqn.2026-11.test:s"
	v, err := b.Volume("sick")
	if err != nil {
		t.Fatal(err)
	}
	if err := b.AddNamespace(t.Context(), s, 7, v); err != nil {
		t.Fatal(err)
	}
	if err := b.AddNamespace(t.Context(), s, 7, v); err == nil {
		t.Error("it was added twice")
	}
	if err := b.ResizeVolume(t.Context(), "sick", 3<<20); err != nil || b.size(0) != 3<<20 || !strings.Contains(b.spaces(), "s7=sick(3145728)") {
		t.Errorf("%v; LUN 0 has %d bytes, and there are %s", err, b.size(0), b.spaces())
	}
	for _, v := range b.Status().Volumes {
		if v.Name == "sick" && strings.Join(v.Served, ", ") != "LUN 0 of iqn.2026-11.test:a, namespace 7 of "+s {
			t.Errorf("served as %q", v.Served)
		}
	}
	if changes, _, err := b.Reload(t.Context(), false); err != nil || len(changes) > 0 {
		t.Errorf("%v, %v", changes, err)
	}
	if err := b.RemoveNamespace(t.Context(), s, 2); err != nil || b.storage.closings("solo") != 1 {
		t.Errorf("%v, closed %d times", err, b.storage.closings("solo"))
	}
	if x := b.Status().Subsystems[0].Namespaces[1]; x.NSID != 2 || !strings.Contains(x.Error, "reload") {
		t.Errorf("status does not tell what is missing: %+v", x)
	}
	if changes, _, err := b.Reload(t.Context(), false); err != nil || len(changes) != 1 || !strings.Contains(b.spaces(), "s2=solo") {
		t.Errorf("%v, %v", changes, err)
	}
}

// What was added by hand becomes what the file says of it, once it stands there.
func TestByHandBecomesConfigured(t *testing.T) {
	b := newBed(t, withSubsystems())
	const iqn, nqn = "iqn.2026-11.test:a", "nqn.2026-11.test:s"
	byHand := func() {
		t.Helper()
		v, err := b.Volume("well")
		if err != nil {
			t.Fatal(err)
		}
		if err := b.RemoveLUN(t.Context(), iqn, 1); err != nil {
			t.Fatal(err)
		}
		if err := b.AddLUN(t.Context(), iqn, 1, v); err != nil {
			t.Fatal(err)
		}
	}
	readOnly := func() (all []string) {
		for _, x := range b.Status().Targets[0].LUNs {
			if x.ReadOnly {
				all = append(all, fmt.Sprint("LUN ", x.LUN))
			}
		}
		for _, x := range b.Status().Subsystems[0].Namespaces {
			if x.ReadOnly {
				all = append(all, fmt.Sprint("namespace ", x.NSID))
			}
		}
		return all
	}
	byHand()
	v, err := b.Volume("sick")
	if err != nil {
		t.Fatal(err)
	}
	if err := b.AddNamespace(t.Context(), nqn, 7, v); err != nil {
		t.Fatal(err)
	}
	b.write(strings.NewReplacer("{lun: 1, volume: well}", "{lun: 1, volume: well, read_only: true}",
		"namespaces: [", "namespaces: [{nsid: 7, volume: sick, read_only: true}, ").Replace(withSubsystems()))
	for i := range 2 {
		if left := b.impatient(); len(left) > 0 {
			t.Error(left)
		}
		if got := strings.Join(readOnly(), ", "); got != "LUN 1, namespace 7" {
			t.Errorf("after reload %d only these are read-only: %s", i, got)
		}
		byHand() // as the file does not say
	}
	for range 2 {
		if left := b.impatient(); len(left) > 0 {
			t.Error(left)
		}
	}
	if changes, _, err := b.Reload(t.Context(), false); err != nil || len(changes) > 0 {
		t.Errorf("a reload that finds nothing to do: %v, %v", changes, err)
	}
}

// A volume that comes with a reload has the workers that the same reload says.
func TestReloadWorkersOfNewVolume(t *testing.T) {
	b := newBed(t, base)
	b.write(strings.NewReplacer("targets:", "  - {name: new, type: memory, size: 1MiB}\ntargets:", "volume: well}", "volume: well}, {lun: 2, volume: new}").Replace(base) + "limits: {workers: 3}\n")
	if left := b.impatient(); len(left) > 0 {
		t.Error(left)
	}
	for _, o := range b.volumes.all() {
		// Workers come when there is something to wait for; how many may is told nowhere.
		most := reflect.ValueOf(b.srv.Volume(o.dev)).Elem().FieldByName("pool").FieldByName("most").Int()
		if most != 3 {
			t.Errorf("volume %s may have %d workers", o.cfg.Name, most)
		}
	}
}

// Why a LUN that was removed is missing is that, and not that something else could not be added there.
func TestRemovedAfterRefusal(t *testing.T) {
	b := newBed(t, withSubsystems())
	const iqn, nqn = "iqn.2026-11.test:a", "nqn.2026-11.test:s"
	v, err := b.Volume("well")
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(b.AddLUN(t.Context(), iqn, 1, v), b.AddNamespace(t.Context(), nqn, 1, v)); err == nil {
		t.Fatal("they were added twice")
	}
	if err := errors.Join(b.RemoveLUN(t.Context(), iqn, 1), b.RemoveNamespace(t.Context(), nqn, 1)); err != nil {
		t.Fatal(err)
	}
	st := b.Status()
	for _, why := range []string{st.Targets[0].LUNs[1].Error, st.Subsystems[0].Namespaces[0].Error} {
		if !strings.HasPrefix(why, "removed by") {
			t.Errorf("status says %q", why)
		}
	}
}

// Case does not count in the name of a target, whoever writes it: what is added under one spelling
// goes under another, and its volume with it.
func TestNamesOfTargetsInCapitals(t *testing.T) {
	b := newBed(t, base)
	const iqn, loud = "iqn.2026-11.test:a", "IQN.2026-11.Test:A"
	if err := b.AddLUN(t.Context(), loud, 7, config.Volume{Name: "new", Type: config.VolumeMemory, Size: 1 << 20, Placement: "direct"}); err != nil {
		t.Fatal(err)
	}
	if err := b.ResizeLUN(t.Context(), loud, 7, 2<<20); err != nil || b.size(7) != 2<<20 {
		t.Errorf("%v, %d bytes", err, b.size(7))
	}
	if err := b.RemoveLUN(t.Context(), iqn, 7); err != nil || b.storage.closings("new") != 1 {
		t.Errorf("%v; closed %d times", err, b.storage.closings("new"))
	}
	if err := b.RemoveLUN(t.Context(), loud, 1); err != nil || b.storage.closings("well") != 1 {
		t.Errorf("%v; closed %d times", err, b.storage.closings("well"))
	}
	if changes, _, err := b.Reload(t.Context(), false); err != nil || len(changes) != 1 || b.size(1) == 0 {
		t.Errorf("a reload does not bring it back: %v, %v", changes, err)
	}
}

// A reload changes who may log in to a target. What takes a start stays as it was and is told each time. The
// status counts both outcomes, and no dry run.
func TestReloadTarget(t *testing.T) {
	b := newBed(t, base)
	const iqn = "iqn.2026-11.test:a"
	reload := func(text string, done, failed uint64, changes ...string) {
		t.Helper()
		b.write(text)
		if _, _, err := b.Reload(t.Context(), true); err != nil {
			t.Fatal(err)
		}
		all, _, err := b.Reload(t.Context(), false)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, c := range all {
			got = append(got, strings.TrimSpace(c.Action+" "+c.Object+" "+c.Error))
		}
		if strings.Join(got, "\n") != strings.Join(changes, "\n") {
			t.Errorf("changes:\n%q\nwant\n%q", got, changes)
		}
		if st := b.Status().Reload; st.Done != done || st.Failed != failed || st.OK != (st.Error == "") || st.OK != !strings.Contains(strings.Join(got, ""), atStart) {
			t.Errorf("status %+v, want %d and %d", st, done, failed)
		}
	}
	t.Setenv("SECRET_OF_ALICE", "the secret of alice")
	only := strings.Replace(base, "    luns:", "    auth: {method: chap, users: [{name: alice, secret_env: SECRET_OF_ALICE}]}\n    luns:", 1)
	reload(only, 1, 0, "update "+iqn+" auth, acl, alias, redirect")
	if !b.Status().Targets[0].Auth {
		t.Error("initiators need not authenticate")
	}
	only = strings.Replace(only, "    luns:", "    acl: {initiators: [\"iqn.2026-11.test:only\"]}\n    luns:", 1)
	reload(only, 2, 0, "update "+iqn+" auth, acl, alias, redirect")
	reload(only, 3, 0)
	fixed := "iscsi: {queue_depth: 7}\n" + strings.Replace(only, "127.0.0.1:0", "127.0.0.2:0", 1)
	for i := range uint64(2) {
		reload(fixed, 3, 1+i, "update portals "+atStart, "update iscsi.queue_depth "+atStart)
	}
	if c := b.config(); c.ISCSI.QueueDepth == 7 || c.Portals[0].Listen != "127.0.0.1:0" {
		t.Errorf("in force: a queue depth of %d, portal %s", c.ISCSI.QueueDepth, c.Portals[0].Listen)
	}
	reload(base, 4, 2, "update "+iqn+" auth, acl, alias, redirect")
	if b.Status().Targets[0].Auth {
		t.Error("initiators must authenticate still")
	}
}
