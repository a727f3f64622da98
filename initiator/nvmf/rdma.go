package nvmf

import (
	"cmp"
	"fmt"
	"sync"

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

// shared is the RDMA side of all hosts of this process, by provider: its receive buffers and
// its table of STags are as large as the traffic of all of them needs. A window is bound to
// one queue pair, so controllers do not meet there.
var shared struct {
	mu      sync.Mutex // guards what follows
	devices [rdma.ProviderRoCE + 1]struct {
		dev   *nvmerdma.Device
		users int
	}
}

// openDevice takes part in the device of a provider; closeDevice must follow.
func openDevice(p rdma.Provider) (*nvmerdma.Device, error) {
	shared.mu.Lock()
	defer shared.mu.Unlock()
	s := &shared.devices[p]
	if s.dev == nil {
		d, err := nvmerdma.Open(nvmerdma.Config{Host: true, RDMA: rdma.DeviceConfig{Provider: p}})
		if err != nil {
			return nil, fmt.Errorf("nvmf: %w", err)
		}
		s.dev = d
	}
	s.users++
	return s.dev, nil
}

// closeDevice ends the device with its last user, whose connections have ended as those of
// all others have.
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

func (c *Config) dialerRDMA() (nvme.HostDialer, func() error, error) {
	provider := rdma.ProviderIWARP
	if c.Transport == TransportRoCE {
		provider = rdma.ProviderRoCE
	}
	d, err := openDevice(provider)
	if err != nil {
		return nil, nil, err
	}
	timeout := c.ConnectTimeout
	if provider == rdma.ProviderRoCE && c.patience > 0 {
		timeout = min(timeout, c.patience)
	}
	r := &c.RDMA
	return &nvmerdma.HostDialer{Config: nvmerdma.HostConfig{
		Address: c.Address, Device: d, RoCE: provider == rdma.ProviderRoCE, Dial: c.tcp(),
		RDMA: rdma.ConnParams{
			CRC: r.CRC, BusyPoll: c.BusyPoll, Zerocopy: cmp.Or(r.Zerocopy, rdma.ZerocopyAuto),
			MPA:    rdma.MPAParams{MaxFPDU: r.MaxFPDU, GSO: r.LargeFPDU},
			SndBuf: c.SendBuffer, RcvBuf: c.RecvBuffer, Congestion: c.Congestion, Timeout: timeout,
			RoCE: rdma.RoCEParams{LocalAddr: c.LocalAddress},
		},
	}}, func() error { return closeDevice(provider) }, nil
}
