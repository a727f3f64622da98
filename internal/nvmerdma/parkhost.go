package nvmerdma

import (
	"errors"
	"fmt"
	"net"

	"softiser/internal/handover"
	"softiser/internal/nvme"
	"softiser/rdma"
)

// settledLocked implements role: what a host posts from up-calls is none of the commands that
// its upper layer waits for.
func (h *Host) settledLocked() bool { return true }

// resumed implements role.
func (h *Host) resumed() {}

// CarriedHost is what a parked connection of a host knows. Commands without data may be
// outstanding: they are the upper layer's to carry, and Outstanding's. No STag goes along: those
// of other commands are closed with the answers, and each process draws its own at random.
type CarriedHost struct {
	QP        rdma.Carried `json:"queue_pair"`
	InCapsule int          `json:"in_capsule"` // of I/O commands, bytes
	Slots     int          `json:"slots"`      // of commands
}

// Carry returns what goes to another process, and a descriptor of the connection, which is
// the caller's. Preconditions: Still.
func (h *Host) Carry() (k CarriedHost, fd int, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.parkedLocked() {
		return k, -1, errors.New("nvmerdma: the connection is not parked")
	}
	k = CarriedHost{InCapsule: h.inCapsule, Slots: len(h.ios)}
	var nc net.Conn
	if k.QP, nc, err = h.qp.Carry(); err != nil {
		return k, -1, fmt.Errorf("nvmerdma: %w", err)
	}
	if fd, err = handover.DupTCP(nc); err != nil {
		return k, -1, fmt.Errorf("nvmerdma: %w", err)
	}
	return k, fd, nil
}

// Check says what is wrong with what has come from another process.
func (k *CarriedHost) Check() error {
	switch {
	case !k.QP.Initiator:
		return errors.New("nvmerdma: that is no connection of a host")
	case k.InCapsule < 0 || k.InCapsule > InCapsule:
		return fmt.Errorf("nvmerdma: %d bytes of data in a capsule; want 0 to %d", k.InCapsule, InCapsule)
	case k.Slots < 1 || k.Slots > nvme.MaxHostEntries:
		return fmt.Errorf("nvmerdma: a queue of %d commands; want 1 to %d", k.Slots, nvme.MaxHostEntries)
	}
	if err := k.QP.Check(); err != nil {
		return fmt.Errorf("nvmerdma: %w", err)
	}
	return nil
}

// RestoreHost makes a host's connection of one that another process has carried. nc belongs
// to it from now on, unless there is an error. What has arrived before Start waits.
func RestoreHost(nc net.Conn, cfg HostConfig, k *CarriedHost) (*Host, error) {
	if err := k.Check(); err != nil {
		return nil, err
	}
	h, err := unconnected(cfg.Device, k.Slots)
	if err != nil {
		return nil, err
	}
	h.inCapsule = k.InCapsule
	p := cfg.params()
	if err := h.qp.Adopt(nc, &k.QP, &p); err != nil {
		h.discard()
		return nil, fmt.Errorf("nvmerdma: %w", err)
	}
	h.connected()
	return h, nil
}

// Outstanding has a restored connection go on with a command that the other process has sent:
// c has its identifier, and no data. Preconditions: Start has not been called.
func (h *Host) Outstanding(c *nvme.HostCommand) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.table.Restore(c); err != nil {
		return err
	}
	h.ios[c.Slot] = hostIO{}
	return nil
}
