package initiator

import (
	"sync"

	"softiser/internal/iser"
)

// shared is the RDMA side of this process. All sessions use one device: receive
// buffers and the table of STags then are as large, and as warm in the caches, as
// the traffic of all of them needs, and not so many times that of one. A window
// is bound to one queue pair, so targets do not meet there.
var shared struct {
	mu    sync.Mutex // guards what follows
	dev   *iser.Device
	users int
}

// openDevice takes part in the shared device; closeDevice must follow.
func openDevice() (*iser.Device, error) {
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if shared.dev == nil {
		d, err := iser.Open(iser.Config{})
		if err != nil {
			return nil, err
		}
		shared.dev = d
	}
	shared.users++
	return shared.dev, nil
}

// closeDevice ends the device with its last user, whose connections have ended
// as those of all others have.
func closeDevice() error {
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if shared.users--; shared.users > 0 {
		return nil
	}
	d := shared.dev
	shared.dev = nil
	return d.Close()
}
