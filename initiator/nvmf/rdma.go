package nvmf

import (
	"cmp"
	"fmt"
	"net"
	"sync"

	"softiser/internal/congestion"
	"softiser/internal/nvme"
	"softiser/internal/nvmerdma"
	"softiser/rdma"
)

// RDMA is what only NVMe/RDMA has to be told. Zero fields mean the documented defaults.
type RDMA struct {
	CRC       rdma.CRCMode      // of MPA, the only end-to-end check there; default: required
	Zerocopy  rdma.ZerocopyMode // of large payloads; default rdma.ZerocopyAuto
	MaxFPDU   int               // bytes; default: what the path carries in one segment
	LargeFPDU bool              // offer FPDUs above the path's MSS, up to 64 KiB
}

// device is the RDMA side of all hosts of this process: its receive buffers and its table
// of STags are as large as the traffic of all of them needs. A window is bound to one queue
// pair, so controllers do not meet there.
var device struct {
	mu    sync.Mutex // guards what follows
	dev   *nvmerdma.Device
	users int
}

// openDevice takes part in the device; closeDevice must follow.
func openDevice() (*nvmerdma.Device, error) {
	device.mu.Lock()
	defer device.mu.Unlock()
	if device.dev == nil {
		d, err := nvmerdma.Open(nvmerdma.Config{Host: true})
		if err != nil {
			return nil, fmt.Errorf("nvmf: %w", err)
		}
		device.dev = d
	}
	device.users++
	return device.dev, nil
}

// closeDevice ends the device with its last user, whose connections have ended as those of
// all others have.
func closeDevice() error {
	device.mu.Lock()
	defer device.mu.Unlock()
	if device.users--; device.users > 0 {
		return nil
	}
	d := device.dev
	device.dev = nil
	return d.Close()
}

func (c *Config) dialerRDMA() (nvme.HostDialer, func() error, error) {
	d, err := openDevice()
	if err != nil {
		return nil, nil, err
	}
	r := &c.RDMA
	return &nvmerdma.HostDialer{Config: nvmerdma.HostConfig{
		Address: c.Address, Device: d, Dial: (&net.Dialer{Timeout: c.patience, Control: congestion.Dialing(c.Congestion)}).DialContext,
		RDMA: rdma.ConnParams{
			CRC: r.CRC, BusyPoll: c.BusyPoll, Zerocopy: cmp.Or(r.Zerocopy, rdma.ZerocopyAuto),
			MPA:    rdma.MPAParams{MaxFPDU: r.MaxFPDU, GSO: r.LargeFPDU},
			SndBuf: c.SendBuffer, RcvBuf: c.RecvBuffer, Congestion: c.Congestion, Timeout: c.ConnectTimeout,
		},
	}}, closeDevice, nil
}
