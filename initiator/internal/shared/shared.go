// Package shared keeps what all connections of a process use together: one RDMA device of
// each provider. Receive buffers and the table of STags then are as large, and as warm in the
// caches, as the traffic of all of them needs, and not so many times that of one. A window is
// bound to one queue pair, so targets do not meet there.
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
