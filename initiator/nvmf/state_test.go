package nvmf

import (
	"testing"
	"time"

	"softiser/internal/fsm"
	"softiser/internal/nvme"
)

// terminated is a connection that says why it is to end.
type terminated struct {
	nvme.HostTransport
	why chan error
}

func (t terminated) Terminate(reason error) { t.why <- reason }

// A transition that a table does not have is told, and all others are not.
func TestImpossibleTransitions(t *testing.T) {
	told := fsm.OnIllegal
	defer func() { fsm.OnIllegal = told }()
	n := 0
	fsm.OnIllegal = func(error) { n++ }
	q := new(queue)
	for from := reqIdle; from <= reqRunning; from++ {
		for to := reqIdle; to <= reqRunning; to++ {
			q.moveRequestLocked(&request{state: from}, to)
		}
	}
	if want := 1; n != want { // idle to running
		t.Errorf("%d transitions of requests are impossible, want %d", n, want)
	}
	n = 0
	for from := cmdFree; from <= cmdResend; from++ {
		for to := cmdFree; to <= cmdResend; to++ {
			q.moveCommandLocked(&command{state: from}, to)
		}
	}
	if want := 4; n != want { // free to delayed or resend, delayed to sent, resend to delayed
		t.Errorf("%d transitions of commands are impossible, want %d", n, want)
	}
	tr := terminated{why: make(chan error, 1)}
	q.tr = tr
	q.moveRequestLocked(&request{}, reqRunning)
	select {
	case err := <-tr.why:
		if err == nil {
			t.Error("the connection ends without a reason")
		}
	case <-time.After(time.Minute):
		t.Error("the connection goes on")
	}
}
