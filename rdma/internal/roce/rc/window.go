package rc

// window is how many packets may be in flight: it halves when something was lost and
// grows by one for each window that was answered, since neither rxe nor a plain network
// tells a sender anything before its packets are lost.
type window struct {
	now, limit int
	credit     int // packets answered since it last grew
}

const (
	firstWindow = 64
	minWindow   = 4
)

func newWindow(limit int) window {
	limit = max(minWindow, limit)
	return window{now: min(firstWindow, limit), limit: limit}
}

func (w *window) size() int { return w.now }

func (w *window) answered(n int) {
	if w.credit += n; w.credit >= w.now {
		w.credit = 0
		w.now = min(w.now+1, w.limit)
	}
}

func (w *window) lost() { w.now, w.credit = max(minWindow, w.now/2), 0 }
