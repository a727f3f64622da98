package portal

// Status is the state of a listening address.
type Status struct {
	Listen   string `json:"listen"`
	Bound    string `json:"bound,omitempty"` // empty: not listening
	Group    uint16 `json:"group"`
	Accepted uint64 `json:"accepted_total"`
	Garbage  uint64 `json:"garbage_total"`     // neither iSCSI nor MPA
	Silent   uint64 `json:"silent_total"`      // gone or timed out before the first bytes
	Evicted  uint64 `json:"evicted_total"`     // closed to make room
	Turned   uint64 `json:"turned_away_total"` // refused unheard: its address has its share, or no descriptor was left
}

// Status returns a snapshot.
func (p *Portal) Status() Status {
	st := Status{
		Listen: p.cfg.Listen, Group: p.cfg.Group, Accepted: p.accepted.Load(),
		Garbage: p.garbage.Load(), Silent: p.silent.Load(), Evicted: p.evicted.Load(), Turned: p.turned.Load(),
	}
	if a, ok := p.Bound(); ok {
		st.Bound = a.String()
	}
	return st
}
