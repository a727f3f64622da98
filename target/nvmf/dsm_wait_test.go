package nvmf_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"path/filepath"
	"testing"

	"softiser/blockdev"
	"softiser/blockdev/faulty"
	"softiser/blockdev/file"
	"softiser/initiator"
	"softiser/internal/nvme"
	"softiser/target"
	"softiser/target/nvmf"
)

// Nobody's fused pair waits for the ranges of a Dataset Management command, which may never come.
func TestDatasetManagementWithoutItsRanges(t *testing.T) {
	r := open(t, nil)
	h := r.attach(hostNQN, 10, 2)
	var s nvme.SQE
	s.Init(nvme.OpDatasetManagement, 1)
	s.SetCDW(11, 4)
	c := h.io[0].startSilent(s, make([]byte, 64<<10))
	<-h.io[0].asked
	zero := make([]byte, 512)
	if x, y := h.io[1].fused(8, zero, zero); x != nvme.Success || y != nvme.Success {
		t.Errorf("the pair: %v, %v", x, y)
	}
	if e, err := h.abort(c.cid); err != nil || e.DW0() != 0 {
		t.Fatalf("abort: %v, %v", e, err)
	}
	if s := h.io[0].status(c); s != nvme.AbortRequested {
		t.Error(s)
	}
}

// startLate starts a Dataset Management that deallocates a range of blocks, whose host has yet to say which.
func (q *queue) startLate(lba uint64, blocks uint32) *command {
	var s nvme.SQE
	s.Init(nvme.OpDatasetManagement, 1)
	s.SetCDW(11, 4)
	b := make([]byte, 64<<10) // too long for a capsule
	binary.LittleEndian.PutUint32(b[4:], blocks)
	binary.LittleEndian.PutUint64(b[8:], lba)
	c := q.startSilent(s, b)
	<-q.asked
	return c
}

// A Dataset Management that waits for its ranges takes nothing away any more from a namespace that has been
// write protected meanwhile.
func TestLateRangesAndWriteProtection(t *testing.T) {
	r := kept(t, t.TempDir())
	h := r.attach(hostNQN, 10, 1)
	q := h.io[0]
	data := pattern(4096, 1)
	if err := q.write(8, data); err != nil {
		t.Fatal(err)
	}
	c := q.startLate(8, 8)
	if _, err := h.protect(1); err != nil {
		t.Fatal(err)
	}
	q.deliver(c)
	if s := q.status(c); s != nvme.NamespaceWriteProtect|nvme.DoNotRetry {
		t.Error(s)
	}
	if got, err := q.readBlocks(8, 4096); err != nil || !bytes.Equal(got, data) {
		t.Errorf("blocks have changed: %v", err)
	}
}

// What a Dataset Management takes away that had begun before an atomic write failed, and could not be
// undone, does not come back by that.
func TestLateRangesAndStuckUndo(t *testing.T) {
	d, err := file.Open(file.Config{Path: filepath.Join(t.TempDir(), "disk"), Size: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	f := faulty.New(d, 1)
	t.Cleanup(func() { f.Close() })
	r := open(t, func(c *target.Config, s *nvmf.SubsystemConfig) {
		c.StateDir = t.TempDir()
		s.Namespaces[0].Volume = f
	})
	q := r.attach(hostNQN, 10, 1).io[0]
	if err := q.write(8, pattern(4096, 1)); err != nil {
		t.Fatal(err)
	}
	c := q.startLate(8, 8)
	f.SetRules(faulty.Rule{Op: faulty.Write, Torn: true, Times: 1}, faulty.Rule{Op: faulty.Write, Err: blockdev.ErrMedium, Times: 1})
	r.vol = f
	atomic := []byte{0x9C, 0, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 8, 0, 0}
	if err := r.lun().Do(context.Background(), &initiator.Request{Op: initiator.OpCDB, CDB: atomic, Buf: pattern(4096, 2)}); err == nil {
		t.Fatal("the volume takes everything")
	}
	q.deliver(c)
	if s := q.status(c); s != nvme.Success {
		t.Error(s)
	}
	if err := q.write(100, pattern(512, 3)); err != nil { // which lets go of what is to be undone
		t.Fatal(err)
	}
	if got, err := q.readBlocks(8, 4096); err != nil || !bytes.Equal(got, make([]byte, 4096)) {
		t.Errorf("deallocated blocks hold something again: %v", err)
	}
}
