package nvmf

import "time"

// Users is how many associations take part in the RDMA devices of the process.
func Users() (n int) {
	shared.mu.Lock()
	defer shared.mu.Unlock()
	for i := range shared.devices {
		n += shared.devices[i].users
	}
	return n
}

// Final is final.
var Final = final

// GivesUp is givesUp of an association with that CtrlLossTimeout.
func GivesUp(limit time.Duration, path bool, err error, down time.Duration, refused time.Time) error {
	return (&Association{cfg: Config{CtrlLossTimeout: limit, Path: path}}).givesUp(err, down, refused)
}
