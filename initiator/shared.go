package initiator

import (
	"softiser/initiator/internal/shared"
	"softiser/internal/iser"
	"softiser/rdma"
)

// devices are those of all sessions of this process.
var devices = shared.Devices[*iser.Device]{Open: func(p rdma.Provider) (*iser.Device, error) {
	return iser.Open(iser.Config{RDMA: rdma.DeviceConfig{Provider: p}})
}}

// provider is that of the device for c's connections.
func (c *Config) provider() rdma.Provider {
	if c.Transport == TransportRoCE {
		return rdma.ProviderRoCE
	}
	return rdma.ProviderIWARP
}
