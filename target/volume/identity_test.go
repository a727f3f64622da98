package volume

import (
	"bytes"
	"strings"
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

// TestIdentityOfConfig: what a configuration says a volume is called has a form that initiators take
// (SPC-4 §7.8.6: NAA formats 2, 3, 5 and 6, EUI-64 of 8, 12 or 16 bytes; serial numbers of ASCII).
func TestIdentityOfConfig(t *testing.T) {
	naa := func(first byte, n int) Identity { return Identity{NAA: append([]byte{first}, make([]byte, n-1)...)} }
	for _, tt := range []struct {
		cfg Identity
		ok  bool
	}{
		{Identity{}, true}, {naa(0x20, 8), true}, {naa(0x3F, 8), true}, {naa(0x50, 8), true}, {naa(0x60, 16), true},
		{naa(0x10, 8), false}, {naa(0x40, 8), false}, {naa(0x60, 8), false}, {naa(0x70, 8), false}, {naa(0x50, 16), false}, {naa(0x70, 16), false}, {naa(0x50, 7), false}, {naa(0x60, 17), false},
		{Identity{EUI: make([]byte, 8)}, true}, {Identity{EUI: make([]byte, 12)}, true}, {Identity{EUI: make([]byte, 16)}, true}, {Identity{EUI: make([]byte, 10)}, false},
		{Identity{Serial: " ~"}, true}, {Identity{Serial: strings.Repeat("x", 64)}, true}, {Identity{Serial: strings.Repeat("x", 65)}, false},
		{Identity{Serial: "a\x1f"}, false}, {Identity{Serial: "a\x7f"}, false}, {Identity{Serial: "\u00e9"}, false},
	} {
		id, err := newIdentity(&tt.cfg, "/dev/sda", "place")
		if (err == nil) != tt.ok {
			t.Errorf("%+v: %v", tt.cfg, err)
		}
		if want := tt.cfg; tt.ok && (want.NAA != nil && !bytes.Equal(id.NAA, want.NAA) || want.EUI != nil && !bytes.Equal(id.EUI, want.EUI) || want.Serial != "" && id.Serial != want.Serial) {
			t.Errorf("%+v is served as %+v", want, id)
		}
	}
}
