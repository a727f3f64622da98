package scsi

import (
	"encoding/json"
	"reflect"
	"testing"

	"softiser/internal/spc"
)

// carried is what the device hands to the process that takes its place, as that reads it.
func (r *rig) carried() (got []CarriedState) {
	r.t.Helper()
	states, err := r.dev.Carry()
	if err != nil {
		r.t.Fatal(err)
	}
	b, err := json.Marshal(states)
	if err != nil {
		r.t.Fatal(err)
	}
	if err := json.Unmarshal(b, &got); err != nil {
		r.t.Fatal(err)
	}
	return got
}

// TestCarry: unit attentions, prevented removal, mode parameters and access states go from a
// device to the one of another process.
func TestCarry(t *testing.T) {
	lu := func() LUConfig { return LUConfig{Volume: newVolume(t, 1<<20, 512), Removable: true} }
	old, now := newRig(t, Config{}, lu()), newRig(t, Config{}, lu())
	n := old.nx[0]
	old.on(n, 0, []byte{0x1E, 0, 0, 0, 1, 0}, nil, 0).good()
	v := old.dev.lookup(0).modes.values()
	v.DSense, v.TAS, v.QERR = true, true, 3
	old.dev.lookup(0).modes.set(v)
	if err := old.dev.SetAccessState(0, 1, ActiveNonOptimized); err != nil {
		t.Fatal(err)
	}
	old.dev.lookup(0).attention(spc.ASCModeChanged, nil)

	got := old.carried()
	units := n.Carry()
	if err := CheckCarried(units); err != nil {
		t.Fatal(err)
	}
	for _, n := range now.nx { // a device that begins has none
		now.dev.CloseNexus(n)
	}
	now.nx = nil
	if err := now.dev.Restore(got); err != nil {
		t.Fatal(err)
	}
	x, err := now.dev.NewNexus(NexusConfig{Initiator: "iqn.1994-05.com.example:host1", ISID: [6]byte{5: 1}})
	if err != nil {
		t.Fatal(err)
	}
	now.nx = append(now.nx, x)
	x.Restore(append(units, CarriedUnit{LUN: 9, Attentions: []spc.ASC{spc.ASCNexusLoss}}))
	unit := now.dev.lookup(0)
	if !unit.removalPrevented() || unit.modes.values() != v || unit.AccessStates()[1] != ActiveNonOptimized {
		t.Fatalf("%v, %+v, %v", unit.removalPrevented(), unit.modes.values(), unit.AccessStates())
	}
	if again := x.Carry(); !reflect.DeepEqual(again, units) || len(units[0].Attentions) != 2 {
		t.Fatalf("%+v; want %+v", again, units)
	}
	if again := now.carried(); !reflect.DeepEqual(again, got) {
		t.Fatalf("%+v; want %+v", again, got)
	}
	if now.dev.Restore([]CarriedState{{LUN: 0, Modes: []byte(`{"wce":7}`)}}) == nil {
		t.Error("mode parameters of another kind were taken")
	}
}
