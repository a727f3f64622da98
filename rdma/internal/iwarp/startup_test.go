package iwarp

import (
	"testing"

	"softiser/rdma/internal/wire"
)

// TestFPDUSize: FPDUs fill a segment, in whole 8 bytes, and their ULPDUs are from 128 to 64768 bytes
// long (RFC 5044 §5).
func TestFPDUSize(t *testing.T) {
	largest, least := wire.LenField+wire.MaxULPDU+2+wire.CRCLen, wire.FPDULen(128)
	for _, c := range []struct {
		mss   int
		gso   bool
		limit int
		want  int
	}{
		{0, false, 0, largest},
		{1448, false, 0, 1448},
		{1460, false, 0, 1456},
		{1460, true, 0, largest},
		{65483, false, 0, largest},
		{1460, false, 1003, 1000},
		{1460, true, 1003, 1000},
		{88, false, 0, least},
		{1460, true, 8, least},
	} {
		if got := fpduSize(c.mss, c.gso, c.limit); got != c.want {
			t.Errorf("%+v: %d", c, got)
		}
	}
}
