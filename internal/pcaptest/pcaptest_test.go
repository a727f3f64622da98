package pcaptest

import "testing"

func TestCaptures(t *testing.T) {
	for _, name := range Names(t, "") {
		conns := Open(t, name)
		if len(conns) == 0 {
			t.Errorf("%s: no connection", name)
		}
		for i, c := range conns {
			if len(c.C2S) == 0 {
				continue // a refused or unused connection
			}
			if !c.Complete {
				t.Errorf("%s: connection %d (%v to %v) has a gap", name, i, c.Client, c.Server)
			}
		}
	}
}

func TestReassembly(t *testing.T) {
	conns := Open(t, "rping-siw")
	if len(conns) != 1 {
		t.Fatalf("%d connections, want 1", len(conns))
	}
	c := conns[0]
	if got := string(c.C2S[:16]); got != "MPA ID Req Frame" {
		t.Errorf("client begins with %q", got)
	}
	if got := string(c.S2C[:16]); got != "MPA ID Rep Frame" {
		t.Errorf("server begins with %q", got)
	}
	if !c.Segs[0].FromClient || c.Segs[0].Off != 0 || c.Segs[1].FromClient {
		t.Errorf("segments begin with %+v", c.Segs[:2])
	}
}
