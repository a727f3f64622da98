package rdma

import (
	"fmt"
	"math"
	"strings"

	"softiser/rdma/internal/roce/packet"
)

// QPType is the service of a queue pair.
type QPType uint8

// Types. What they have:
//
//	     provider      Send  Write  Read, atomics  invalidation  lost, doubled    peers
//	RC   iWARP, RoCE   yes   yes    yes            yes           never            one
//	UC   RoCE          yes   yes    -              -             lost, in whole   one
//	UD   RoCE          yes   -      -              -             lost or doubled  anybody, groups
const (
	// TypeRC is a reliable connection.
	TypeRC QPType = iota
	// TypeUC is an unreliable connection: messages of which a packet is lost are dropped, and
	// nobody is told. A Send that meets no receive buffer is lost too.
	TypeUC
	// TypeUD is unreliable datagrams: messages of one packet each (ConnInfo.RoCE.PathMTU), to
	// anybody whose Q_Key is known. There is no connection: the queue pair is ready when it
	// has been created. See SendWR.Dest, Resolve, ServeDatagrams and JoinMulticast.
	TypeUD
)

var qpTypeNames = [...]string{"RC", "UC", "UD"}

// String is the name, as ParseQPType reads it.
func (t QPType) String() string {
	if int(t) < len(qpTypeNames) {
		return qpTypeNames[t]
	}
	return fmt.Sprintf("QPType(%d)", uint8(t))
}

// ParseQPType reads "RC", "UC" or "UD".
func ParseQPType(s string) (QPType, error) {
	for i, n := range qpTypeNames {
		if s == n {
			return QPType(i), nil
		}
	}
	return 0, invalid("type of queue pair %q: want %s", s, strings.Join(qpTypeNames[:], ", "))
}

// checkType finds what is wrong with the type of a queue pair in a configuration.
func (d *Device) checkType(cfg *QPConfig) error {
	switch {
	case int(cfg.Type) >= len(qpTypeNames):
		return invalid("%v", cfg.Type)
	case cfg.Type != TypeRC && d.cfg.Provider != ProviderRoCE:
		return invalid("a queue pair of type %v: a device of provider %v has %v only", cfg.Type, d.cfg.Provider, TypeRC)
	case cfg.Type != TypeUD && cfg.Datagram != (DatagramParams{}):
		return invalid("parameters for datagrams with a queue pair of type %v", cfg.Type)
	case cfg.Type == TypeUD && !cfg.Datagram.LocalAddr.IsValid():
		return invalid("a queue pair of type %v needs a local address (QPConfig.Datagram.LocalAddr)", cfg.Type)
	}
	return nil
}

// open makes a queue pair of the type UD ready.
func (qp *QP) open() error {
	p := &qp.cfg.Datagram
	mtu, err := pathMTU(p.PathMTU)
	if err != nil {
		return err
	}
	key := p.QKey
	if key == 0 {
		key = DefaultQKey
	}
	u, err := qp.datagrams()
	if err != nil {
		return err
	}
	return u.Open(p.LocalAddr.Unmap(), key, mtu)
}

// pathMTU is the code of a path MTU; 0 for 0, the largest that there can be.
func pathMTU(n int) (packet.MTU, error) {
	if n == 0 {
		return 0, nil
	}
	for m := packet.MTU256; m <= packet.MTU4096; m++ {
		if m.Bytes() == n {
			return m, nil
		}
	}
	return 0, invalid("path MTU %d: want 256, 512, 1024, 2048 or 4096", n)
}

// checkRoCE finds what a request asks for that RoCE, or the type of its queue pair, does
// not have.
func (qp *QP) checkRoCE(wr *SendWR) error {
	switch wr.Op {
	case OpImm, OpWriteImm, OpSendImm:
		if wr.Imm > math.MaxUint32 {
			return invalid("immediate data %#x: RoCE carries 4 bytes", wr.Imm)
		}
	case OpFetchAdd:
		if wr.AddMask != 0 {
			return invalid("FetchAdd with a mask, which RoCE does not have")
		}
	case OpCmpSwap:
		if wr.CompareMask+1 > 1 || wr.SwapMask+1 > 1 {
			return invalid("CmpSwap with a mask, which RoCE does not have")
		}
	}
	t := qp.cfg.Type
	switch {
	case t == TypeRC || wr.Op.Local():
		return nil
	case wr.Op.Answered() || wr.Op == OpSendInv, t == TypeUD && wr.Op != OpSend && wr.Op != OpSendImm:
		return invalid("%v by a queue pair of type %v", wr.Op, t)
	case t == TypeUD && wr.Dest.AH == nil:
		return invalid("a datagram needs an address handle (SendWR.Dest)")
	case t == TypeUD && wr.Dest.AH.pd != qp.pd:
		return invalid("address handle of another protection domain")
	}
	return nil
}
