package packet

import "encoding/binary"

// DETH is the datagram extended transport header (IBA vol. 1 §9.3.2).
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+---------------------------------------------------------------+
//	|                           Queue Key                           |   0
//	+---------------+-----------------------------------------------+
//	|   reserved    |              Source Queue Pair                |   4
//	+---------------+-----------------------------------------------+
type DETH struct {
	QKey   uint32
	SrcQPN uint32 // 24 bits
}

func (h *DETH) put(b []byte) {
	binary.BigEndian.PutUint32(b, h.QKey)
	binary.BigEndian.PutUint32(b[4:], h.SrcQPN&QPNMask)
}

func (h *DETH) get(b []byte) {
	h.QKey, h.SrcQPN = binary.BigEndian.Uint32(b), binary.BigEndian.Uint32(b[4:])&QPNMask
}

// RETH is the RDMA extended transport header (IBA vol. 1 §9.3.3).
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+---------------------------------------------------------------+
//	|                                                               |   0
//	+                        Virtual Address                        +
//	|                                                               |   4
//	+---------------------------------------------------------------+
//	|                           Remote Key                          |   8
//	+---------------------------------------------------------------+
//	|                           DMA Length                          |  12
//	+---------------------------------------------------------------+
type RETH struct {
	VA   uint64
	RKey uint32
	Len  uint32 // of the whole message, bytes; at most MaxMessage
}

// MaxMessage is the length of the longest message, in bytes (IBA vol. 1 §9.7.8).
const MaxMessage = 1 << 31

func (h *RETH) put(b []byte) {
	binary.BigEndian.PutUint64(b, h.VA)
	binary.BigEndian.PutUint32(b[8:], h.RKey)
	binary.BigEndian.PutUint32(b[12:], h.Len)
}

func (h *RETH) get(b []byte) {
	h.VA, h.RKey, h.Len = binary.BigEndian.Uint64(b), binary.BigEndian.Uint32(b[8:]), binary.BigEndian.Uint32(b[12:])
}

// AtomicETH is the atomic extended transport header (IBA vol. 1 §9.3.4).
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+---------------------------------------------------------------+
//	|                                                               |   0
//	+                        Virtual Address                        +
//	|                                                               |   4
//	+---------------------------------------------------------------+
//	|                           Remote Key                          |   8
//	+---------------------------------------------------------------+
//	|                                                               |  12
//	+                     Swap (or Add) Data                        +
//	|                                                               |  16
//	+---------------------------------------------------------------+
//	|                                                               |  20
//	+                         Compare Data                          +
//	|                                                               |  24
//	+---------------------------------------------------------------+
type AtomicETH struct {
	VA        uint64 // a multiple of 8
	RKey      uint32
	SwapOrAdd uint64
	Compare   uint64
}

func (h *AtomicETH) put(b []byte) {
	binary.BigEndian.PutUint64(b, h.VA)
	binary.BigEndian.PutUint32(b[8:], h.RKey)
	binary.BigEndian.PutUint64(b[12:], h.SwapOrAdd)
	binary.BigEndian.PutUint64(b[20:], h.Compare)
}

func (h *AtomicETH) get(b []byte) {
	h.VA, h.RKey = binary.BigEndian.Uint64(b), binary.BigEndian.Uint32(b[8:])
	h.SwapOrAdd, h.Compare = binary.BigEndian.Uint64(b[12:]), binary.BigEndian.Uint64(b[20:])
}
