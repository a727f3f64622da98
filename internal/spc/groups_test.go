package spc

import (
	"reflect"
	"testing"
)

func TestParsePortGroups(t *testing.T) {
	two := []byte{
		0, 0, 0, 24,
		0x80, 0xCF, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1,
		0x02, 0xCF, 0, 7, 0, 2, 0, 1, 0, 0, 0, 9,
	}
	want := []PortGroup{{ID: 1, Preferred: true, Ports: []uint16{1}}, {ID: 7, State: 2, Ports: []uint16{9}}}
	for name, c := range map[string]struct {
		in   []byte
		want []PortGroup
	}{
		"two":                       {two, want},
		"cut in the second":         {two[:20], want[:1]},
		"longer than it says":       {append(two[:len(two):len(two)], 1, 2, 3, 4, 5, 6, 7, 8), want},
		"says more than there is":   {append([]byte{0xFF, 0xFF, 0xFF, 0xFF}, two[4:]...), want},
		"more ports than there are": {[]byte{0, 0, 0, 8, 0, 0, 0, 1, 0, 0, 0, 200}, nil},
		"none":                      {[]byte{0, 0, 0, 0}, nil},
	} {
		if got, err := ParsePortGroups(c.in); err != nil || !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
	if _, err := ParsePortGroups(two[:3]); err == nil {
		t.Error("no header was taken")
	}
}
