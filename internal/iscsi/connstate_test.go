package iscsi

import "testing"

// The table is the drawing above ConnState: a connection never goes back, and nothing
// follows its end.
func TestStates(t *testing.T) {
	for from := ConnLogin; from <= ConnDead; from++ {
		for to := ConnLogin; to <= ConnDead; to++ {
			if got, want := from.MayBecome(to), to >= from; got != want {
				t.Errorf("%v to %v: %v", from, to, got)
			}
		}
	}
	if s := ConnState(9).String(); s != "ConnState(9)" {
		t.Error(s)
	}
}
