// Package shared keeps one RDMA device of each provider for all connections of a process, so
// that receive buffers and the table of STags are sized by the traffic of all of them together
// and stay in the processor's caches. Targets cannot reach each other's memory through it, as a
// window is bound to one queue pair.
package shared

import (
	"io"
	"sync"

	"softiser/rdma"
)

// Devices is one device of each provider, while somebody uses it. It is safe for concurrent
// use; Open is not changed after the first call.
type Devices[D io.Closer] struct {
	Open func(rdma.Provider) (D, error)

	mu   sync.Mutex // guards what follows
	open [rdma.ProviderRoCE + 1]struct {
		dev   D
		users int
	}
}

// Acquire takes part in the device of a provider, which it opens for its first user. Release
// must follow, unless there is an error, which is Open's.
func (s *Devices[D]) Acquire(p rdma.Provider) (D, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := &s.open[p]
	if o.users == 0 {
		d, err := s.Open(p)
		if err != nil {
			return d, err
		}
		o.dev = d
	}
	o.users++
	return o.dev, nil
}

// Release ends the device with its last user, whose connections have ended as those of all
// others have. The error is that of the device's Close.
func (s *Devices[D]) Release(p rdma.Provider) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := &s.open[p]
	if o.users--; o.users > 0 {
		return nil
	}
	d := o.dev
	var none D
	o.dev = none
	return d.Close()
}

// Users returns how many have acquired a device and not released it, of all providers.
func (s *Devices[D]) Users() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.open {
		n += s.open[i].users
	}
	return n
}
