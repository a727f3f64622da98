package nvmf_test

import (
	"testing"

	"softiser/internal/nvme"
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
