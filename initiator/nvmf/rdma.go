package nvmf

import (
	"cmp"
	"fmt"

	"softiser/initiator/internal/shared"
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

// devices are those of all hosts of this process.
var devices = shared.Devices[*nvmerdma.Device]{Open: func(p rdma.Provider) (*nvmerdma.Device, error) {
	d, err := nvmerdma.Open(nvmerdma.Config{Host: true, RDMA: rdma.DeviceConfig{Provider: p}})
	if err != nil {
		return nil, fmt.Errorf("nvmf: %w", err)
	}
	return d, nil
}}

func (c *Config) dialerRDMA() (nvme.HostDialer, func() error, error) {
	provider := rdma.ProviderIWARP
	if c.Transport == TransportRoCE {
		provider = rdma.ProviderRoCE
	}
	d, err := devices.Acquire(provider)
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
	}}, func() error { return devices.Release(provider) }, nil
}
