package rdma

import (
	"errors"
	"strings"
	"testing"
)

// TestStates: the table is the drawing in qp_state.go, and Error is final.
func TestStates(t *testing.T) {
	legal := map[[2]QPState]bool{
		{StateIdle, StateRTS}: true, {StateIdle, StateError}: true,
		{StateRTS, StateClosing}: true, {StateRTS, StateTerminate}: true, {StateRTS, StateError}: true,
		{StateClosing, StateTerminate}: true, {StateClosing, StateError}: true,
		{StateTerminate, StateError}: true,
	}
	for from := StateIdle; from <= StateError; from++ {
		for to := StateIdle; to <= StateError; to++ {
			if got, want := from.mayBecome(to), legal[[2]QPState{from, to}] || from == to; got != want {
				t.Errorf("%v to %v: %v, want %v", from, to, got, want)
			}
		}
	}
}

// TestIllegalTransition: outside of tests it ends the queue pair and says so.
func TestIllegalTransition(t *testing.T) {
	r := newRig(t, true)
	r.qp.failing = make(chan struct{})
	told := badTransition
	t.Cleanup(func() { badTransition = told })
	var got error
	badTransition = func(err error) { got = err }
	r.qp.sqMu.Lock()
	r.qp.setState(StateIdle)()
	state, err := r.qp.state, r.qp.err
	r.qp.sqMu.Unlock()
	if state != StateRTS || !r.qp.dying.Load() || got == nil || !errors.Is(err, got) || !strings.Contains(got.Error(), "from RTS to Idle") {
		t.Errorf("state %v, told %v, ended by %v", state, got, err)
	}
}
