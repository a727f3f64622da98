package nvme

import (
	"encoding/binary"
	"fmt"
)

// TransportType is how a subsystem is reached.
type TransportType uint8

// Transport types.
const (
	TransportRDMA TransportType = 1
	TransportTCP  TransportType = 3
)

// String returns the name that nvme-cli gives the transport.
func (t TransportType) String() string {
	switch t {
	case TransportRDMA:
		return "rdma"
	case TransportTCP:
		return "tcp"
	}
	return fmt.Sprintf("transport %d", uint8(t))
}

// AddressFamily is what kind of address a transport address is.
type AddressFamily uint8

// Address families.
const (
	FamilyIPv4 AddressFamily = 1
	FamilyIPv6 AddressFamily = 2
)

// String returns the name that nvme-cli gives the address family.
func (f AddressFamily) String() string {
	switch f {
	case FamilyIPv4:
		return "ipv4"
	case FamilyIPv6:
		return "ipv6"
	}
	return fmt.Sprintf("address family %d", uint8(f))
}

// RDMAProvider is what carries RDMA at an address.
type RDMAProvider uint8

// RDMA providers.
const (
	ProviderUnspecified RDMAProvider = 1
	ProviderInfiniBand  RDMAProvider = 2
	ProviderRoCE        RDMAProvider = 3
	ProviderRoCEv2      RDMAProvider = 4
	ProviderIWARP       RDMAProvider = 5
)

var providerNames = [...]string{
	ProviderUnspecified: "not specified", ProviderInfiniBand: "infiniband", ProviderRoCE: "roce", ProviderRoCEv2: "roce-v2", ProviderIWARP: "iwarp",
}

// String returns the name that nvme-cli gives the provider.
func (p RDMAProvider) String() string {
	if int(p) < len(providerNames) && p != 0 {
		return providerNames[p]
	}
	return fmt.Sprintf("provider %d", uint8(p))
}

// SubsystemType is what a discovery entry leads to.
type SubsystemType uint8

// Subsystem types.
const (
	SubsystemReferral  SubsystemType = 1 // another discovery service
	SubsystemNVM       SubsystemType = 2
	SubsystemDiscovery SubsystemType = 3 // this discovery service
)

// String returns nvme-cli's words for the type.
func (t SubsystemType) String() string {
	switch t {
	case SubsystemReferral:
		return "discovery subsystem referral"
	case SubsystemNVM:
		return "nvme subsystem"
	case SubsystemDiscovery:
		return "current discovery subsystem"
	}
	return fmt.Sprintf("subsystem type %d", uint8(t))
}

// Bits of DiscoveryEntry.Requirements, and values of the lowest two.
const (
	ChannelUnspecified uint8 = 0
	ChannelRequired    uint8 = 1 // a secure channel, which is TLS
	ChannelNotRequired uint8 = 2
	FlowControlOffOK   uint8 = 1 << 2
)

// Security of a TCP portal, of DiscoveryEntry.Security.
const (
	SecurityNone  uint8 = 0
	SecurityTLS13 uint8 = 2
)

// DiscoveryEntryLen is the length of an entry and of the header before them, bytes.
const DiscoveryEntryLen = 1024

// maxDiscoveryEntries bounds what a discovery service can make a host remember.
const maxDiscoveryEntries = 64 << 10

// DiscoveryEntry tells one way to one subsystem.
//
//	   +---------+---------+---------+---------+
//	  0|transport|family   |subtype  |treq     |
//	  4| port identifier   | controller id     |
//	  8| admin queue size  | flags             |
//	 32| service: TCP port, text (32)          |
//	256| subsystem NQN (256)                   |
//	512| address, text (256)                   |
//	768| transport specific (256)              |
//	   +---------------------------------------+
type DiscoveryEntry struct {
	Transport    TransportType
	Family       AddressFamily
	Type         SubsystemType
	Requirements uint8
	PortID       uint16
	CntlID       uint16
	AdminQueue   uint16 // entries
	Flags        uint16
	Service      string
	Subsystem    string
	Address      string
	Security     uint8        // TCP: SecurityNone or SecurityTLS13
	Provider     RDMAProvider // RDMA; 0: not specified
}

// Bits of DiscoveryEntry.Flags.
const (
	EntryDuplicate  uint16 = 1 << 0 // all portals tell the same
	EntryPersistent uint16 = 1 << 1 // connections to this discovery service may stay
)

func (e *DiscoveryEntry) layout(l layout) {
	l.u8(0, (*uint8)(&e.Transport))
	l.u8(1, (*uint8)(&e.Family))
	l.u8(2, (*uint8)(&e.Type))
	l.u8(3, &e.Requirements)
	l.u16(4, &e.PortID)
	l.u16(6, &e.CntlID)
	l.u16(8, &e.AdminQueue)
	l.u16(10, &e.Flags)
	l.name(32, 32, &e.Service)
	l.name(256, NQNField, &e.Subsystem)
	l.name(512, 256, &e.Address)
	if e.Transport == TransportTCP {
		l.u8(768, &e.Security)
	} else if e.Transport == TransportRDMA {
		if e.Provider == 0 {
			e.Provider = ProviderUnspecified
		}
		l.u8(769, (*uint8)(&e.Provider))
		if l.put { // connected queue pairs, by the RDMA connection manager
			l.b[768], l.b[770] = 1, 1
		}
	}
}

// AppendDiscovery adds the discovery log page: a header and its entries.
// generation changes whenever what a host sees here changes.
//
//	    +---------------------------------------+
//	   0| generation counter (8)                |
//	   8| number of records (8)                 |
//	  16| record format (2)                     |
//	1024| entries (1024 each)                   |
//	    +---------------------------------------+
func AppendDiscovery(dst []byte, generation uint64, entries []DiscoveryEntry) []byte {
	dst, b := grow(dst, DiscoveryEntryLen*(1+len(entries)))
	binary.LittleEndian.PutUint64(b, generation)
	binary.LittleEndian.PutUint64(b[8:], uint64(len(entries)))
	for i := range entries {
		entries[i].layout(layout{b[DiscoveryEntryLen*(1+i):], true})
	}
	return dst
}

// ParseDiscoveryHeader reads the header: the generation, and how many entries
// follow.
func ParseDiscoveryHeader(b []byte) (generation uint64, entries int, err error) {
	if len(b) < DiscoveryEntryLen {
		return 0, 0, fmt.Errorf("nvme: discovery log of %d bytes, its header has %d", len(b), DiscoveryEntryLen)
	}
	le := binary.LittleEndian
	if f := le.Uint16(b[16:]); f != 0 {
		return 0, 0, fmt.Errorf("nvme: discovery log of format %d, 0 is known", f)
	}
	n := le.Uint64(b[8:])
	if n > maxDiscoveryEntries {
		return 0, 0, fmt.Errorf("nvme: discovery log with %d entries, %d are read at most", n, maxDiscoveryEntries)
	}
	return le.Uint64(b), int(n), nil
}

// ParseDiscoveryEntry reads one entry.
func ParseDiscoveryEntry(b []byte) (DiscoveryEntry, error) {
	if len(b) < DiscoveryEntryLen {
		return DiscoveryEntry{}, fmt.Errorf("nvme: discovery entry of %d bytes, %d are asked for", len(b), DiscoveryEntryLen)
	}
	var e DiscoveryEntry
	e.Transport = TransportType(b[0])
	e.layout(layout{b, false})
	return e, nil
}
