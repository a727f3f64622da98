package nvmf

import (
	"cmp"
	"slices"
	"time"
)

// ControllerStatus is what a controller is now.
type ControllerStatus struct {
	Subsystem string
	ID        uint16
	Host      string // NQN
	HostID    string
	Address   string // where the admin queue comes from
	Queues    int    // I/O queues
	Ready     bool
	Proved    bool // the host has authenticated itself by DH-HMAC-CHAP
	TLS       bool // the admin queue is behind TLS
	Since     time.Time
}

// Controllers returns the controllers of all subsystems, those of the discovery service
// included.
func (f *Frontend) Controllers() []ControllerStatus {
	var l []ControllerStatus
	for _, s := range append(slices.Clone(f.list()), f.discovery) {
		for _, c := range s.all() {
			l = append(l, c.snapshot())
		}
	}
	slices.SortFunc(l, func(a, b ControllerStatus) int {
		return cmp.Or(cmp.Compare(a.Subsystem, b.Subsystem), cmp.Compare(a.ID, b.ID))
	})
	return l
}

func (c *controller) snapshot() ControllerStatus {
	c.mu.Lock()
	defer c.mu.Unlock()
	n, admin := 0, c.queues[0]
	for id := range c.queues {
		if id != 0 {
			n++
		}
	}
	return ControllerStatus{
		Subsystem: c.sub.cfg.NQN, ID: c.id, Host: c.host, HostID: c.hostID.String(), Address: c.from,
		Queues: n, Ready: c.status.Ready(), Proved: admin != nil && admin.auth != nil && admin.proved.Load(), TLS: admin != nil && admin.identity != nil, Since: c.since,
	}
}
