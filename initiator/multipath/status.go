package multipath

import (
	"fmt"
	"slices"
)

// Status is how a path is, for people.
type Status struct {
	URL         string `json:"url"`
	State       string `json:"state"`            // an access state, or "down"
	Active      bool   `json:"active"`           // requests go to it
	Reason      string `json:"reason,omitempty"` // why it is down
	Outstanding int    `json:"outstanding"`      // requests that it carries
	Unknown     int    `json:"unknown"`          // writes that wait until it is fenced
}

// Paths returns how the paths are.
func (v *Volume) Paths() []Status {
	active := *v.active.Load()
	v.mu.Lock()
	defer v.mu.Unlock()
	var out []Status
	for _, p := range v.paths {
		s := Status{URL: p.dial.Name, State: p.access.String(), Active: slices.Contains(active, p), Outstanding: int(p.outstanding.Load()), Unknown: p.unknownLocked()}
		if !p.up {
			s.State, s.Reason = "down", fmt.Sprint(p.why)
		}
		out = append(out, s)
	}
	return out
}
