package iscsi

import (
	"context"
	"encoding/binary"
	"path/filepath"
	"testing"

	"softiser/lvm"
	"softiser/lvm/vg"
	"softiser/target/scsi"
)

// lvmLUN puts a logical volume on LUN 1.
func lvmLUN(t *testing.T, s *server, spec lvm.Spec) *lvm.Manager {
	t.Helper()
	dir := t.TempDir()
	m := &lvm.Manager{Config: lvm.Config{Config: vg.Config{LockDir: dir + "/lock", ArchiveDir: "-", BackupDir: "-"}}}
	spec.VG, spec.Devices, spec.DeviceSize = "vg0", []string{filepath.Join(dir, "a.img")}, 128<<20
	v, err := m.Open(spec)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.AddLUN(testIQN, LUN{Name: spec.LV, LUConfig: scsi.LUConfig{LUN: 1, Volume: v}}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// A command that has been answered may hold the volume for a moment more; the
		// context of the test is over here.
		ctx, cancel := context.WithTimeout(context.Background(), ioTime)
		defer cancel()
		if err := s.RemoveLUN(ctx, testIQN, 1); err != nil {
			t.Error(err)
		}
		if err := v.Close(); err != nil {
			t.Error(err)
		}
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	return m
}

// asc is the additional sense of TEST UNIT READY, 0 when the unit is ready.
func (r *rawInitiator) asc(lun int) uint16 {
	res := r.do(command{cdb: testUnitReady, lun: lun}, nil)
	if res.status == 0 {
		return 0
	}
	return binary.BigEndian.Uint16(res.sense[12:])
}

// TestLVMResize: every initiator hears of an lvextend by a unit attention, once,
// and then sees the new size.
func TestLVMResize(t *testing.T) {
	s := serve(t, nil)
	m := lvmLUN(t, s, lvm.Spec{LV: "data", Size: 16 << 20})
	rs := []*rawInitiator{s.session(), s.dial()}
	rs[1].isid[5] = 9
	rs[1].mustLogin(testIQN)
	for _, r := range rs {
		for range 8 {
			if r.asc(1) == 0 {
				break
			}
		}
	}
	if err := m.Group("vg0").Extend("data", lvm.ExtendOptions{Extents: 8}, "lvextend"); err != nil {
		t.Fatal(err)
	}
	for i, r := range rs {
		if a, b := r.asc(1), r.asc(1); a != 0x2a09 || b != 0 {
			t.Errorf("initiator %d hears %#04x, then %#04x", i, a, b)
		}
		res := r.do(command{cdb: []byte{0x25, 9: 0}, lun: 1, read: true, edtl: 8}, nil)
		if len(res.data) != 8 || uint64(binary.BigEndian.Uint32(res.data))+1 != 32<<20/512 {
			t.Errorf("initiator %d: READ CAPACITY % x", i, res.data)
		}
	}
}

// TestLVMPoolFull: a write for which a full pool has no block ends with DATA
// PROTECT, 27/07; the alarms come before it; what is mapped can be written on.
func TestLVMPoolFull(t *testing.T) {
	s := serve(t, nil)
	m := lvmLUN(t, s, lvm.Spec{LV: "thin", Size: 64 << 20, Pool: "pool", PoolSize: 8 << 20, ErrorWhenFull: true})
	r := s.session()
	for range 8 {
		if r.asc(1) == 0 {
			break
		}
	}
	data := pattern(4096, 1)
	// The pool tells of its alarms beside the commands: they may come before any of them,
	// and several as one.
	alarms := 0
	write := func(block int) result {
		for {
			res := r.do(command{cdb: cdbRW10(0x2a, uint32(block*128), 8), lun: 1, write: true, edtl: 4096, imm: data}, nil)
			if res.status != 2 || binary.BigEndian.Uint16(res.sense[12:]) != 0x3807 {
				return res
			}
			alarms++
		}
	}
	block := 0
	for ; block < 200; block++ {
		res := write(block)
		if res.status == 0 {
			continue
		}
		if res.status != 2 || res.sense[2]&0xf != 7 || binary.BigEndian.Uint16(res.sense[12:]) != 0x2707 {
			t.Fatalf("block %d: status %#x, sense % x", block, res.status, res.sense)
		}
		break
	}
	if block != 8<<20/65536 {
		t.Errorf("%d blocks fit", block)
	}
	eventually(t, "there is an alarm", func() bool {
		if r.asc(1) == 0x3807 {
			alarms++
		}
		return alarms > 0
	})
	if res := write(3); res.status != 0 {
		t.Errorf("a mapped block: status %#x, sense % x", res.status, res.sense)
	}
	if err := m.Group("vg0").Extend("pool", lvm.ExtendOptions{Extents: 4}, "lvextend"); err != nil {
		t.Fatal(err)
	}
	if res := write(block); res.status != 0 {
		t.Errorf("after lvextend: status %#x, sense % x", res.status, res.sense)
	}
}
