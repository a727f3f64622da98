package rdmamsg

import (
	"context"
	"errors"
	"fmt"
	"syscall"

	"softiser/rdma"
)

// DialRoCE connects qp, of a device of RoCE, to the listener at addr.
func DialRoCE(ctx context.Context, addr string, qp *rdma.QP, p *rdma.ConnParams) (*rdma.ConnInfo, error) {
	info, err := rdma.Dial(ctx, rdma.ProviderRoCE.Network(), addr, qp, p)
	if errors.Is(err, syscall.EADDRINUSE) {
		err = fmt.Errorf("%w. Another local address is free, perhaps (--local-address): two processes of one machine need one each, "+
			"for example 127.0.0.1 for the initiator and 127.0.0.2 for the target", err)
	}
	return info, err
}

// Describe says what a connection has agreed on about its packets, for logs and status.
func Describe(i *rdma.ConnInfo) string {
	if i.RoCE.PathMTU != 0 {
		return fmt.Sprintf("RoCE, path MTU %d", i.RoCE.PathMTU)
	}
	crc := "off"
	if i.CRC {
		crc = "on"
	}
	return fmt.Sprintf("MPA revision %d, CRC %s, FPDU %d", i.MPA.Rev, crc, i.MPA.FPDUSize)
}
