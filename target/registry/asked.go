package registry

import (
	"slices"
	"strings"
	"sync"
)

// asked is storage that has been asked for something, in case that it does not answer.
type asked struct {
	mu    sync.Mutex
	whats []string
}

// during notes what is asked for until over is called.
func (a *asked) during(what string) (over func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.whats = append(a.whats, what)
	return func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		i := slices.Index(a.whats, what)
		a.whats = slices.Delete(a.whats, i, i+1)
	}
}

// list is what has not been answered, "" if nothing.
func (a *asked) list() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return strings.Join(slices.Sorted(slices.Values(a.whats)), ", ")
}
