package iscsitcp

import (
	"errors"
	"strings"
	"testing"

	"softiser/internal/fsm"
	"softiser/internal/iscsi"
)

// A transition that the table does not have is told of, and outside of tests it ends the
// connection.
func TestIllegalTransition(t *testing.T) {
	panics := fsm.OnIllegal
	defer func() { fsm.OnIllegal = panics }()
	var told error
	fsm.OnIllegal = func(err error) { told = err }
	r := newPeer(t, iscsi.RoleTarget, nil)
	r.c.mu.Lock()
	r.c.setState(iscsi.ConnLogin)
	st := r.c.st
	r.c.mu.Unlock()
	if told == nil || !strings.Contains(told.Error(), "from full feature to login") {
		t.Fatalf("told %v", told)
	}
	if st != iscsi.ConnDead {
		t.Errorf("the connection is %v", st)
	}
	<-r.c.Ended()
	var p iscsi.PDU
	p.BHS.NewNopIn()
	if err := r.c.SendControl(&p); !errors.Is(err, told) {
		t.Errorf("afterwards: %v", err)
	}
}
