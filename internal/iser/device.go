package iser

import (
	"fmt"

	"softiser/internal/iscsi"
	"softiser/internal/rdmamsg"
	"softiser/rdma"
)

// RecvDataLen is how much data fits a receive buffer behind the headers, bytes: what login
// needs, and TargetRecvDataSegmentLength afterwards (ADR 223). It is no less than
// iscsi.DefaultMRDSL.
const RecvDataLen = 16384

// ahsRoom is how many bytes of additional header segments fit beside RecvDataLen: MaxAHSLength
// that has not been negotiated (RFC 7145 §6.7).
const ahsRoom = 256

const recvBufLen = HeaderLen + iscsi.BHSLen + ahsRoom + RecvDataLen

// Config of a Device. Zero fields mean the default beside them.
type Config struct {
	RDMA rdma.DeviceConfig
	// MaxReceives bounds the receive buffers that the upper layers may hold, for all
	// connections together; 16384. They take up to 16 KiB each, as much as the
	// longest message that they have received. Half as many again are for what is just arriving.
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
