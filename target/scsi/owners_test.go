package scsi

import (
	"testing"

	"softiser/internal/spc"
)

// Registrations remember the user, over restarts as well, until they go or are
// disowned.
func TestOwnerOfRegistrations(t *testing.T) {
	cfg, unit := Config{StateDir: t.TempDir()}, LUConfig{Volume: newNamed(t, "owned")}
	r := newRig(t, cfg, unit)
	restart := func() {
		t.Helper()
		r.close()
		r = newRig(t, cfg, unit)
	}
	nexus := func(isid byte, user string) *Nexus {
		n, err := r.dev.NewNexus(NexusConfig{Initiator: "iqn.2026-11.test:Owner", ISID: [6]byte{0: 0x40, 5: isid}, User: user})
		if err != nil {
			t.Fatal(err)
		}
		r.attention(n, spc.ASCPowerOnReset)
		return n
	}
	want := func(what, user, other string) {
		t.Helper()
		if got, ok := r.dev.RegisteredUser("IQN.2026-11.test:owner", user); got != other || ok != (other != "") {
			t.Errorf("%s: a registration of %q, want %q", what, got, other)
		}
	}
	a := nexus(1, "alice")
	want("nothing registered", "bob", "")
	r.prout(a, spc.SAProutRegister, 0, 0, keyA, func(p *spc.PersistOut) { p.APTPL = true }).good()
	want("registered by alice", "bob", "alice")
	want("registered by alice", "alice", "")
	if got, ok := r.dev.RegisteredUser("iqn.2026-11.test:own", "bob"); ok {
		t.Errorf("a shorter name has a registration of %q", got)
	}
	r.dev.CloseNexus(a)
	want("after the nexus", "bob", "alice")
	restart()
	want("after a restart", "bob", "alice")
	if err := r.dev.DisownRegistrations("iqn.2026-11.test:OWNER"); err != nil {
		t.Fatal(err)
	}
	want("disowned", "bob", "")
	restart()
	want("disowned, after a restart", "bob", "")
	b := nexus(1, "bob")
	if _, keys := r.keys(b); len(keys) != 1 {
		t.Errorf("%d registrations, want the one that was there", len(keys))
	}
	r.prout(b, spc.SAProutRegisterIgnore, 0, 0, keyB).good()
	want("registered again by bob", "alice", "bob")
	r.prout(b, spc.SAProutRegister, 0, keyB, 0).good()
	want("unregistered", "alice", "")
}
