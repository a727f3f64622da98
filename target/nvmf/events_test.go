package nvmf

import (
	"slices"
	"testing"

	"softiser/target/volume"
)

// A list of changed namespaces that stays for the next reader is not changed under the one who has it:
// his answer is built without the lock.
func TestRetainedChangesStay(t *testing.T) {
	var e events
	e.init()
	for _, id := range []uint32{10, 20, 30} {
		e.namespaceChanged(id)
	}
	had := e.takeChanged(true)
	e.namespaceChanged(1)
	if want := []uint32{10, 20, 30}; !slices.Equal(had, want) {
		t.Errorf("who has read %v has %v now", want, had)
	}
	if got, want := e.takeChanged(false), []uint32{1, 10, 20, 30}; !slices.Equal(got, want) {
		t.Errorf("changed: %v, want %v", got, want)
	}
	if got := e.takeChanged(true); len(got) != 0 {
		t.Errorf("after they have been read: %v", got)
	}
}

// Reservation notices that nobody reads are kept up to a limit. Each that is read leaves the event
// due for as long as there are more.
func TestReservationNotices(t *testing.T) {
	var e events
	e.init()
	for range maxNotices + 2 {
		e.reservation(1, volume.ReservationReleased)
	}
	for left := maxNotices - 1; left >= 0; left-- {
		n := e.takeNotice(false)
		if int(n.Further) != left || int(n.Count) != maxNotices-left || e.due[eventReservation] != (left > 0) {
			t.Fatalf("%+v, due: %v; want %d further ones", n, e.due[eventReservation], left)
		}
	}
}
