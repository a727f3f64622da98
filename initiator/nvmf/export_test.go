package nvmf

import (
	"time"

	"softiser/internal/nvme"
)

// Conn is the connection of the first I/O queue.
func (a *Association) Conn() nvme.HostTransport { return a.io[0].tr }

// Users is how many associations take part in the RDMA devices of the process.
func Users() int { return devices.Users() }

// Final is final.
var Final = final

// GivesUp is givesUp of an association with that CtrlLossTimeout.
func GivesUp(limit time.Duration, path bool, err error, down time.Duration, refused time.Time) error {
	return (&Association{cfg: Config{CtrlLossTimeout: limit, Path: path}}).givesUp(err, down, refused)
}

// Look has the namespaces looked at.
func Look(a *Association) { a.poke() }
