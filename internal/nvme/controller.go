package nvme

import "fmt"

// Controller types.
const (
	TypeIO        uint8 = 1
	TypeDiscovery uint8 = 2
	TypeAdmin     uint8 = 3
)

// Bits of Controller.CMIC: how a subsystem is shared.
const (
	SharedPorts       uint8 = 1 << 0
	SharedControllers uint8 = 1 << 1
	ReportsANA        uint8 = 1 << 3
)

// Bits of Controller.OAES, and of the asynchronous event configuration: which
// notices a controller sends.
const (
	NoticeNamespace uint32 = 1 << 8
	NoticeANA       uint32 = 1 << 11
	NoticeDiscovery uint32 = 1 << 31
)

// Bits of Controller.CTRATT.
const (
	AttrHostID128 uint32 = 1 << 0 // host identifiers have 128 bits
	AttrTBKAS     uint32 = 1 << 6 // any command keeps the association alive
)

// Bits of Controller.OACS: optional admin commands.
const (
	HasFormat       uint16 = 1 << 1
	HasNamespaceMgt uint16 = 1 << 3
)

// Bits of Controller.LPA: what log pages can do.
const (
	LogPerNamespaceSMART uint8 = 1 << 0
	LogEffects           uint8 = 1 << 1
	LogExtended          uint8 = 1 << 2 // offsets, and lengths of more than 16 bits
	LogSupportedPages    uint8 = 1 << 5
)

// Bits of Controller.ONCS: optional NVM commands.
const (
	HasCompare       uint16 = 1 << 0
	HasUncorrectable uint16 = 1 << 1
	HasDSM           uint16 = 1 << 2
	HasWriteZeroes   uint16 = 1 << 3
	HasSaveSelect    uint16 = 1 << 4
	HasReservations  uint16 = 1 << 5
	HasTimestamp     uint16 = 1 << 6
	HasVerify        uint16 = 1 << 7
	HasCopy          uint16 = 1 << 8
)

// Values of Controller.VWC: the volatile write cache.
const (
	CachePresent    uint8 = 1 << 0
	FlushAllRefused uint8 = 2 << 1 // Flush with NSID FFFFFFFFh
	FlushAll        uint8 = 3 << 1
)

// Bits of Controller.Sanitize, SANICAP.
const (
	SanitizesByErase     uint32 = 1 << 1
	SanitizesByOverwrite uint32 = 1 << 2
	SanitizeDeallocates  uint32 = 1 << 29 // what asks not to is refused
	SanitizeLeavesMedia  uint32 = 1 << 30 // nothing is done to the medium behind the sanitize
)

// FormatNotForAll in Controller.FNA: Format NVM takes one namespace at a time.
const FormatNotForAll uint8 = 1 << 3

// WriteProtects in Controller.NWPC: namespaces can be write protected.
const WriteProtects uint8 = 1 << 0

// CopyFormat0 in Controller.OCFS: source ranges of format 0.
const CopyFormat0 uint16 = 1 << 0

// FusesCompareWrite in Controller.FUSES: the fused operation Compare and Write.
const FusesCompareWrite uint16 = 1

// Bits of Controller.SGLS.
const (
	SGLSupported       uint32 = 1 << 0
	SGLKeyedSupported  uint32 = 1 << 2
	SGLInCapsuleOffset uint32 = 1 << 20
	SGLTransportBlock  uint32 = 1 << 21
)

// Controller is what Identify tells of a controller (CNS 01h). Fields have the
// names of the standard.
type Controller struct {
	VID, SSVID      uint16
	Serial          string // SN, 20 characters
	Model           string // MN, 40
	Firmware        string // FR, 8
	RAB             uint8
	OUI             [3]byte // least significant byte first
	CMIC            uint8
	MDTS            uint8 // log2 of the longest transfer in pages; 0: no limit
	CntlID          uint16
	Version         uint32
	RTD3R           uint32 // microseconds
	RTD3E           uint32 // microseconds
	OAES            uint32
	CTRATT          uint32
	Type            uint8
	CRDT            [3]uint16 // command retry delay times, 100 ms
	OACS            uint16
	ACL, AERL       uint8 // Abort and Asynchronous Event Request limits, less one
	FRMW            uint8
	LPA             uint8
	ELPE            uint8 // error log entries, less one
	WCTemp, CCTemp  uint16
	KAS             uint16 // granularity of the keep alive timeout, 100 ms; 0: no keep alive
	Sanitize        uint32 // SANICAP
	ANATT           uint8  // seconds that a change of state takes at most
	ANACAP          uint8
	ANAGRPMax       uint32
	ANAGroups       uint32 // NANAGRPID
	SQES, CQES      uint8
	MaxCmd          uint16
	Namespaces      uint32 // NN: the largest namespace identifier
	ONCS            uint16
	FUSES           uint16
	FNA             uint8
	VWC             uint8
	AWUN, AWUPF     uint16 // blocks, less one
	NWPC            uint8
	ACWU            uint16 // blocks, less one
	OCFS            uint16
	SGLS            uint32
	MaxNamespaces   uint32 // MNAN
	Subsystem       string // SUBNQN
	IOCCSZ, IORCSZ  uint32 // capsule sizes of I/O queues, 16 bytes
	ICDOff          uint16
	FCATT           uint8
	MSDBD           uint8
	OFCS            uint16
	DiscoveryType   uint8  // DCTYPE
	MaxPower        uint16 // of power state 0, hundredths of a watt
	EntryLat, ExLat uint32 // of power state 0, microseconds
}

// layout names the fields of the Identify Controller data structure by their offsets
// (NVM Express 1.4, figure 247).
func (c *Controller) layout(l layout) {
	l.u16(0, &c.VID)
	l.u16(2, &c.SSVID)
	l.text(4, 20, &c.Serial)
	l.text(24, 40, &c.Model)
	l.text(64, 8, &c.Firmware)
	l.u8(72, &c.RAB)
	l.bytes(73, c.OUI[:])
	l.u8(76, &c.CMIC)
	l.u8(77, &c.MDTS)
	l.u16(78, &c.CntlID)
	l.u32(80, &c.Version)
	l.u32(84, &c.RTD3R)
	l.u32(88, &c.RTD3E)
	l.u32(92, &c.OAES)
	l.u32(96, &c.CTRATT)
	l.u8(111, &c.Type)
	for i := range c.CRDT {
		l.u16(128+2*i, &c.CRDT[i])
	}
	l.u16(256, &c.OACS)
	l.u8(258, &c.ACL)
	l.u8(259, &c.AERL)
	l.u8(260, &c.FRMW)
	l.u8(261, &c.LPA)
	l.u8(262, &c.ELPE)
	l.u16(266, &c.WCTemp)
	l.u16(268, &c.CCTemp)
	l.u16(320, &c.KAS)
	l.u32(328, &c.Sanitize)
	l.u8(342, &c.ANATT)
	l.u8(343, &c.ANACAP)
	l.u32(344, &c.ANAGRPMax)
	l.u32(348, &c.ANAGroups)
	l.u8(512, &c.SQES)
	l.u8(513, &c.CQES)
	l.u16(514, &c.MaxCmd)
	l.u32(516, &c.Namespaces)
	l.u16(520, &c.ONCS)
	l.u16(522, &c.FUSES)
	l.u8(524, &c.FNA)
	l.u8(525, &c.VWC)
	l.u16(526, &c.AWUN)
	l.u16(528, &c.AWUPF)
	l.u8(531, &c.NWPC)
	l.u16(532, &c.ACWU)
	l.u16(534, &c.OCFS)
	l.u32(536, &c.SGLS)
	l.u32(540, &c.MaxNamespaces)
	l.name(768, NQNField, &c.Subsystem)
	l.u32(1792, &c.IOCCSZ)
	l.u32(1796, &c.IORCSZ)
	l.u16(1800, &c.ICDOff)
	l.u8(1802, &c.FCATT)
	l.u8(1803, &c.MSDBD)
	l.u16(1804, &c.OFCS)
	l.u8(1806, &c.DiscoveryType)
	l.u16(2048, &c.MaxPower)
	l.u32(2052, &c.EntryLat)
	l.u32(2056, &c.ExLat)
}

// AppendTo adds the structure.
func (c *Controller) AppendTo(dst []byte) []byte {
	dst, b := grow(dst, IdentifyLen)
	c.layout(layout{b, true})
	return dst
}

// ParseController reads the structure.
func ParseController(b []byte) (*Controller, error) {
	if len(b) < IdentifyLen {
		return nil, fmt.Errorf("nvme: Identify Controller of %d bytes, %d are asked for", len(b), IdentifyLen)
	}
	c := new(Controller)
	c.layout(layout{b, false})
	return c, nil
}
