package iscsi

// SessionType tells a discovery session from a normal one (RFC 7143 §13.21).
type SessionType uint8

// Session types.
const (
	NormalSession SessionType = iota
	DiscoverySession
)

// String returns the key's value.
func (s SessionType) String() string {
	if s == DiscoverySession {
		return "Discovery"
	}
	return "Normal"
}

// Digest is the kind of a header or data digest (RFC 7143 §13.1).
type Digest uint8

// Digests.
const (
	DigestNone Digest = iota
	DigestCRC32C
)

// String returns the key's value.
func (d Digest) String() string {
	if d == DigestCRC32C {
		return "CRC32C"
	}
	return valueNone
}

// TaskReporting is how task set changes are reported (RFC 7143 §13.23).
type TaskReporting uint8

// Task reporting modes.
const (
	ReportRFC3720 TaskReporting = iota
	ReportResponseFence
	ReportFastAbort
)

// String returns the key's value.
func (t TaskReporting) String() string {
	return [...]string{"RFC3720", "ResponseFence", "FastAbort"}[t%3]
}

// Params is the outcome of a login: what both ends agreed on, or the defaults.
type Params struct {
	SessionType    SessionType
	InitiatorName  string
	InitiatorAlias string
	TargetName     string
	TargetAlias    string
	// TargetPortalGroupTag is what the target declared; HasPortalGroup is false if
	// it did not (discovery sessions).
	TargetPortalGroupTag uint16
	HasPortalGroup       bool

	HeaderDigest Digest
	DataDigest   Digest

	// MaxRecvDataSegmentLength is the longest data segment that this side
	// receives, MaxXmitDataSegmentLength the longest that it may send. Over iSER
	// they stand for InitiatorRecvDataSegmentLength and
	// TargetRecvDataSegmentLength (RFC 7145 §6.5, §6.4); Limits.MaxControlData of
	// the datamover may be smaller still. Bytes.
	MaxRecvDataSegmentLength uint32
	MaxXmitDataSegmentLength uint32

	MaxConnections      uint32
	InitialR2T          bool
	ImmediateData       bool
	MaxBurstLength      uint32 // bytes
	FirstBurstLength    uint32 // bytes
	DefaultTime2Wait    uint32 // seconds
	DefaultTime2Retain  uint32 // seconds
	MaxOutstandingR2T   uint32
	DataPDUInOrder      bool
	DataSequenceInOrder bool
	ErrorRecoveryLevel  uint32
	TaskReporting       TaskReporting
	ProtocolLevel       uint32

	// RFC 7145.
	RDMAExtensions                   bool
	InitiatorRecvDataSegmentLength   uint32 // bytes
	TargetRecvDataSegmentLength      uint32 // bytes
	MaxOutstandingUnexpectedPDUs     uint32 // the peer's; 0: no limit
	MaxAHSLength                     uint32 // the peer's, bytes; 0: no limit
	TaggedBufferForSolicitedDataOnly bool
	ISERHelloRequired                bool
}

// UnsolicitedLimit is how many bytes of a WRITE of n bytes may, at most, travel
// unasked for, and how many of them with the command itself (RFC 7143 §4.2.5.2).
// What goes unsolicited beyond the immediate data must fill the first burst.
func (p *Params) UnsolicitedLimit(n uint32) (immediate, unsolicited uint32) {
	first := min(n, p.FirstBurstLength)
	if p.ImmediateData {
		immediate = min(first, p.MaxXmitDataSegmentLength)
	}
	if p.InitialR2T {
		return immediate, immediate
	}
	return immediate, first
}

// RDMAMode says what a transport makes of RDMAExtensions.
type RDMAMode uint8

// RDMA modes.
const (
	// RDMANever: the stream stays a stream; RDMAExtensions is answered No.
	RDMANever RDMAMode = iota
	// RDMAOptional: the stream can become an iSER connection (RFC 7145 §5.1); the
	// initiator offers RDMAExtensions=Yes, the target agrees.
	RDMAOptional
	// RDMARequired: the connection is RDMA already (Linux's start-up); a normal
	// session without RDMAExtensions=Yes fails.
	RDMARequired
)

// KeyProfile is what a transport adds to, forces on or ignores of the login
// negotiation. The zero value is plain iSCSI over TCP.
type KeyProfile struct {
	RDMA RDMAMode
	// NoDigests forces HeaderDigest and DataDigest to None, for discovery
	// sessions too.
	NoDigests bool
	// RecvDataSegmentLength is how long a data segment this side's receive
	// buffers hold; it bounds this side's InitiatorRecvDataSegmentLength or
	// TargetRecvDataSegmentLength. 0 leaves it to Settings.
	RecvDataSegmentLength uint32
	// SendDataSegmentLength bounds the data segments that this side sends over
	// RDMA. 0 leaves it to Settings.
	SendDataSegmentLength uint32
	// MaxOutstandingUnexpectedPDUs is declared when it is not 0 (RFC 7145 §6.7).
	MaxOutstandingUnexpectedPDUs uint32
	// DeclareTaggedBuffer declares TaggedBufferForSolicitedDataOnly=Yes: the
	// advertised write buffer begins behind the unsolicited data (RFC 7145 §6.9).
	DeclareTaggedBuffer bool
	// RequireHello declares iSERHelloRequired=Yes (RFC 7145 §6.10).
	RequireHello bool
}

// Settings is what one side wants, and up to where it agrees to what the other
// wants. Start from DefaultSettings.
type Settings struct {
	HeaderDigest []Digest // in order of preference; what is not listed is refused
	DataDigest   []Digest

	MaxConnections           uint32
	InitialR2T               bool // true insists: the result is Yes if either side says so
	ImmediateData            bool // false insists
	MaxRecvDataSegmentLength uint32
	MaxBurstLength           uint32
	FirstBurstLength         uint32
	DefaultTime2Wait         uint32 // at least
	DefaultTime2Retain       uint32 // at most
	MaxOutstandingR2T        uint32
	DataPDUInOrder           bool // true insists
	DataSequenceInOrder      bool // true insists
	ErrorRecoveryLevel       uint32
	TaskReporting            []TaskReporting
	ProtocolLevel            uint32

	// RFC 7145, used when RDMAExtensions is negotiated.
	InitiatorRecvDataSegmentLength uint32
	TargetRecvDataSegmentLength    uint32
}

// DefaultSettings are good for both roles.
func DefaultSettings() Settings {
	return Settings{
		HeaderDigest:             []Digest{DigestNone, DigestCRC32C},
		DataDigest:               []Digest{DigestNone, DigestCRC32C},
		MaxConnections:           1,
		InitialR2T:               false,
		ImmediateData:            true,
		MaxRecvDataSegmentLength: 262144,
		MaxBurstLength:           1 << 20,
		FirstBurstLength:         262144,
		DefaultTime2Wait:         2,
		DefaultTime2Retain:       0,
		MaxOutstandingR2T:        1,
		DataPDUInOrder:           true,
		DataSequenceInOrder:      true,
		ErrorRecoveryLevel:       0,
		TaskReporting:            []TaskReporting{ReportRFC3720},
		ProtocolLevel:            ProtocolLevel,

		InitiatorRecvDataSegmentLength: 262144,
		TargetRecvDataSegmentLength:    262144,
	}
}
