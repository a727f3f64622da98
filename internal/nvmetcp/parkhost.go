package nvmetcp

import (
	"errors"
	"fmt"
	"net"

	"softiser/internal/handover"
	"softiser/internal/nvme"
	"softiser/internal/pdustream"
)

// owedLocked implements role: a host asks for data by commands alone.
func (h *Host) owedLocked() bool { return false }

// settledLocked implements role.
func (h *Host) settledLocked() bool { return h.done == nil }

// resumed implements role.
func (h *Host) resumed() {}

// CarriedHost is what a parked connection of a host knows. Commands without data may be
// outstanding: they are the upper layer's to carry, and Outstanding's.
type CarriedHost struct {
	Digests    Digests `json:"digests"`
	Align      int     `json:"align"`            // of the data that is sent, bytes
	HPDA       uint8   `json:"hpda,omitempty"`   // of the data that comes, as HostConfig has it
	MaxH2CData uint32  `json:"max_h2c_data"`     // what the controller takes in one PDU, bytes
	InCapsule  uint32  `json:"in_capsule"`       // of I/O commands, bytes
	Slots      int     `json:"slots"`            // of commands
	Unread     []byte  `json:"unread,omitempty"` // from the socket, of PDUs that nobody has seen
}

// Carry returns what goes to another process, and a descriptor of the connection, which is
// the caller's. Preconditions: Still.
func (h *Host) Carry() (k CarriedHost, fd int, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.parkedLocked() {
		return k, -1, errors.New("nvmetcp: the connection is not parked")
	}
	k = CarriedHost{
		Digests: h.digests, Align: h.align, HPDA: h.cfg.HPDA, MaxH2CData: h.maxH2C, InCapsule: h.inCapsule,
		Slots: len(h.ios), Unread: append([]byte(nil), h.rx.Unread()...),
	}
	if fd, err = handover.DupTCP(h.Net()); err != nil {
		return k, -1, fmt.Errorf("nvmetcp: %w", err)
	}
	return k, fd, nil
}

// Check says what is wrong with what has come from another process.
func (k *CarriedHost) Check() error {
	switch {
	case k.Digests&^(DigestHeader|DigestData) != 0:
		return fmt.Errorf("nvmetcp: digests %#x", uint8(k.Digests))
	case k.Align < 4 || k.Align > 128 || k.Align%4 != 0:
		return fmt.Errorf("nvmetcp: data is aligned to %d bytes", k.Align)
	case k.HPDA > MaxPDA:
		return fmt.Errorf("nvmetcp: HPDA is %d; %d is the limit", k.HPDA, MaxPDA)
	case k.MaxH2CData < 4096:
		return fmt.Errorf("nvmetcp: MAXH2CDATA is %d", k.MaxH2CData)
	case k.Slots < 1 || k.Slots > nvme.MaxHostEntries:
		return fmt.Errorf("nvmetcp: a queue of %d commands; want 1 to %d", k.Slots, nvme.MaxHostEntries)
	case len(k.Unread) > pdustream.DeepReadAhead:
		return fmt.Errorf("nvmetcp: %d bytes that nobody has seen; %d is the limit", len(k.Unread), pdustream.DeepReadAhead)
	}
	return nil
}

// RestoreHost makes a host's connection of one that another process has carried. nc belongs
// to it from now on, unless there is an error. Nothing is read before Start.
func RestoreHost(nc net.Conn, cfg HostConfig, k *CarriedHost) (*Host, error) {
	if err := k.Check(); err != nil {
		return nil, err
	}
	cfg.HPDA, cfg.Digests = k.HPDA, k.Digests
	h, err := newHost(nc, cfg, k.Slots)
	if err != nil {
		return nil, err
	}
	h.inCapsule, h.maxH2C, h.digests, h.align = k.InCapsule, k.MaxH2CData, k.Digests, k.Align
	if err := h.rx.Preload(k.Unread); err != nil {
		return nil, fmt.Errorf("nvmetcp: %w", err)
	}
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
	h.ios[c.Slot] = hostIO{h: h, cmd: c}
	return nil
}
