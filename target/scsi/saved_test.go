package scsi

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"softiser/internal/spc"

	"softiser/blockdev/mem"
)

// savedUnit is the name of the files in testdata, which an earlier version has left.
const savedUnit = "lu-6524953a68cb09d24d0c634c574708fb"

// restoreSaved puts a file of an earlier version where a unit looks for it, and returns
// the volume that it is of.
func restoreSaved(t *testing.T, dir, as, file string) *mem.Device {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", file))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, as), b, 0o600); err != nil {
		t.Fatal(err)
	}
	v, err := mem.Open(mem.Config{Size: 1 << 20, Name: "golden"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { v.Close() })
	return v
}

// TestSavedStateOfEarlierVersions: reservations, mode parameters and a failed FORMAT UNIT
// that the first format tells are in force again.
func TestSavedStateOfEarlierVersions(t *testing.T) {
	dir := t.TempDir()
	v := restoreSaved(t, dir, savedUnit+".json", "state-1.json")
	r := newRig(t, Config{StateDir: dir}, LUConfig{Volume: sameVolume{v, "golden"}})
	a, b := r.nx[0], r.nx[1]
	gen, keys := r.keys(a)
	if gen != 0 || len(keys) != 2 || keys[0] != keyA || keys[1] != keyB {
		t.Errorf("generation %d, keys %x", gen, keys)
	}
	if key, typ := r.holder(b); key != keyA || typ != spc.PRExclusiveAccessRegistrants {
		t.Errorf("held with key %x, type %v", key, typ)
	}
	full := r.do(spc.AppendPersistIn(nil, spc.SAPrinFullStatus, 1024), nil, 1024).good().data
	if !bytes.Contains(full, []byte("iqn.1994-05.com.example:host1,i,0x000000000001")) {
		t.Errorf("full status % x", full)
	}
	if user, ok := r.dev.RegisteredUser("iqn.1994-05.com.example:host2", "someone"); !ok || user != "alice" {
		t.Errorf("the second registration is %q's", user)
	}
	// The registrants are those of the sessions: no conflict, and the medium is as it was left.
	r.on(a, 0, spc.AppendRead(nil, 0, 8, false), nil, 4096).sense(spc.KeyMedium, spc.ASCFormatCorrupted)
	page := r.do(spc.AppendModeSense6(nil, false, 0, 0x0A, 0, 255), nil, 255).good().data
	if c := page[len(page)-12:]; c[2]&4 == 0 || c[3]&6 != 2 || c[4]&8 != 0 || c[5]&0x40 == 0 {
		t.Errorf("control page % x", c)
	}
	// And what this version saves is what it has read: the next PERSISTENT RESERVE OUT is saved.
	r.prout(b, spc.SAProutRegister, 0, keyB, 0xCCCC, aptpl).good()
	r.close()
	r.nx = nil
	again := newRig(t, Config{StateDir: dir}, LUConfig{Volume: sameVolume{v, "golden"}})
	if _, keys := again.keys(again.nx[0]); len(keys) != 2 || keys[0] != keyA || keys[1] != 0xCCCC {
		t.Errorf("after another restart: keys %x", keys)
	}
}

// TestUndoJournalOfEarlierVersions: what a WRITE ATOMIC of an earlier version had put aside is
// put back.
func TestUndoJournalOfEarlierVersions(t *testing.T) {
	dir := t.TempDir()
	v := restoreSaved(t, dir, savedUnit+".undo", "undo-1.bin")
	r := newRig(t, Config{StateDir: dir}, LUConfig{Volume: sameVolume{v, "golden"}})
	if got := r.do(spc.AppendRead(nil, 8, 2, false), nil, 1024).good().data; !bytes.Equal(got, fill(1024, 9)) {
		t.Error("the blocks are not what the journal holds")
	}
}

// TestEpochOfEarlierVersions: the epoch that an orderly end has left goes on.
func TestEpochOfEarlierVersions(t *testing.T) {
	dir := t.TempDir()
	v := restoreSaved(t, dir, savedUnit+".epoch", "epoch-1.txt")
	r := newRig(t, Config{StateDir: dir}, LUConfig{Volume: &volatileVolume{Device: sameVolume{v, "golden"}}})
	q, err := spc.ParseInquiryData(r.do(spc.AppendInquiry(nil, spc.InquiryLen), nil, spc.InquiryLen).good().data)
	if err != nil || !bytes.Equal(q.Epoch[:], []byte("an earlier epoch")) {
		t.Errorf("epoch %x, %v", q.Epoch, err)
	}
}
