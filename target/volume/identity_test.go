package volume

import (
	"bytes"
	"testing"
)

// TestIdentity: what initiators recognise a volume by follows its device; with an NAA name it
// follows that, whatever path the device has on the node.
func TestIdentity(t *testing.T) {
	identity := func(cfg Identity, stable string) Identity {
		t.Helper()
		id, err := newIdentity(&cfg, stable, "place")
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	here, there := identity(Identity{}, "/dev/sda"), identity(Identity{}, "/dev/sdb")
	if again := identity(Identity{}, "/dev/sda"); !again.equal(&here) || here.equal(&there) || bytes.Equal(here.EUI, there.EUI) || here.Serial == there.Serial {
		t.Errorf("%+v at one path, %+v at another", here, there)
	}
	naa := append([]byte{0x60}, make([]byte, 15)...)
	a, b := identity(Identity{NAA: naa}, "/dev/sda"), identity(Identity{NAA: naa}, "/dev/sdb")
	moved := identity(Identity{NAA: naa}, StableID(naa)) // as a volume of a group of nodes has it
	if !a.equal(&b) || !a.equal(&moved) || a.equal(&here) {
		t.Errorf("one NAA name: %+v at one path, %+v at another, %+v where it moves", a, b, moved)
	}
	other := identity(Identity{NAA: append([]byte{0x61}, naa[1:]...)}, "/dev/sda")
	if bytes.Equal(a.EUI, other.EUI) || a.Serial == other.Serial {
		t.Errorf("two NAA names of one path share %+v", other)
	}
	if own := identity(Identity{NAA: naa, Serial: "S", EUI: naa[:8]}, "/dev/sda"); own.Serial != "S" || !bytes.Equal(own.EUI, naa[:8]) {
		t.Errorf("%+v: the configuration goes before", own)
	}
}
