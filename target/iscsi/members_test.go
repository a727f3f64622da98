package iscsi

import "testing"

// TestMembersLoggedOut: a connection that has been logged out is none of the session's, also
// when it is closed and has not left yet.
func TestMembersLoggedOut(t *testing.T) {
	c := &conn{cid: 1}
	m := members{conns: []*conn{c}}
	if m.byCID(1) != c || m.count() != 1 || m.byCID(2) != nil {
		t.Fatal("a connection that is there")
	}
	c.hungUp.Store(true)
	for _, s := range []connState{connLogin, connLoggedOut, connClosed} {
		if c.state.advance(s); m.byCID(1) != nil || m.count() != 0 {
			t.Errorf("found in state %q", c.state.get())
		}
	}
}
