package nvmerdma

import (
	"encoding/binary"
	"errors"
	"fmt"

	"softiser/rdma"
)

// Lengths of the private data, bytes.
const (
	privateLen = 32 // of a request and of an accept
	rejectLen  = 4
)

// Request is the private data of the request for a connection.
//
//	 +---------------------------+---------------------------+
//	0| record format, 0          | queue identifier          |
//	4| receive queue of the host | send queue of the host - 1|
//	8| controller identifier     | reserved, to 32           |
//	 +-------------------------------------------------------+
//
// The sizes are in entries. Linux leaves the controller identifier 0.
type Request struct {
	QID      uint16
	HostRecv uint16
	HostSend uint16
	CntlID   uint16
}

// AppendTo adds the private data.
func (r *Request) AppendTo(dst []byte) []byte {
	b := make([]byte, privateLen)
	le := binary.LittleEndian
	le.PutUint16(b[2:], r.QID)
	le.PutUint16(b[4:], r.HostRecv)
	le.PutUint16(b[6:], r.HostSend)
	le.PutUint16(b[8:], r.CntlID)
	return append(dst, b...)
}

// ParseRequest reads the private data of a request, and checks what does not depend on
// the controller. The error is a *RejectError.
func ParseRequest(b []byte) (Request, error) {
	le := binary.LittleEndian
	if len(b) < privateLen {
		return Request{}, &RejectError{RejectLength, fmt.Sprintf("%d bytes of private data, a host sends %d", len(b), privateLen)}
	}
	r := Request{QID: le.Uint16(b[2:]), HostRecv: le.Uint16(b[4:]), HostSend: le.Uint16(b[6:]), CntlID: le.Uint16(b[8:])}
	switch f := le.Uint16(b); {
	case f != 0:
		return r, &RejectError{RejectFormat, fmt.Sprintf("private data of format %d, 0 is known", f)}
	case r.HostSend == 0:
		return r, &RejectError{RejectHostSend, "a submission queue of one entry has room for no command"}
	case r.HostRecv == 0:
		return r, &RejectError{RejectHostRecv, "the host has no room for a response"}
	}
	return r, nil
}

// acceptData is the private data that accepts a connection; recv is the size of the
// controller's receive queue, entries.
func acceptData(recv uint16) []byte {
	b := make([]byte, privateLen)
	binary.LittleEndian.PutUint16(b[2:], recv)
	return b
}

// parseAccept reads the private data that has accepted a connection.
func parseAccept(b []byte) (recv uint16, err error) {
	le := binary.LittleEndian
	switch {
	case len(b) < privateLen:
		return 0, fmt.Errorf("nvmerdma: the controller accepts with %d bytes of private data, expected %d; is it one of NVMe?", len(b), privateLen)
	case le.Uint16(b) != 0:
		return 0, fmt.Errorf("nvmerdma: the controller accepts with private data of format %d, 0 is known", le.Uint16(b))
	case le.Uint16(b[2:]) == 0:
		return 0, errors.New("nvmerdma: the controller has no room for a command")
	}
	return le.Uint16(b[2:]), nil
}

// RejectStatus is why a controller refuses a connection.
type RejectStatus uint16

// Reject statuses.
const (
	RejectLength      RejectStatus = 1 // of the private data
	RejectFormat      RejectStatus = 2
	RejectQID         RejectStatus = 3
	RejectHostSend    RejectStatus = 4 // size of the host's send queue
	RejectHostRecv    RejectStatus = 5 // size of the host's receive queue
	RejectNoResources RejectStatus = 6
	RejectIRD         RejectStatus = 7
	RejectORD         RejectStatus = 8
	RejectCntlID      RejectStatus = 9
)

// String describes the status.
func (s RejectStatus) String() string {
	switch s {
	case RejectLength:
		return "invalid length of the private data"
	case RejectFormat:
		return "invalid format of the private data"
	case RejectQID:
		return "invalid queue identifier"
	case RejectHostSend:
		return "invalid size of the host's send queue"
	case RejectHostRecv:
		return "invalid size of the host's receive queue"
	case RejectNoResources:
		return "no resources"
	case RejectIRD:
		return "invalid IRD: the host serves no RDMA Reads"
	case RejectORD:
		return "invalid ORD"
	case RejectCntlID:
		return "invalid controller identifier"
	}
	return fmt.Sprintf("status %d", uint16(s))
}

// RejectError is a connection that the controller has refused.
type RejectError struct {
	Status RejectStatus
	Why    string // known at the side that refuses
}

func (e *RejectError) Error() string {
	if e.Why != "" {
		return fmt.Sprintf("nvmerdma: connection refused: %v: %s", e.Status, e.Why)
	}
	return fmt.Sprintf("nvmerdma: the controller refuses the connection: %v", e.Status)
}

// data is the private data that refuses the connection.
func (e *RejectError) data() []byte {
	b := make([]byte, rejectLen)
	binary.LittleEndian.PutUint16(b[2:], uint16(e.Status))
	return b
}

// rejected makes of the refusal of a connection what its private data says; other errors
// stay as they are.
func rejected(err error) error {
	var r *rdma.RejectError
	if !errors.As(err, &r) || len(r.PrivateData) < rejectLen || binary.LittleEndian.Uint16(r.PrivateData) != 0 {
		return err
	}
	return &RejectError{Status: RejectStatus(binary.LittleEndian.Uint16(r.PrivateData[2:]))}
}
