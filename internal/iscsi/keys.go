package iscsi

// Names of keys that the code outside the table needs.
const (
	keyAuthMethod = "AuthMethod"
	keyCHAPA      = "CHAP_A"
	keyCHAPI      = "CHAP_I"
	keyCHAPC      = "CHAP_C"
	keyCHAPN      = "CHAP_N"
	keyCHAPR      = "CHAP_R"

	keyTargetAddress = "TargetAddress"
	keySendTargets   = "SendTargets"
)

// Key names one operational or declarative key of the table.
type Key uint8

// Keys (RFC 7143 §13, RFC 7144 §3, RFC 7145 §6), and one of our own (RFC 7143 §13.22): KeyLongTargetRecv
// is TargetRecvDataSegmentLength between ends that both know it. Linux's target answers that with
// whatever it is offered, which its buffers of 8 KiB do not hold (ADR 223).
const (
	KeyHeaderDigest Key = iota
	KeyDataDigest
	KeyMaxConnections
	KeySendTargets
	KeyTargetName
	KeyInitiatorName
	KeyTargetAlias
	KeyInitiatorAlias
	KeyTargetAddress
	KeyTargetPortalGroupTag
	KeyInitialR2T
	KeyImmediateData
	KeyMaxRecvDataSegmentLength
	KeyMaxBurstLength
	KeyFirstBurstLength
	KeyDefaultTime2Wait
	KeyDefaultTime2Retain
	KeyMaxOutstandingR2T
	KeyDataPDUInOrder
	KeyDataSequenceInOrder
	KeyErrorRecoveryLevel
	KeySessionType
	KeyTaskReporting
	KeyProtocolLevel
	KeyRDMAExtensions
	KeyTargetRecvDataSegmentLength
	KeyInitiatorRecvDataSegmentLength
	KeyMaxOutstandingUnexpectedPDUs
	KeyMaxAHSLength
	KeyTaggedBuffer
	KeyISERHelloRequired
	KeyLongTargetRecv
	KeyIFMarker
	KeyOFMarker
	KeyIFMarkInt
	KeyOFMarkInt
	numKeys
)

// String returns the key as it stands in text.
func (k Key) String() string {
	if k < numKeys {
		return rules[k].name
	}
	return "unknown key"
}

// kind is how a key's value is found.
type kind uint8

const (
	kindText     kind = iota // declared text
	kindList                 // first common value
	kindMin                  // number, the smaller
	kindMax                  // number, the larger
	kindAnd                  // boolean, Yes if both say so
	kindOr                   // boolean, Yes if one says so
	kindNumber               // declared number
	kindBool                 // declared boolean
	kindNo                   // obsolete boolean: answered No
	kindObsolete             // obsolete: answered Reject
)

// declared reports whether the key is declarative: not answered.
func (k kind) declared() bool { return k == kindText || k == kindNumber || k == kindBool }

// use is when a key may be sent.
type use uint8

const (
	useLeading     use = iota // LO: leading connection of a session only
	useInitialize             // IO: during login, any connection
	useAny                    // ALL: login and full feature phase
	useFullFeature            // FFPO
)

// sender is who may send a key.
type sender uint8

const (
	byBoth sender = iota
	byInitiator
	byTarget
)

// rule is one row of the table.
type rule struct {
	name     string
	kind     kind
	use      use
	sender   sender
	session  bool     // session-wide; else connection only
	noDisc   bool     // Irrelevant in discovery sessions
	iser     bool     // Irrelevant unless RDMAExtensions=Yes
	security bool     // allowed in SecurityNegotiation
	list     []string // kindList: known values; index 0 is the default
	lo, hi   uint32   // numbers
	zero     bool     // 0 is allowed besides lo to hi
	def      uint32   // default: number, boolean, list index
}

const max24 = 1<<24 - 1

var digestNames = []string{"None", "CRC32C"}

// rules is indexed by Key. A key that is not here is answered NotUnderstood.
var rules = [numKeys]rule{
	// RFC 7143
	KeyHeaderDigest:             {name: "HeaderDigest", kind: kindList, use: useInitialize, list: digestNames},
	KeyDataDigest:               {name: "DataDigest", kind: kindList, use: useInitialize, list: digestNames},
	KeyMaxConnections:           {name: "MaxConnections", kind: kindMin, use: useLeading, session: true, noDisc: true, lo: 1, hi: 65535, def: 1},
	KeySendTargets:              {name: keySendTargets, kind: kindText, use: useFullFeature, sender: byInitiator, session: true},
	KeyTargetName:               {name: "TargetName", kind: kindText, use: useAny, session: true, security: true},
	KeyInitiatorName:            {name: "InitiatorName", kind: kindText, use: useInitialize, sender: byInitiator, session: true, security: true},
	KeyTargetAlias:              {name: "TargetAlias", kind: kindText, use: useAny, sender: byTarget, session: true, security: true},
	KeyInitiatorAlias:           {name: "InitiatorAlias", kind: kindText, use: useAny, sender: byInitiator, session: true, security: true},
	KeyTargetAddress:            {name: keyTargetAddress, kind: kindText, use: useAny, sender: byTarget, session: true, security: true},
	KeyTargetPortalGroupTag:     {name: "TargetPortalGroupTag", kind: kindNumber, use: useInitialize, sender: byTarget, session: true, security: true, hi: 65535},
	KeyInitialR2T:               {name: "InitialR2T", kind: kindOr, use: useLeading, session: true, noDisc: true, def: 1},
	KeyImmediateData:            {name: "ImmediateData", kind: kindAnd, use: useLeading, session: true, noDisc: true, def: 1},
	KeyMaxRecvDataSegmentLength: {name: "MaxRecvDataSegmentLength", kind: kindNumber, use: useAny, lo: 512, hi: max24, def: DefaultMRDSL},
	KeyMaxBurstLength:           {name: "MaxBurstLength", kind: kindMin, use: useLeading, session: true, noDisc: true, lo: 512, hi: max24, def: 262144},
	KeyFirstBurstLength:         {name: "FirstBurstLength", kind: kindMin, use: useLeading, session: true, noDisc: true, lo: 512, hi: max24, def: 65536},
	KeyDefaultTime2Wait:         {name: "DefaultTime2Wait", kind: kindMax, use: useLeading, session: true, hi: 3600, def: 2},
	KeyDefaultTime2Retain:       {name: "DefaultTime2Retain", kind: kindMin, use: useLeading, session: true, hi: 3600, def: 20},
	KeyMaxOutstandingR2T:        {name: "MaxOutstandingR2T", kind: kindMin, use: useLeading, session: true, noDisc: true, lo: 1, hi: 65535, def: 1},
	KeyDataPDUInOrder:           {name: "DataPDUInOrder", kind: kindOr, use: useLeading, session: true, noDisc: true, def: 1},
	KeyDataSequenceInOrder:      {name: "DataSequenceInOrder", kind: kindOr, use: useLeading, session: true, noDisc: true, def: 1},
	KeyErrorRecoveryLevel:       {name: "ErrorRecoveryLevel", kind: kindMin, use: useLeading, session: true, hi: 2},
	KeySessionType:              {name: "SessionType", kind: kindText, use: useInitialize, sender: byInitiator, session: true, security: true},
	KeyTaskReporting:            {name: "TaskReporting", kind: kindList, use: useLeading, session: true, noDisc: true, list: []string{"RFC3720", "ResponseFence", "FastAbort"}},

	// RFC 7144
	KeyProtocolLevel: {name: "iSCSIProtocolLevel", kind: kindMin, use: useLeading, session: true, noDisc: true, hi: 31, def: 1},

	// RFC 7145
	KeyRDMAExtensions:                 {name: "RDMAExtensions", kind: kindAnd, use: useLeading, session: true, noDisc: true},
	KeyTargetRecvDataSegmentLength:    {name: "TargetRecvDataSegmentLength", kind: kindMin, use: useInitialize, iser: true, lo: 512, hi: max24, def: DefaultMRDSL},
	KeyInitiatorRecvDataSegmentLength: {name: "InitiatorRecvDataSegmentLength", kind: kindMin, use: useInitialize, iser: true, lo: 512, hi: max24, def: DefaultMRDSL},
	KeyMaxOutstandingUnexpectedPDUs:   {name: "MaxOutstandingUnexpectedPDUs", kind: kindNumber, use: useLeading, session: true, iser: true, lo: 2, hi: 1<<32 - 1, zero: true},
	KeyMaxAHSLength:                   {name: "MaxAHSLength", kind: kindNumber, use: useLeading, session: true, iser: true, lo: 2, hi: 1<<32 - 1, zero: true, def: 256},
	KeyTaggedBuffer:                   {name: "TaggedBufferForSolicitedDataOnly", kind: kindBool, use: useLeading, sender: byInitiator, session: true, iser: true},
	KeyISERHelloRequired:              {name: "iSERHelloRequired", kind: kindBool, use: useLeading, sender: byInitiator, session: true, iser: true},

	// Where it is not negotiated it is 0, and does not count.
	KeyLongTargetRecv: {name: "X-softiser.TargetRecvDataSegmentLength", kind: kindMin, use: useInitialize, iser: true, lo: 512, hi: max24, zero: true},

	// Obsolete since RFC 7143 §13.25: never NotUnderstood.
	KeyIFMarker:  {name: "IFMarker", kind: kindNo, use: useInitialize},
	KeyOFMarker:  {name: "OFMarker", kind: kindNo, use: useInitialize},
	KeyIFMarkInt: {name: "IFMarkInt", kind: kindObsolete, use: useInitialize},
	KeyOFMarkInt: {name: "OFMarkInt", kind: kindObsolete, use: useInitialize},
}

var keyByName = func() map[string]Key {
	m := make(map[string]Key, numKeys)
	for k := range numKeys {
		m[rules[k].name] = k
	}
	return m
}()
