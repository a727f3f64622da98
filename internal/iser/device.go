package iser

import (
	"fmt"

	"softiser/internal/iscsi"
	"softiser/internal/rdmamsg"
	"softiser/rdma"
)

// RecvDataLen is how much data fits a receive buffer behind the headers: what
// login needs, and TargetRecvDataSegmentLength afterwards.
const RecvDataLen = 8192

const recvBufLen = HeaderLen + iscsi.BHSLen + RecvDataLen

// Config of a Device. Zero fields mean the default beside them.
type Config struct {
	RDMA rdma.DeviceConfig
	// MaxReceives bounds the receive buffers that the upper layers may hold, for all
	// connections together; 16384. They take 8 KiB each, once traffic has needed
	// them. Half as many again are for what is just arriving.
	MaxReceives int
}

// Device is the RDMA side of a process. It is safe for concurrent use.
type Device struct{ *rdmamsg.Device }

// Open makes a device.
func Open(cfg Config) (*Device, error) {
	d, err := rdmamsg.Open(rdmamsg.Config{
		RDMA: cfg.RDMA, MaxReceives: cfg.MaxReceives, RecvLen: recvBufLen,
		SendLen: recvBufLen + 4, // with room for the padding
	})
	if err != nil {
		return nil, fmt.Errorf("iser: %w", err)
	}
	return &Device{d}, nil
}
