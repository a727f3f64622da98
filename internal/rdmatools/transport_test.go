package rdmatools

import (
	"testing"

	"softiser/rdma"
)

// TestReasonOfRejection: a rejection is shown with the words of the peer, and not with a code that another service has.
func TestReasonOfRejection(t *testing.T) {
	for reason, want := range map[string]string{
		"":                           "",
		"the server is busy\x00\x00": ": the server is busy",
		"\x00\x00\x02\x00":           "",
		"\x02\x01":                   "",
		"\xff\xfe":                   "",
	} {
		if got := withReason(&rdma.RejectError{PrivateData: []byte(reason)}).Error(); got != rdma.ErrRejected.Error()+want {
			t.Errorf("%q: %s", reason, got)
		}
	}
}
