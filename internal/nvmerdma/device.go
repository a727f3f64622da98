package nvmerdma

import (
	"fmt"

	"softiser/internal/nvme"
	"softiser/internal/rdmamsg"
	"softiser/rdma"
)

// InCapsule is the in-capsule data that a capsule of this package has room for, bytes. It
// is no more because hosts have lost data with longer ones (Linux before 5.13).
const InCapsule = 4096

const capsuleLen = nvme.SQELen + InCapsule

// Config of a Device. Zero fields mean the default beside them.
type Config struct {
	RDMA rdma.DeviceConfig
	// MaxReceives bounds the receive buffers that commands with in-capsule data may hold,
	// for all connections together; 16384. They take 4 KiB each, once traffic has needed
	// them.
	MaxReceives int
	// Host says that the connections are those of a host: nothing arrives but responses.
	Host bool
}

// Device is the RDMA side of a process. It is safe for concurrent use.
type Device struct{ *rdmamsg.Device }

// Open makes a device.
func Open(cfg Config) (*Device, error) {
	recv := capsuleLen
	if cfg.Host {
		recv = nvme.CQELen
	}
	d, err := rdmamsg.Open(rdmamsg.Config{RDMA: cfg.RDMA, MaxReceives: cfg.MaxReceives, RecvLen: recv, SendLen: capsuleLen})
	if err != nil {
		return nil, fmt.Errorf("nvmerdma: %w", err)
	}
	return &Device{d}, nil
}
