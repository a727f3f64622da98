package initiator

import (
	"sync"

	"softiser/internal/iser"
	"softiser/rdma"
)

// shared is the RDMA side of this process. All sessions use one device of a provider: receive
// buffers and the table of STags then are as large, and as warm in the caches, as
// the traffic of all of them needs, and not so many times that of one. A window
// is bound to one queue pair, so targets do not meet there.
var shared struct {
	mu      sync.Mutex // guards what follows
	devices [rdma.ProviderRoCE + 1]struct {
		dev   *iser.Device
		users int
	}
}

// provider is that of the device for c's connections.
func (c *Config) provider() rdma.Provider {
	if c.Transport == TransportRoCE {
		return rdma.ProviderRoCE
	}
	return rdma.ProviderIWARP
}

// openDevice takes part in the shared device of a provider; closeDevice must follow.
func openDevice(p rdma.Provider) (*iser.Device, error) {
	shared.mu.Lock()
	defer shared.mu.Unlock()
	s := &shared.devices[p]
	if s.dev == nil {
		d, err := iser.Open(iser.Config{RDMA: rdma.DeviceConfig{Provider: p}})
		if err != nil {
			return nil, err
		}
		s.dev = d
	}
	s.users++
	return s.dev, nil
}

// closeDevice ends the device with its last user, whose connections have ended
// as those of all others have.
func closeDevice(p rdma.Provider) error {
	shared.mu.Lock()
	defer shared.mu.Unlock()
	s := &shared.devices[p]
	if s.users--; s.users > 0 {
		return nil
	}
	d := s.dev
	s.dev = nil
	return d.Close()
}
