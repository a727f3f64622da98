package nvmf_test

import (
	"slices"
	"sync/atomic"
	"testing"
	"time"

	. "softiser/initiator/nvmf"
	"softiser/internal/await"
	"softiser/internal/nvme"
)

// Events are told one at a time, in the order in which they come about, although each recovery has
// a goroutine of its own.
func TestEventsInOrder(t *testing.T) {
	f := newFake(t)
	var a *Association
	var inside atomic.Int32
	var kinds []EventKind // the race detector sees whether somebody is told beside another one
	var recovered atomic.Int32
	cfg := f.config()
	cfg.OnEvent = func(e Event) {
		if inside.Add(1) != 1 {
			t.Errorf("%v is told beside another event", e.Kind)
		}
		defer inside.Add(-1)
		kinds = append(kinds, e.Kind)
		if e.Kind != EventRecovered || recovered.Load() > 0 {
			if e.Kind == EventRecovered {
				recovered.Add(1)
			}
			return
		}
		f.drop()
		if !await.Until(func() bool { s, _ := a.State(); return s != StateLive }) {
			t.Error("the loss is not seen")
		}
		time.Sleep(20 * time.Millisecond) // whoever would tell of the loss beside this has told by then; nobody waits for it
		recovered.Add(1)
	}
	a, err := Connect(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	f.drop()
	await.True(t, "it has been found twice", func() bool { return recovered.Load() == 2 })
	if err := a.Close(); err != nil {
		t.Error(err)
	}
	told := slices.DeleteFunc(kinds, func(k EventKind) bool { return k == EventRetry })
	if want := []EventKind{EventConnected, EventLost, EventRecovered, EventLost, EventRecovered, EventClosed}; !slices.Equal(told, want) {
		t.Errorf("told %v, want %v", told, want)
	}
}

// A controller that refuses a request for events, as one does that goes, is not asked again; the next one is.
func TestEventsOfTheNextController(t *testing.T) {
	f := newFake(t)
	refused := make(chan struct{}, 1)
	cfg := f.config()
	cfg.OnEvent = func(e Event) {
		if e.Kind == EventAsync && e.Err != nil {
			refused <- struct{}{}
		}
	}
	open(t, cfg)
	ask := "a request for events is answered"
	await.True(t, ask, func() bool { return f.release(0, nvme.AdminAsyncEvent, nvme.InternalError, 0) > 0 })
	<-refused
	f.drop()
	await.True(t, ask, func() bool {
		return f.release(0, nvme.AdminAsyncEvent, nvme.Success, uint64(nvme.EventNamespaceChanged)) > 0
	})
}
