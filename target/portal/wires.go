package portal

import (
	"errors"
	"fmt"

	"softiser/internal/sockio"
	"softiser/rdma"
)

// Wires are what the connections of a front end share, by what carries them: a device for each
// provider of RDMA, and what TCP tells of its connections.
type Wires[D device] struct {
	Protocol Protocol
	RDMA     D // none when no portal speaks the protocol over iWARP,
	RoCE     D // or over RoCE
	tcp, tls Tally
}

// Tally is what TCP tells of connections, added up.
type Tally = sockio.Tally

// device is a *iser.Device, or what NVMe has in its place.
type device interface {
	comparable
	RDMA() *rdma.Device
	Close() error
}

// Open opens the devices that portals need.
func (w *Wires[D]) Open(portals []*Portal, open func(rdma.DeviceConfig) (D, error)) error {
	var none D
	for _, p := range portals {
		c := p.Config()
		d := &w.RDMA
		if c.RoCE() {
			d = &w.RoCE
		}
		if c.off(Hello{w.Protocol, RDMA}) || *d != none {
			continue
		}
		opened, err := open(rdma.DeviceConfig{Provider: c.Provider(), MaxIRD: MaxReads, MaxORD: MaxReads})
		if err != nil {
			return errors.Join(fmt.Errorf("RDMA: %w", err), w.Close())
		}
		*d = opened
	}
	return nil
}

// Devices are those that have been opened.
func (w *Wires[D]) Devices() (all []D) {
	var none D
	for _, d := range []D{w.RDMA, w.RoCE} {
		if d != none {
			all = append(all, d)
		}
	}
	return all
}

// Close ends the devices, which no connection uses any more.
func (w *Wires[D]) Close() error {
	var errs []error
	for _, d := range w.Devices() {
		errs = append(errs, d.Close())
	}
	return errors.Join(errs...)
}

// Tally counts for the connections over TCP, or over TLS.
func (w *Wires[D]) Tally(t Transport) *Tally {
	if t == TLS {
		return &w.tls
	}
	return &w.tcp
}

// Status tells of the queue pairs of the devices.
func (w *Wires[D]) Status() (all []RDMAStatus) {
	for _, d := range w.Devices() {
		t := RDMA
		if d == w.RoCE {
			t = RoCE
		}
		all = append(all, rdmaStatusOf(Hello{w.Protocol, t}, d.RDMA()))
	}
	return all
}
