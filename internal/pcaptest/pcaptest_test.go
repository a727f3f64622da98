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

// A decoder of somebody else counted 3664 datagrams, less 249 of a capture that is not
// kept here, more 440 of iSER.
func TestDatagrams(t *testing.T) {
	total, v6 := 0, 0
	for _, name := range RoCENames(t, "") {
		ds := RoCE(t, name)
		if len(ds) == 0 {
			t.Errorf("%s: no datagram", name)
		}
		for _, d := range ds {
			total++
			if d.Src().Addr().Is6() {
				v6++
			}
			if len(d.Payload()) < 16 {
				t.Errorf("%s: a datagram of %d bytes", name, len(d.Payload()))
			}
		}
	}
	if total != 3664-249+440 || v6 == 0 {
		t.Errorf("%d datagrams, %d of IPv6", total, v6)
	}
}
