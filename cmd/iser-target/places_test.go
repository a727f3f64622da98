package main

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"softiser/initiator"
)

// sameDisk has what is written to a LUN of target a read through one of target b.
func (b *reloadBed) sameDisk(lunA, lunB uint64) {
	b.t.Helper()
	open := func(iqn string, lun uint64) *initiator.LUN {
		l, err := initiator.Open(b.t.Context(), initiator.Config{Transport: initiator.TransportTCP, Address: b.addr, TargetName: "iqn.2026-11.test:" + iqn, LUN: lun})
		if err != nil {
			b.t.Fatal(err)
		}
		b.t.Cleanup(func() { l.Close() })
		return l
	}
	x, y := open("a", lunA), open("b", lunB)
	want, got := bytes.Repeat([]byte("one disk"), 512), make([]byte, 4096)
	if _, err := x.WriteAt(want, 8192); err != nil {
		b.t.Fatal(err)
	}
	if _, err := y.ReadAt(got, 8192); err != nil || !bytes.Equal(got, want) {
		b.t.Errorf("what was written through one target is not there through the other: %v", err)
	}
	if i, j := x.Identity(), y.Identity(); !slices.Equal(i.Designators, j.Designators) || i.Serial != j.Serial {
		b.t.Errorf("two disks: %+v and %+v", i, j)
	}
}

// Whoever asks for a volume by hand cannot give it a name that does anything to a terminal, as no file can.
func TestNameOfAVolumeByHand(t *testing.T) {
	if _, err := new(app).volumeOf("x\x1b[2J", "memory,size=1MiB"); err == nil || !strings.Contains(err.Error(), `"x\x1b[2J" has characters`) {
		t.Error(err)
	}
}

// TestOneVolumeTwoTargets: any number of targets serve a volume, one LUN each, however
// that is asked for; the volume grows for all, and stays open as long as one serves it.
func TestOneVolumeTwoTargets(t *testing.T) {
	b := newReloadBed(t)
	add := func(iqn, lun, volume, problem string) {
		t.Helper()
		code, out := command(t, "lun", "add", "--socket", b.sock, "iqn.2026-11.test:"+iqn, lun, volume)
		if (code == 0) != (problem == "") || !strings.Contains(out, problem) {
			t.Errorf("lun add %s %s %s: exit %d\n%s", iqn, lun, volume, code, out)
		}
	}
	serves := func(want string) {
		t.Helper()
		if got := b.luns(); got != want {
			t.Errorf("serves %s\nwant   %s", got, want)
		}
	}
	reload := func(r ...string) {
		t.Helper()
		b.write(strings.NewReplacer(r...).Replace(strings.Replace(reloadBase, ", {lun: 2, volume: late}", "", 1)))
		if code, out := b.reload(); code != 0 {
			t.Errorf("exit %d\n%s", code, out)
		}
	}
	add("a", "7", "file", "one LUN in a target")
	add("b", "7", "fiel", "there is no volume")
	add("b", "7", "file", "")
	b.sameDisk(1, 7)

	// By the file as well, which knows nothing of what was added by hand.
	reload("read_only: true}]", "read_only: true}, {lun: 5, volume: keep}]")
	serves("a0=keep(1048576) a1=file(1048576) b0=pub(1048576 ro) b5=keep(1048576) b7=file(1048576)")
	b.sameDisk(0, 5)
	if code, out := command(t, "lun", "remove", "--socket", b.sock, "iqn.2026-11.test:b", "7"); code != 0 {
		t.Errorf("exit %d\n%s", code, out)
	}

	// One place goes and the memory keeps its content at the other; a new one comes, and
	// the volume grows for both.
	reload("{lun: 0, volume: keep}, ", "", "path: file.img, size: 1MiB", "path: file.img, size: 2MiB",
		"read_only: true}]", "read_only: true}, {lun: 5, volume: keep}, {lun: 6, volume: file}]")
	serves("a1=file(2097152) b0=pub(1048576 ro) b5=keep(1048576) b6=file(2097152)")
	reload("path: file.img, size: 1MiB", "path: file.img, size: 2MiB", "read_only: true}]", "read_only: true}, {lun: 5, volume: keep}]")
	serves("a0=keep(1048576) a1=file(2097152) b0=pub(1048576 ro) b5=keep(1048576)")
	b.sameDisk(0, 5)
}
