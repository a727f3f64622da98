package scsi

import (
	"bytes"
	"sync/atomic"
	"testing"

	"softiser/blockdev"
	"softiser/internal/await"
	"softiser/internal/spc"
)

// flushCounter has a write cache and counts the ranges that are made durable.
type flushCounter struct {
	blockdev.Device
	flushes atomic.Int64
}

func (d *flushCounter) Info() blockdev.Info {
	i := d.Device.Info()
	i.WriteCache = true
	return i
}

func (d *flushCounter) FlushRange(off, n int64) error {
	d.flushes.Add(1)
	return d.Device.FlushRange(off, n)
}

// Bit 3 of byte 1 is FUA in WRITE and ORWRITE, and UNMAP in WRITE SAME (SBC-4 §5.51):
// an unmapping WRITE SAME may stay in the write cache.
func TestFUABit(t *testing.T) {
	for _, c := range []struct {
		name    string
		cdb     []byte
		flushes int64
	}{
		{"WRITE SAME with UNMAP", spc.AppendWriteSame16(nil, 0, 8, 1<<3), 0},
		{"ORWRITE with FUA", []byte{byte(spc.OpOrWrite16), 1 << 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0}, 1},
		{"ORWRITE", []byte{byte(spc.OpOrWrite16), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0}, 0},
		{"WRITE SAME", spc.AppendWriteSame16(nil, 0, 8, 0), 0},
	} {
		d := &flushCounter{Device: newVolume(t, 1<<20, 512)}
		r := newRig(t, Config{}, LUConfig{Volume: d})
		r.do(c.cdb, make([]byte, 512), 0, immediate(512)).good()
		if n := d.flushes.Load(); n != c.flushes {
			t.Errorf("%s: %d flushes, want %d", c.name, n, c.flushes)
		}
	}
}

// lateWriter has a write cache, and does something before it writes.
type lateWriter struct {
	flushCounter
	before func()
}

func (d *lateWriter) WriteAt(p []byte, off int64) (int, error) {
	d.before()
	return d.Device.WriteAt(p, off)
}

// TestCacheTurnedOffMeanwhile: a WRITE that began with the write cache on, and whose blocks get there when it
// has been turned off and flushed, is durable when it is answered, as whoever has turned it off relies on.
func TestCacheTurnedOffMeanwhile(t *testing.T) {
	for name, c := range map[string]struct {
		placement Placement
		opts      []func(*call)
	}{
		"data with it":          {PlacementDirect, []func(*call){immediate(4096)}},
		"data with it in part":  {PlacementDirect, []func(*call){immediate(1024)}},
		"data that is verified": {PlacementVerified, nil},
	} {
		t.Run(name, func(t *testing.T) {
			d := &lateWriter{flushCounter: flushCounter{Device: newVolume(t, 1<<20, 512)}}
			r := newRig(t, Config{}, LUConfig{Volume: d, Placement: c.placement})
			v := r.dev.lookup(0).vol
			d.before = func() { v.SetWriteCache(false) } // and MODE SELECT flushes
			r.do(spc.AppendWrite(nil, 0, 8, false), make([]byte, 4096), 0, c.opts...).good()
			if d.flushes.Load() == 0 {
				t.Error("the cache is off, and the blocks may be lost")
			}
		})
	}
}

// turnCache turns the write cache of LUN 0 on or off; save says through restarts, too.
func (r *rig) turnCache(on, save bool) *result {
	r.t.Helper()
	page := r.do(spc.AppendModeSense6(nil, true, 0, 0x08, 0, 255), nil, 255).good().data
	page[0], page[2] = 0, 0
	page[4] &^= 0x80
	page[4+2] &^= 0x04
	if on {
		page[4+2] |= 0x04
	}
	return r.do(spc.AppendModeSelect6(nil, save, byte(len(page))), page, 0)
}

// TestCacheOffAgain: what was acknowledged with the write cache on is flushed where a restart, or another node
// that takes over, turns it off: the initiators, who find it off, do not.
func TestCacheOffAgain(t *testing.T) {
	dir, store := t.TempDir(), newStore(t)
	for name, begin := range map[string]func(d blockdev.Device) *rig{
		"restart":  func(d blockdev.Device) *rig { return newRig(t, Config{StateDir: dir}, LUConfig{Volume: d}) },
		"takeover": func(d blockdev.Device) *rig { r, _ := movingRig(t, d, store); return r },
	} {
		t.Run(name, func(t *testing.T) {
			d := newCrashLog(t)
			r := begin(d)
			r.turnCache(false, true).good()
			r.turnCache(true, false).good()
			data := fill(4096, 5)
			r.do(spc.AppendWrite(nil, 0, 8, false), data, 0).good()
			safe := func() bool {
				for img := range d.States(d.Now(), 100, 1) {
					if !bytes.Equal(img.Bytes()[:4096], data) {
						return false
					}
				}
				return true
			}
			if safe() {
				t.Fatal("the write is durable by itself")
			}
			again := begin(d) // the process before has been killed
			if again.vol().WriteCache() {
				t.Error("the cache is on")
			}
			await.True(t, "the write is durable", safe)
		})
	}
}

// TestModeChangeIsTold: others learn of a change that is in force, even if what it asks for besides has failed.
func TestModeChangeIsTold(t *testing.T) {
	v := &volatileVolume{Device: newNamed(t, "a")}
	r := newRig(t, Config{}, LUConfig{Volume: v})
	v.flush = blockdev.ErrMedium
	r.turnCache(false, false).sense(spc.KeyMedium, spc.ASCWriteError)
	v.flush = nil
	r.attention(r.nx[1], spc.ASCModeChanged)
}
