package registry

import (
	"fmt"
	"sync"
	"time"

	"softiser/target"
)

// reloads is what has become of reloads.
type reloads struct {
	mu sync.Mutex
	st target.ReloadStatus // guarded by mu
}

func newReloads() *reloads { return &reloads{st: target.ReloadStatus{OK: true, Last: time.Now()}} }

// note takes the outcome of one into account.
func (r *reloads) note(changes []Change, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	st := &r.st
	st.OK, st.Error = true, ""
	if err != nil {
		st.OK, st.Error = false, err.Error()
	}
	for _, c := range changes {
		if c.Error != "" && st.OK {
			st.OK, st.Error = false, fmt.Sprintf("%s %s: %s", c.Action, c.Object, c.Error)
		}
	}
	if st.OK {
		st.Done++
		st.Last = time.Now()
	} else {
		st.Failed++
	}
}

// status returns a snapshot.
func (r *reloads) status() *target.ReloadStatus {
	r.mu.Lock()
	defer r.mu.Unlock()
	st := r.st
	return &st
}
