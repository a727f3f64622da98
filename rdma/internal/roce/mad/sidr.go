package mad

import (
	"encoding/binary"
	"fmt"
)

// Private data of a SIDR_REQ, of which rdma_cm takes IPHeaderLen, and of a SIDR_REP,
// in bytes; and SIDRInfoLen, the additional information of the latter.
const (
	PrivateSIDRREQ = 216
	PrivateSIDRREP = 136
	SIDRInfoLen    = 72
)

// SIDRREQ asks for the queue pair of a datagram service (IBA vol. 1 §12.11.1).
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+---------------------------------------------------------------+
//	|                           Request ID                          |   0
//	+-------------------------------+-------------------------------+
//	|             P_Key             |           reserved            |   4
//	+-------------------------------+-------------------------------+
//	|                                                               |   8
//	+                           Service ID                          +
//	|                                                               |
//	+---------------------------------------------------------------+
type SIDRREQ struct {
	RequestID uint32
	PKey      uint16
	ServiceID ServiceID
	Private   [PrivateSIDRREQ]byte
}

// Attr is AttrSIDRREQ.
func (*SIDRREQ) Attr() Attr { return AttrSIDRREQ }

func (m *SIDRREQ) put(b *[dataLen]byte) {
	binary.BigEndian.PutUint32(b[0:], m.RequestID)
	binary.BigEndian.PutUint16(b[4:], m.PKey)
	binary.BigEndian.PutUint64(b[8:], uint64(m.ServiceID))
	copy(b[16:], m.Private[:])
}

func (m *SIDRREQ) get(b *[dataLen]byte) {
	*m = SIDRREQ{
		RequestID: binary.BigEndian.Uint32(b[0:]),
		PKey:      binary.BigEndian.Uint16(b[4:]),
		ServiceID: ServiceID(binary.BigEndian.Uint64(b[8:])),
		Private:   [PrivateSIDRREQ]byte(b[16:]),
	}
}

// SIDRStatus is the answer of a SIDR_REP (IBA vol. 1 §12.11.2).
type SIDRStatus uint8

// Statuses of a SIDR_REP.
const (
	SIDROK          SIDRStatus = 0
	SIDRUnsupported SIDRStatus = 1
	SIDRReject      SIDRStatus = 2
	SIDRNoQP        SIDRStatus = 3
	SIDRRedirect    SIDRStatus = 4
	SIDRBadVersion  SIDRStatus = 5
)

var sidrStatuses = [...]string{
	SIDROK: "valid", SIDRUnsupported: "service ID not supported: nobody listens on that port",
	SIDRReject: "rejected by the application", SIDRNoQP: "no queue pair available",
	SIDRRedirect: "redirect", SIDRBadVersion: "version not supported",
}

// String says the status in words, with its number.
func (s SIDRStatus) String() string {
	if int(s) < len(sidrStatuses) {
		return fmt.Sprintf("%s (%d)", sidrStatuses[s], uint8(s))
	}
	return fmt.Sprintf("unknown status (%d)", uint8(s))
}

// SIDRREP names the queue pair of a datagram service, or says why not (IBA vol. 1 §12.11.2).
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+---------------------------------------------------------------+
//	|                           Request ID                          |   0
//	+---------------+---------------+-------------------------------+
//	|    Status     |  InfoLength   |        Vendor ID H, M         |   4
//	+---------------+---------------+---------------+---------------+
//	|                      QPN                      |  Vendor ID L  |   8
//	+-----------------------------------------------+---------------+
//	|                                                               |  12
//	+                           Service ID                          +
//	|                                                               |
//	+---------------------------------------------------------------+
//	|                             Q_Key                             |  20
//	+---------------------------------------------------------------+
//	|              Additional Information, 72 bytes                 ~  24
//	+---------------------------------------------------------------+
type SIDRREP struct {
	RequestID  uint32
	Status     SIDRStatus
	InfoLength uint8
	VendorID   uint32 // 24 bits
	QPN        uint32 // 24 bits
	ServiceID  ServiceID
	QKey       uint32
	Info       [SIDRInfoLen]byte
	Private    [PrivateSIDRREP]byte
}

// Attr is AttrSIDRREP.
func (*SIDRREP) Attr() Attr { return AttrSIDRREP }

func (m *SIDRREP) put(b *[dataLen]byte) {
	binary.BigEndian.PutUint32(b[0:], m.RequestID)
	b[4], b[5] = byte(m.Status), m.InfoLength
	b[6], b[7], b[11] = byte(m.VendorID>>16), byte(m.VendorID>>8), byte(m.VendorID)
	put24(b[8:], m.QPN)
	binary.BigEndian.PutUint64(b[12:], uint64(m.ServiceID))
	binary.BigEndian.PutUint32(b[20:], m.QKey)
	copy(b[24:], m.Info[:])
	copy(b[96:], m.Private[:])
}

func (m *SIDRREP) get(b *[dataLen]byte) {
	*m = SIDRREP{
		RequestID:  binary.BigEndian.Uint32(b[0:]),
		Status:     SIDRStatus(b[4]),
		InfoLength: b[5],
		VendorID:   uint32(b[6])<<16 | uint32(b[7])<<8 | uint32(b[11]),
		QPN:        get24(b[8:]),
		ServiceID:  ServiceID(binary.BigEndian.Uint64(b[12:])),
		QKey:       binary.BigEndian.Uint32(b[20:]),
		Info:       [SIDRInfoLen]byte(b[24:]),
		Private:    [PrivateSIDRREP]byte(b[96:]),
	}
}
