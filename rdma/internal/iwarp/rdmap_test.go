package iwarp

import (
	"testing"

	"softiser/rdma/internal/wire"
)

// TestRDMAPOps: every message type that the codec knows has its row, and no other.
func TestRDMAPOps(t *testing.T) {
	for op := wire.Opcode(0); op < 16; op++ {
		has := int(op) < len(rdmapOps) && rdmapOps[op].begin != nil
		if has != op.Known() {
			t.Errorf("%v: row %v, known %v", op, has, op.Known())
		}
		if has && rdmapOps[op].pieces != op.IsSend() {
			t.Errorf("%v: in pieces %v", op, rdmapOps[op].pieces)
		}
	}
}
