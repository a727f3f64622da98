package scsi

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"softiser/blockdev"
	"softiser/internal/spc"
)

// volatileVolume has a cache: that of the process unless it has a name.
type volatileVolume struct {
	blockdev.Device
	cache string
	flush error
	grown func(blockdev.Info)
}

func (v *volatileVolume) OnResize(f func(blockdev.Info)) func() {
	before := v.grown
	v.grown = func(i blockdev.Info) {
		if before != nil {
			before(i)
		}
		f(i)
	}
	return v.Device.OnResize(f)
}

func (v *volatileVolume) Info() blockdev.Info {
	i := v.Device.Info()
	i.WriteCache, i.CacheID = true, v.cache
	return i
}

func (v *volatileVolume) Flush() error {
	if v.flush != nil {
		return v.flush
	}
	return v.Device.Flush()
}

// What an initiator finds after an orderly end of the target, and after a crash.
func TestCacheEpochs(t *testing.T) {
	dir := t.TempDir()
	epoch := func(v *volatileVolume, orderly bool) [16]byte {
		t.Helper()
		r := newRig(t, Config{StateDir: dir}, LUConfig{Volume: v})
		q, err := spc.ParseInquiryData(r.do(spc.AppendInquiry(nil, spc.InquiryLen), nil, spc.InquiryLen).good().data)
		if err != nil || q.Epoch == [16]byte{} {
			t.Fatalf("%+v, %v", q, err)
		}
		r.close()
		r.nx = nil
		if !orderly { // a crash leaves no file
			if err := os.Remove(r.dev.epochFiles(t)); err != nil {
				t.Fatal(err)
			}
		}
		return q.Epoch
	}
	own := func(flush error) *volatileVolume { return &volatileVolume{newNamed(t, "a"), "", flush, nil} }
	first := epoch(own(nil), true)
	if again := epoch(own(nil), false); again != first {
		t.Error("an orderly end has lost nothing")
	}
	crashed := epoch(own(nil), true)
	if crashed == first {
		t.Error("the epoch of before the crash came back")
	}
	if epoch(own(errors.New("full")), true) != crashed {
		t.Error("the orderly end before this one has lost nothing")
	}
	if epoch(own(nil), true) == crashed {
		t.Error("the last flush had failed")
	}
}

// What is durable when it is acknowledged cannot be lost, by no crash: over NVMe, whose
// controllers tell of a cache if they have one for any namespace, hosts rely on that alone.
func TestEpochWithoutACache(t *testing.T) {
	epoch := func(name string) [16]byte {
		r := newRig(t, Config{}, LUConfig{Volume: newNamed(t, name)})
		defer func() { r.nx = nil }()
		defer r.close()
		return r.dev.LUs()[0].vol.Epoch()
	}
	first := epoch("a")
	if again := epoch("a"); again != first {
		t.Error("another process has another epoch, and nothing can have been lost")
	}
	if epoch("b") == first {
		t.Error("two units have one epoch")
	}
}

// A cache that outlives the unit decides: as long as it is the same one, a crash has
// lost nothing, and once it is another, no unit on it can be believed.
func TestUnitsShareTheLossOfACache(t *testing.T) {
	dir := t.TempDir()
	epochs := func(cache string) (e [2][16]byte) {
		t.Helper()
		d, err := NewDevice(Config{Name: "iqn.2020-01.test:a", StateDir: dir})
		if err != nil {
			t.Fatal(err)
		}
		for i := range e {
			// A flush that fails is what a crash looks like to those who come later.
			v := &volatileVolume{newNamed(t, string(rune('a'+i))), cache, errors.New("crash"), nil}
			lu, err := d.AddLUN(LUConfig{LUN: uint16(i), Volume: v})
			if err != nil {
				t.Fatal(err)
			}
			e[i] = lu.vol.Epoch()
		}
		d.Close(t.Context())
		return e
	}
	first := epochs("one")
	if first[0] == first[1] {
		t.Error("two units have one epoch")
	}
	if again := epochs("one"); again != first {
		t.Error("the cache was kept, the epochs were not")
	}
	other := epochs("two")
	for i := range other {
		if other[i] == first[i] {
			t.Errorf("unit %d: the cache is lost, the epoch is the same", i)
		}
	}
	if got := epochs(""); got[0] == other[0] || got == epochs("") {
		t.Error("nobody knows what became of the cache, and the epoch is the same")
	}
}

// A unit whose cache becomes another one under way (a logical volume that grew onto
// another disk) keeps its epoch over an orderly end.
func TestEpochOfAGrownVolume(t *testing.T) {
	dir := t.TempDir()
	open := func(cache string) (*Device, *volatileVolume) {
		t.Helper()
		d, err := NewDevice(Config{Name: "iqn.2020-01.test:a", StateDir: dir})
		if err != nil {
			t.Fatal(err)
		}
		v := &volatileVolume{newNamed(t, "a"), cache, nil, nil}
		if _, err := d.AddLUN(LUConfig{Volume: v}); err != nil {
			t.Fatal(err)
		}
		return d, v
	}
	d, v := open("one")
	first := d.lookup(0).vol.Epoch()
	v.cache = "one+two"
	v.grown(v.Info())
	d.Close(t.Context())
	d, _ = open("one+two")
	if d.lookup(0).vol.Epoch() != first {
		t.Error("the orderly end has lost nothing")
	}
	d.Close(t.Context())
}

// epochFiles names the one epoch file there is.
func (d *Device) epochFiles(t *testing.T) string {
	all, err := filepath.Glob(filepath.Join(d.cfg.StateDir, "*.epoch"))
	if err != nil || len(all) != 1 {
		t.Fatalf("%v, %v", all, err)
	}
	return all[0]
}
