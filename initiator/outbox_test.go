package initiator

import (
	"slices"
	"testing"
)

// Events are told in the order in which they came about, whichever goroutine comes first to telling
// its own.
func TestEventsInOrder(t *testing.T) {
	var told []EventKind
	s := newSession(Config{OnEvent: func(e Event) { told = append(told, e.Kind) }}.withDefaults())
	defer s.cancel()
	s.mu.Lock()
	s.event(Event{Kind: EventLost})
	done, later := s.takeLocked()
	s.mu.Unlock()
	// Before this goroutine gets any further, another one has found the target again.
	s.mu.Lock()
	s.event(Event{Kind: EventRecovered})
	s.unlock()
	runLater(done, later)
	if want := []EventKind{EventLost, EventRecovered}; !slices.Equal(told, want) {
		t.Errorf("told %v, want %v", told, want)
	}
}
