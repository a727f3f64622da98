package scsi

import (
	"bytes"
	"encoding/binary"
	"sync"
	"testing"

	"softiser/internal/spc"

	"softiser/blockdev"
	"softiser/target/volume"
)

// pooled is a thin volume of a pool that is as full as the test says.
type pooled struct {
	blockdev.Device
	mu    sync.Mutex
	usage blockdev.SpaceUsage
	f     func() // OnSpaceChange
	low   func() // OnLowSpace
}

func (v *pooled) SpaceUsage() blockdev.SpaceUsage {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.usage
}

func (v *pooled) OnSpaceChange(f func()) func() {
	v.f = f
	return func() { v.f = nil }
}

func (v *pooled) OnLowSpace(f func()) func() {
	v.low = f
	return func() { v.low = nil }
}

// use sets how much of the pool is in use.
func (v *pooled) use(n int64) {
	v.mu.Lock()
	v.usage.Used = n
	v.mu.Unlock()
	v.f()
}

func newPooled(t *testing.T) *pooled {
	return &pooled{Device: newSized(t, "thin", 8<<20), usage: blockdev.SpaceUsage{Total: 4 << 30, Unit: 64 << 10}}
}

// quiet reports that no unit attention is pending for any nexus.
func (r *rig) quiet() {
	r.t.Helper()
	for _, n := range r.nx {
		r.on(n, 0, spc.AppendTestUnitReady(nil), nil, 0).good()
	}
}

func (r *rig) warned() {
	r.t.Helper()
	for _, n := range r.nx {
		r.on(n, 0, spc.AppendTestUnitReady(nil), nil, 0).sense(spc.KeyUnitAttention, spc.ASCSoftThreshold)
	}
	r.quiet()
}

// provisioningPage fetches mode page 1Ch/02h.
func (r *rig) provisioningPage(pc byte) []byte {
	r.t.Helper()
	b := r.do(spc.AppendModeSense6(nil, true, pc, 0x1C, 2, 255), nil, 255).good().data
	if len(b) != 4+16+8*volume.MaxThresholds {
		r.t.Fatalf("% x", b)
	}
	return b[4:]
}

func (r *rig) selectPage(page []byte, save bool) *result {
	list := append(make([]byte, 4), page...)
	list[4] &= 0x7F
	return r.do(spc.AppendModeSelect6(nil, save, byte(len(list))), list, 0)
}

const mib = 1 << 20

func TestThresholds(t *testing.T) {
	v := newPooled(t)
	r := newRig(t, Config{}, LUConfig{Volume: v})
	p, err := spc.VPDPayload(r.do(spc.AppendInquiryVPD(nil, spc.VPDProvisioning, 255), nil, 255).good().data, spc.VPDProvisioning)
	if err != nil || p[0] != 11 { // 1 MiB in blocks of 512
		t.Errorf("threshold exponent %d, %v", p[0], err)
	}
	// None is enabled at first; what the pool itself warns of is told.
	page := r.provisioningPage(0)
	if want := append([]byte{0x5C, 2, 0, 44}, make([]byte, 12+8*volume.MaxThresholds)...); !bytes.Equal(page, want) {
		t.Errorf("% x, want % x", page, want)
	}
	v.use(4 << 30)
	r.quiet()
	v.low()
	r.warned()
	v.use(0)
	// Available at 20, 15, 10 and 5 %.
	for i, percent := range []uint32{20, 15, 10, 5} {
		d := page[16+8*i:]
		d[0], d[1] = 0x80, volume.ResourceAvailable
		binary.BigEndian.PutUint32(d[4:], 4096*percent/100)
	}
	r.selectPage(page, false).good()
	r.on(r.nx[1], 0, spc.AppendTestUnitReady(nil), nil, 0).sense(spc.KeyUnitAttention, spc.ASCModeChanged)
	r.quiet()
	v.use(4 << 30 * 79 / 100)
	r.quiet()
	v.use(4<<30*80/100 + 2*mib)
	r.warned()
	v.use(4<<30*80/100 + 3*mib) // once only
	r.quiet()
	v.use(4 << 30 * 80 / 100) // within the range: not armed yet
	v.use(4<<30*80/100 + 3*mib)
	r.quiet()
	v.use(4 << 30 * 70 / 100)
	v.use(4 << 30 * 97 / 100) // several at once
	r.warned()
	v.use(0)
	r.quiet()
}

func TestThresholdsSetByInitiators(t *testing.T) {
	v := newPooled(t)
	r := newRig(t, Config{StateDir: t.TempDir()}, LUConfig{Volume: v})
	page := r.provisioningPage(0)
	if page[0] != 0xDC {
		t.Errorf("PS is clear where pages can be saved: % x", page[:2])
	}
	mask := r.provisioningPage(1)
	if want := []byte{0x81, 3, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF}; !bytes.Equal(mask[16:], bytes.Repeat(want, volume.MaxThresholds)) || mask[4] != 0 {
		t.Errorf("changeable: % x", mask)
	}
	descr := func(i int, first, resource byte, count uint32) {
		d := page[16+8*i:]
		d[0], d[1] = first, resource
		binary.BigEndian.PutUint32(d[4:], count)
	}
	// Used space, increasing, at 100 sets; the others off.
	clear(page[16:])
	descr(0, 0x81, volume.ResourceUsed, 100)
	r.selectPage(page, true).good()
	r.on(r.nx[1], 0, spc.AppendTestUnitReady(nil), nil, 0).sense(spc.KeyUnitAttention, spc.ASCModeChanged)
	if got := r.provisioningPage(0); !bytes.Equal(got[16:], page[16:]) {
		t.Errorf("% x, want % x", got[16:], page[16:])
	}
	if got := r.provisioningPage(3); !bytes.Equal(got[16:], page[16:]) {
		t.Errorf("saved: % x", got[16:])
	}
	v.use(99 * mib)
	v.use(100 * mib)
	r.quiet()
	v.use(101 * mib)
	r.warned()
	v.use(99 * mib)
	v.use(102 * mib)
	r.warned()
	// One that has been reached already waits until it is armed.
	descr(0, 0x81, volume.ResourceUsed, 50)
	r.selectPage(page, false).good()
	r.on(r.nx[1], 0, spc.AppendTestUnitReady(nil), nil, 0).sense(spc.KeyUnitAttention, spc.ASCModeChanged)
	v.use(103 * mib)
	r.quiet()
	v.use(10 * mib)
	v.use(60 * mib)
	r.warned()
	// LBPERE of the error recovery page turns them all off.
	recovery := r.do(spc.AppendModeSense6(nil, true, 0, 0x01, 0, 255), nil, 255).good().data[4:]
	if recovery[7] != 0x80 {
		t.Errorf("error recovery page % x", recovery)
	}
	recovery[7] = 0
	r.selectPage(recovery, false).good()
	r.on(r.nx[1], 0, spc.AppendTestUnitReady(nil), nil, 0).sense(spc.KeyUnitAttention, spc.ASCModeChanged)
	v.use(10 * mib)
	v.use(60 * mib)
	v.low()
	r.quiet()
	// A reset returns to what was saved.
	done := make(chan TMFResponse, 1)
	r.dev.Manage(r.nx[0], LogicalReset, 0, nil, func(x TMFResponse) { done <- x })
	<-done
	for _, n := range r.nx {
		r.attention(n, spc.ASCDeviceReset)
	}
	v.use(10 * mib)
	v.use(102 * mib)
	r.warned()
	// What makes no sense.
	for _, c := range []struct {
		at    int
		value byte
		field uint16
	}{
		{4, 1, 8},       // SITUA
		{16, 0x80, 20},  // decreasing, of what is used
		{16, 0x89, 20},  // a type other than soft
		{16, 0x82, 20},  // an arming that is reserved
		{17, 3, 21},     // percentages
		{17, 0, 21},     // none, but enabled
		{18, 1, 22},     // reserved
		{3, 43, 7},      // page length
		{1, 3, 4},       // no such page
		{0, 0x1C, 5},    // the page without subpages, which is of another length
		{3, 255, 65535}, // cut short
	} {
		bad := bytes.Clone(page)
		descr := r.provisioningPage(0)
		copy(bad, descr)
		bad[c.at] = c.value
		got := r.selectPage(bad, false)
		if c.field == 65535 {
			got.illegal(spc.ASCParameterListLength)
		} else if got.illegal(spc.ASCInvalidFieldInParam); got.sd.Field != c.field {
			t.Errorf("byte %d = %02x: field pointer %d, want %d", c.at, c.value, got.sd.Field, c.field)
		}
	}
}

// TestThresholdsAreKept: the saved page is there again after a restart.
func TestThresholdsAreKept(t *testing.T) {
	dir := t.TempDir()
	v := newPooled(t)
	r := newRig(t, Config{StateDir: dir}, LUConfig{Volume: v})
	page := r.provisioningPage(0)
	page[16+8], page[16+9], page[16+15] = 0x81, volume.ResourceUsed, 77
	r.selectPage(page, true).good()
	r.close()
	r.nx = nil
	if v.f != nil || v.low != nil {
		t.Error("the unit still watches a volume that it has left")
	}
	r = newRig(t, Config{StateDir: dir}, LUConfig{Volume: v})
	if got := r.provisioningPage(0); !bytes.Equal(got[16:], page[16:]) {
		t.Errorf("% x, want % x", got[16:], page[16:])
	}
}

// TestNoThresholds: a volume without a space of its own has none of it.
func TestNoThresholds(t *testing.T) {
	mute := newPooled(t)
	mute.usage.Total = 0
	for _, v := range []blockdev.Device{newNamed(t, "plain"), mute} {
		r := newRig(t, Config{}, LUConfig{Volume: v})
		p, _ := spc.VPDPayload(r.do(spc.AppendInquiryVPD(nil, spc.VPDProvisioning, 255), nil, 255).good().data, spc.VPDProvisioning)
		if p[0] != 0 {
			t.Errorf("threshold exponent %d", p[0])
		}
		if got := r.do(spc.AppendModeSense6(nil, true, 0, 0x1C, 2, 255), nil, 255).illegal(spc.ASCInvalidFieldInCDB); got.sd.Field != 3 {
			t.Errorf("field %d", got.sd.Field)
		}
		r.do(logSense(1, 0x0C, 0, 0, 255), nil, 255).illegal(spc.ASCInvalidFieldInCDB)
		if b := r.do(spc.AppendModeSense6(nil, true, 1, 0x01, 0, 255), nil, 255).good().data; b[4+7] != 0 {
			t.Error("LBPERE can be changed")
		}
	}
}

func TestThresholdSets(t *testing.T) {
	for _, c := range []struct {
		total int64
		bs    int
		exp   uint8
	}{
		{4 << 30, 512, 11}, {4 << 30, 4096, 8}, {1 << 50, 512, 11}, {8 << 50, 512, 13},
		{64 << 20, 512, 7}, {2 << 20, 4096, 1}, {2 << 20, 512, 2},
	} {
		v := &pooled{Device: newVolume(t, 8<<20, c.bs), usage: blockdev.SpaceUsage{Total: c.total}}
		r := newRig(t, Config{}, LUConfig{Volume: v})
		if got := r.dev.lookup(0).vol.Space.Exponent(); got != c.exp {
			t.Errorf("%d bytes, blocks of %d: exponent %d, want %d", c.total, c.bs, got, c.exp)
		}
	}
}
