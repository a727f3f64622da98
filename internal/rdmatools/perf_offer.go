package rdmatools

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

	"softiser/rdma"
)

// perfOffer is the private data of a connection between two ends of this program: what the
// client wants measured, and where an end's memory is. The server answers with the same
// and its own memory. RoCE has room for 56 bytes in a request.
//
//	 0                   4                   8                   12
//	+-------------------+-------------------+-------------------+------------------+
//	| "sp01"            | test: name, 12 bytes, padded with zeros                  |
//	+-------------------+-------------------+-------------------+------------------+
//	| size              | depth             | tagged offset of the memory          |
//	+-------------------+-------------------+--------------------------------------+
//	| STag              |
//	+-------------------+
type perfOffer struct {
	Test        string
	Size, Depth int
	Mem         rdma.RemoteAddr
}

const (
	perfMagic    = "sp01"
	perfNameLen  = 12
	perfOfferLen = 36
)

func (o *perfOffer) append(b []byte) []byte {
	var name [perfNameLen]byte
	copy(name[:], o.Test)
	b = append(append(b, perfMagic...), name[:]...)
	b = binary.BigEndian.AppendUint32(b, uint32(o.Size))
	b = binary.BigEndian.AppendUint32(b, uint32(o.Depth))
	b = binary.BigEndian.AppendUint64(b, o.Mem.TO)
	return binary.BigEndian.AppendUint32(b, o.Mem.STag)
}

// parse reads what append has written; zeros may follow.
func (o *perfOffer) parse(b []byte) error {
	if len(b) < perfOfferLen || text(b[perfOfferLen:]) != "" {
		return fmt.Errorf("%d bytes instead of %d", len(b), perfOfferLen)
	}
	if string(b[:len(perfMagic)]) != perfMagic {
		return errors.New("it does not begin with " + perfMagic)
	}
	name, _, _ := bytes.Cut(b[4:16], []byte{0})
	*o = perfOffer{
		Test: string(name), Size: int(binary.BigEndian.Uint32(b[16:])), Depth: int(binary.BigEndian.Uint32(b[20:])),
		Mem: rdma.RemoteAddr{TO: binary.BigEndian.Uint64(b[24:]), STag: binary.BigEndian.Uint32(b[32:])},
	}
	return nil
}
