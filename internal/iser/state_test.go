package iser

import (
	"strings"
	"testing"

	"softiser/internal/fsm"
	"softiser/internal/iscsi"
	"softiser/internal/rdmamsg"
)

// A transition that a table does not have is told of, and outside of tests it ends the
// connection and nothing else.
func TestIllegalTransition(t *testing.T) {
	panics := fsm.OnIllegal
	defer func() { fsm.OnIllegal = panics }()
	var told error
	fsm.OnIllegal = func(err error) { told = err }
	d := device(t)
	i, g := connect(t, d, d, ConnConfig{}, ConnConfig{})
	up := watched{ended: make(chan error, 1)}
	i.Start(up)
	i.mu.Lock()
	i.setState(iscsi.ConnFull)
	i.setState(iscsi.ConnLogin)
	i.mu.Unlock()
	if told == nil || !strings.Contains(told.Error(), "from full feature to login") {
		t.Errorf("told %v", told)
	}
	if err := <-up.ended; err != told {
		t.Errorf("ended with %v, want %v", err, told)
	}
	<-i.Ended()
	g.Terminate(nil)
	<-g.Ended()

	told = nil
	i.mu.Lock()
	done := i.hello.set(helloDone)
	err := i.hello.set(helloWait)
	i.mu.Unlock()
	if done != nil || told == nil || err != told || !strings.Contains(told.Error(), "from done to waiting") {
		t.Errorf("%v, %v, told %v", done, err, told)
	}

	told = nil
	s := newUnswitched(t)
	s.dm.mu.Lock()
	s.dm.setPhase(phaseRDMA)
	s.dm.mu.Unlock()
	if told == nil || !strings.Contains(told.Error(), "from stream to RDMA") || s.phase() != phaseStream {
		t.Errorf("told %v, %v", told, s.phase())
	}
	if err := s.End(t); err != told {
		t.Errorf("ended with %v, want %v", err, told)
	}
}

// watched notes the end.
type watched struct {
	iscsi.Upper
	ended chan error
}

func (w watched) ConnectionTerminateNotify(err error) { w.ended <- err }

// The Hello exchange is held by the initiator alone, and the phases of an upgrade do not
// go back.
func TestStates(t *testing.T) {
	for _, c := range []struct {
		role iscsi.Role
		hold bool
	}{{iscsi.RoleInitiator, true}, {iscsi.RoleTarget, false}} {
		var pump rdmamsg.Pump
		x := exchange{role: c.role, pump: &pump}
		if err := x.set(helloWait); err != nil || pump.Hold != c.hold {
			t.Errorf("%v: %v, held %v", c.role, err, pump.Hold)
		}
		if err := x.set(helloDone); err != nil || pump.Hold {
			t.Errorf("%v: %v, held %v after the exchange", c.role, err, pump.Hold)
		}
	}
	for from := phaseStream; from <= phaseDead; from++ {
		for to := phaseStream; to <= from; to++ {
			if nextPhases.Has(from, to) {
				t.Errorf("%v to %v", from, to)
			}
		}
	}
}
