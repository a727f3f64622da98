package roce

import (
	"net/netip"
	"sync"

	"softiser/rdma/internal/roce/port"
)

// Device is what the engines of a device share: the ports that its connections and
// listeners have needed so far. They stay open until Close.
type Device struct {
	mu    sync.Mutex // guards what follows; taken before host.mu
	ports map[netip.Addr]*hostPort
}

// port opens the port of a local address for the device.
func (d *Device) port(addr netip.Addr) (*hostPort, error) {
	addr, err := OnLink(addr)
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if p := d.ports[addr]; p != nil {
		return p, nil
	}
	p, err := openPort(addr)
	if err != nil {
		return nil, err
	}
	if d.ports == nil {
		d.ports = make(map[netip.Addr]*hostPort)
	}
	d.ports[addr] = p
	return p, nil
}

// Ports calls f with the counters of each port that the device uses.
func (d *Device) Ports(f func(addr netip.Addr, s port.Stats)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for a, p := range d.ports {
		f(a, p.Stats())
	}
}

// Paths calls f with what is known of the way from each port that the device uses to each
// of its peers.
func (d *Device) Paths(f func(local netip.Addr, p PathInfo)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for a, p := range d.ports {
		for _, w := range p.paths.list() {
			f(a, w)
		}
	}
}

// Close gives the ports back. There are no queue pairs and listeners any more.
func (d *Device) Close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for addr := range d.ports {
		closePort(addr)
	}
	d.ports = nil
}
