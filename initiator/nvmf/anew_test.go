package nvmf

import (
	"testing"
	"time"

	"softiser/initiator/internal/silence"
)

// The silence of an association that was lost is not the next one's, though its connections
// may have heard as much as those before when they are looked at first.
func TestAssociationIsWatchedAnew(t *testing.T) {
	var m mute
	times := silence.Times{Ping: time.Second, Probe: 2 * time.Second}
	look := func(at time.Duration, heard uint64) silence.Action {
		_, do := m.lookLocked(times, at, heard, true)
		return do
	}
	m.began()
	want := []silence.Action{silence.Nothing, silence.Ping, silence.Probe}
	for i, w := range want {
		if do := look(time.Duration(i)*time.Second, 7); do != w {
			t.Fatalf("look %d: %v, want %v", i, do, w)
		}
	}
	m.began()
	for i, w := range want {
		if do := look(10*time.Second+time.Duration(i)*time.Second, 7); do != w {
			t.Errorf("look %d at the next association: %v, want %v", i, do, w)
		}
	}
}
