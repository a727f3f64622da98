package scsi

import (
	"testing"

	"softiser/internal/spc"

	"softiser/target/volume"
)

// FuzzCommand sends any CDB with any Data-Out. Whatever comes, the command ends
// once, within the initiator's buffers, and the unit works afterwards.
func FuzzCommand(f *testing.F) {
	rows := newTable().rows
	for i := range rows {
		f.Add(rows[i].usage, make([]byte, 512), uint16(512), byte(1))
	}
	f.Add(spc.AppendUnmap(nil, 24), spc.AppendUnmapList(nil, []spc.Range{{LBA: 8, Blocks: 8}}), uint16(0), byte(1))
	f.Add(spc.AppendModeSelect6(nil, false, 16), []byte{0, 0, 0, 0, 0x0A, 0x0A, 4, 0x10, 0, 0, 0, 0, 0, 0, 0, 0}, uint16(0), byte(2))
	p := spc.PersistOut{ActionKey: 1}
	f.Add(spc.AppendPersistOut(nil, spc.SAProutRegister, 0, 24), p.Append(nil), uint16(0), byte(3))
	rod := spc.PopulateToken{Ranges: []spc.Range{{LBA: 1, Blocks: 2}}}
	f.Add([]byte{0x83, 0x10, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 32, 0, 0}, rod.Append(nil), uint16(0), byte(0))
	h := spc.CopyHeader{TargetLen: 32, SegmentLen: 28}
	seg := spc.CopySegment{Type: spc.CopyBlockToBlock, Blocks: 1}
	list := seg.Append(spc.AppendCopyTarget(h.Append(nil), spc.Designator{CodeSet: 1, Type: 3, ID: make([]byte, 16)}, 512))
	f.Add([]byte{0x83, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, byte(len(list)), 0, 0}, list, uint16(0), byte(0))

	format := spc.FormatList{Flags: spc.FormatFOV | spc.FormatIP | spc.FormatIMMED, PatternType: 1, Pattern: []byte{1, 2}}
	f.Add([]byte{0x04, 0x10, 0, 0, 0, 0}, format.Append(nil, false), uint16(0), byte(0))
	f.Add([]byte{0x04, 0x30, 0, 0, 0, 0}, format.Append(nil, true), uint16(0), byte(0))

	r := newRig(f, Config{}, LUConfig{Volume: newNamed(f, "fuzz"), Removable: true})
	f.Fuzz(func(t *testing.T, cdb, out []byte, in uint16, how byte) {
		if len(cdb) < 6 || len(cdb) > 260 || len(out) > 1<<16 {
			return
		}
		opts := []func(*call){attr(TaskAttr(how % 5))}
		if how&0x80 != 0 {
			opts = append(opts, immediate(len(out)/2))
		}
		if how&0x40 != 0 {
			opts = append(opts, immediate(len(out)))
		}
		r := *r
		r.t = t
		n := r.nx[how>>4&1]
		got := r.on(n, 0, cdb, out, int(in), opts...)
		if int(got.sent) > int(in) || got.sent > got.wanted {
			t.Errorf("% x: sent %d of %d, room for %d", cdb, got.sent, got.wanted, in)
		}
		if got.status == spc.StatusCheckCondition && len(got.raw) < 8 {
			t.Errorf("% x: CHECK CONDITION without sense", cdb)
		}
		// Undo what locks the next input out.
		lu := r.dev.lookup(0)
		lu.modes.set(lu.modes.def)
		everybody := volume.Client{ID: r.dev.registrant("anybody", 1)}
		if lu.vol.Register(&everybody, &volume.Register{Ignore: true, NewKey: 1}) != nil || lu.vol.ClearReservations(&everybody, 1) != nil {
			t.Error("the reservations cannot be cleared")
		}
		lu.vol.Unseize(nil)
		lu.allowRemoval(nil)
		lu.vol.SetGate(volume.NoMedium|volume.SanitizeFailed|volume.Corrupt, false)
		for i := range lu.paths {
			lu.paths[i].state.Store(uint32(ActiveOptimized))
		}
	})
}
