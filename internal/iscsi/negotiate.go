package iscsi

import (
	"slices"
	"strconv"
	"strings"
)

// Role is an end of a session.
type Role uint8

// Roles.
const (
	RoleInitiator Role = iota
	RoleTarget
)

// String names the role.
func (r Role) String() string {
	if r == RoleTarget {
		return "target"
	}
	return "initiator"
}

// Negotiation applies the key table for one connection: it answers what the
// peer offers, offers what this side needs, checks the answers, and ends as a
// Params. A negotiated key goes through these states; a declared one is tracked
// separately for each direction.
//
//	          Offer                    answer
//	unsettled ─────────▶ offered ───────────────▶ settled
//	    │        peer's offer, our answer            ▲
//	    └────────────────────────────────────────────┘
type Negotiation struct {
	role      Role
	leading   bool // leading connection: LO keys are allowed
	discovery bool
	settings  Settings
	profile   KeyProfile

	state [numKeys]keyState
	sent  [numKeys]bool   // declared by this side
	got   [numKeys]bool   // declared by the peer
	val   [numKeys]uint32 // outcome of negotiated keys, the peer's declaration of declared ones
	own   [numKeys]uint32 // this side's declaration
	text  [numKeys]string // the peer's declared text
}

type keyState uint8

const (
	unsettled keyState = iota
	offered
	settled
)

// NewNegotiation starts with the defaults of RFC 7143 §13. leading is true for
// the first connection of a session.
func NewNegotiation(role Role, s Settings, p KeyProfile, leading bool) *Negotiation {
	n := &Negotiation{role: role, leading: leading, settings: s, profile: p}
	for k := range numKeys {
		n.val[k], n.own[k] = rules[k].def, rules[k].def
	}
	return n
}

// SetSettings replaces the settings, once the target is known and before any
// operational key has been handled.
func (n *Negotiation) SetSettings(s Settings) { n.settings = s }

// SetSessionType tells a discovery session from a normal one.
func (n *Negotiation) SetSessionType(t SessionType) { n.discovery = t == DiscoverySession }

// rdma reports whether RDMAExtensions=Yes holds.
func (n *Negotiation) rdma() bool { return n.val[KeyRDMAExtensions] == 1 }

// digestsOff reports whether digests are forced to None (RFC 7145 §6.1).
func (n *Negotiation) digestsOff() bool {
	return n.profile.NoDigests || n.profile.RDMA == RDMARequired || n.rdma() ||
		n.role == RoleInitiator && n.profile.RDMA == RDMAOptional && !n.discovery
}

// irrelevant reports whether the key means nothing in this session.
func (n *Negotiation) irrelevant(k Key) bool {
	r := &rules[k]
	return n.discovery && (r.noDisc || r.iser) || r.iser && !n.rdma()
}

// offerOrder is the order of the initiator's offer. RDMAExtensions comes first:
// what the other keys mean depends on it (RFC 7145 §6.3).
var offerOrder = []Key{
	KeyRDMAExtensions, KeyHeaderDigest, KeyDataDigest, KeyDefaultTime2Wait, KeyDefaultTime2Retain,
	KeyErrorRecoveryLevel, KeyInitialR2T, KeyImmediateData, KeyMaxBurstLength, KeyFirstBurstLength,
	KeyMaxOutstandingR2T, KeyMaxConnections, KeyDataPDUInOrder, KeyDataSequenceInOrder,
	KeyTaskReporting, KeyProtocolLevel, KeyMaxRecvDataSegmentLength,
	KeyInitiatorRecvDataSegmentLength, KeyTargetRecvDataSegmentLength, KeyLongTargetRecv,
	KeyMaxOutstandingUnexpectedPDUs, KeyTaggedBuffer, KeyISERHelloRequired,
}

// Offer appends the initiator's first operational text.
func (n *Negotiation) Offer(dst []byte) []byte {
	for _, k := range offerOrder {
		if n.wantsToOffer(k) {
			dst = n.offer(dst, k)
		}
	}
	return dst
}

// wantsToOffer reports whether this side brings up a key in its first operational text: one that
// means something in this session, and that its default, or silence, would not say as well.
func (n *Negotiation) wantsToOffer(k Key) bool {
	r := &rules[k]
	if n.sent[k] || n.state[k] != unsettled || n.discovery && (r.noDisc || r.iser) || r.use == useLeading && !n.leading {
		return false
	}
	rdma := n.profile.RDMA != RDMANever && !n.discovery
	switch k {
	case KeyRDMAExtensions:
		return rdma
	case KeyHeaderDigest, KeyDataDigest:
		// Linux offers no digests in a normal iSER session and offers None in
		// discovery; a stream that is to become iSER says None.
		return n.profile.RDMA != RDMARequired || n.discovery
	case KeyMaxRecvDataSegmentLength:
		return n.profile.RDMA != RDMARequired || n.discovery
	case KeyTaskReporting:
		return len(n.settings.TaskReporting) > 0 && n.settings.TaskReporting[0] != ReportRFC3720
	case KeyProtocolLevel:
		return n.settings.ProtocolLevel > 1
	case KeyLongTargetRecv:
		return rdma && n.want(k) > n.want(KeyTargetRecvDataSegmentLength)
	}
	if r.iser {
		return rdma && (!r.kind.declared() || n.want(k) != r.def)
	}
	return true
}

// offer appends one key with this side's value.
func (n *Negotiation) offer(dst []byte, k Key) []byte {
	r := &rules[k]
	if r.kind.declared() {
		n.sent[k] = true
		n.own[k] = n.want(k)
	} else {
		n.state[k] = offered
	}
	return AppendKey(dst, r.name, n.format(k, n.want(k)))
}

func (n *Negotiation) format(k Key, v uint32) string {
	switch rules[k].kind {
	case kindList:
		return strings.Join(n.wantList(k), ",")
	case kindAnd, kindOr, kindBool:
		return boolText(v)
	}
	return strconv.FormatUint(uint64(v), 10)
}

// Receive handles one complete text of the peer in the given stage and appends
// what must be answered. The keys of authentication are not in the table; the
// caller takes them out first. The error is a *LoginError.
func (n *Negotiation) Receive(dst []byte, kvs []KeyValue, stage Stage) ([]byte, error) {
	// What later keys mean depends on these, wherever they stand in the text.
	first := func(name string) bool {
		return name == rules[KeySessionType].name || name == rules[KeyRDMAExtensions].name || name == rules[KeyMaxBurstLength].name
	}
	var err error
	for _, early := range []bool{true, false} {
		for _, kv := range kvs {
			if first(kv.Key) != early {
				continue
			}
			if dst, err = n.receive(dst, kv, stage); err != nil {
				return dst, err
			}
		}
	}
	return dst, n.check()
}

// receive takes one key of the other side and appends the answer that it is owed, if
// any, to dst (RFC 7143 §6.2).
func (n *Negotiation) receive(dst []byte, kv KeyValue, stage Stage) ([]byte, error) {
	k, known := keyByName[kv.Key]
	if !known {
		if isVerdict(kv.Value) { // never answer an answer
			return dst, nil
		}
		return AppendKey(dst, kv.Key, valueNotUnderstood), nil
	}
	r := &rules[k]
	if n.state[k] == offered {
		return dst, n.answer(k, kv.Value)
	}
	if n.sent[k] && isVerdict(kv.Value) { // a declaration that the peer did not take
		return dst, n.refused(k, kv.Value)
	}
	if !n.allowed(r, stage) {
		return AppendKey(dst, r.name, valueReject), nil
	}
	if r.kind.declared() {
		return n.declare(dst, k, kv.Value, stage)
	}
	if n.state[k] == settled {
		return dst, Refuse(LoginInitiatorFailure, "%s was sent a second time; a key is negotiated once per login (RFC 7143 §6.3)", r.name)
	}
	if n.irrelevant(k) {
		n.state[k] = settled
		return AppendKey(dst, r.name, valueIrrelevant), nil
	}
	return n.reply(dst, k, kv.Value), nil
}

func isVerdict(v string) bool {
	return v == valueReject || v == valueIrrelevant || v == valueNotUnderstood
}

// allowed reports whether the peer may send the key here.
func (n *Negotiation) allowed(r *rule, stage Stage) bool {
	if r.sender == byInitiator && n.role == RoleInitiator || r.sender == byTarget && n.role == RoleTarget {
		return false
	}
	switch stage {
	case StageSecurity:
		return r.security
	case StageFullFeature:
		return r.use == useAny || r.use == useFullFeature
	}
	return r.use != useFullFeature && (r.use != useLeading || n.leading)
}

// declare takes a declarative key of the peer; it is not answered unless it
// cannot be taken.
func (n *Negotiation) declare(dst []byte, k Key, value string, stage Stage) ([]byte, error) {
	r := &rules[k]
	if n.got[k] && stage != StageFullFeature {
		if r.kind == kindText && n.text[k] == value {
			return dst, nil // repeated names are harmless, and some initiators send them in each stage
		}
		return dst, Refuse(LoginInitiatorFailure, "%s was declared a second time (RFC 7143 §6.3)", r.name)
	}
	v, err := uint32(0), error(nil)
	switch r.kind {
	case kindText:
		n.text[k] = value
	case kindBool:
		v, err = parseBool(value)
	case kindNumber:
		v, err = n.number(k, value)
	}
	if err != nil {
		return AppendKey(dst, r.name, valueReject), nil
	}
	n.got[k], n.val[k] = true, v
	if k == KeySessionType {
		switch value {
		case "Discovery":
			n.discovery = true
		case "Normal":
		default:
			return dst, Refuse(LoginBadSessionType, "SessionType=%.40s is neither Discovery nor Normal", value)
		}
	}
	return dst, nil
}

func (n *Negotiation) number(k Key, s string) (uint32, error) {
	r := &rules[k]
	v, err := parseNumber(s)
	if err != nil || (v < r.lo || v > r.hi) && !(r.zero && v == 0) {
		return 0, errValue
	}
	return v, nil
}

// reply settles a key that the peer offered and appends the answer. A value that
// cannot be taken is answered Reject and leaves the default (RFC 7143 §6.2).
func (n *Negotiation) reply(dst []byte, k Key, value string) []byte {
	r := &rules[k]
	n.state[k] = settled
	answer := valueReject
	switch r.kind {
	case kindList:
		ours := n.wantList(k)
		for _, v := range splitList(value) {
			if i := slices.Index(r.list, v); i >= 0 && slices.Contains(ours, v) {
				n.val[k], answer = uint32(i), v
				break
			}
		}
	case kindMin, kindMax:
		if v, err := n.number(k, value); err == nil {
			n.val[k] = n.combine(k, v)
			answer = strconv.FormatUint(uint64(n.val[k]), 10)
		}
	case kindAnd, kindOr:
		if v, err := parseBool(value); err == nil {
			n.val[k] = n.combine(k, v)
			answer = boolText(n.val[k])
		}
	case kindNo:
		if _, err := parseBool(value); err == nil {
			answer = valueNo
		}
	}
	return AppendKey(dst, r.name, answer)
}

// combine is the result function of a negotiated key.
func (n *Negotiation) combine(k Key, v uint32) uint32 {
	w := n.want(k)
	switch rules[k].kind {
	case kindMin:
		return min(v, w)
	case kindMax:
		return max(v, w)
	case kindAnd:
		return v & w
	}
	return v | w
}

// answer takes the peer's answer to an offer of this side and checks that the
// peer kept to it.
func (n *Negotiation) answer(k Key, value string) error {
	r := &rules[k]
	n.state[k] = settled
	if isVerdict(value) {
		return n.refused(k, value)
	}
	var v uint32
	var err error
	good := true
	switch r.kind {
	case kindList:
		i := slices.Index(r.list, value)
		good = i >= 0 && slices.Contains(n.wantList(k), value)
		v = uint32(max(i, 0))
	case kindMin, kindMax:
		v, err = n.number(k, value)
		good = err == nil && n.combine(k, v) == v
	case kindAnd, kindOr:
		v, err = parseBool(value)
		good = err == nil && n.combine(k, v) == v
	}
	if !good {
		return Refuse(LoginInitiatorFailure, "%s: the peer answered %.40q to our %s, which the key's rule does not allow",
			r.name, value, n.format(k, n.want(k)))
	}
	n.val[k] = v
	if k == KeyRDMAExtensions && v == 0 && n.profile.RDMA == RDMARequired {
		return Refuse(LoginInitiatorFailure, "the peer answered RDMAExtensions=No on an RDMA connection")
	}
	return nil
}

// refused handles Reject, Irrelevant and NotUnderstood: the key keeps its
// default, which must then be good enough for this side.
func (n *Negotiation) refused(k Key, verdict string) error {
	r := &rules[k]
	if r.kind.declared() {
		if k == KeyMaxRecvDataSegmentLength && n.own[k] < r.def {
			return Refuse(LoginInitiatorFailure, "the peer answered %s=%s, but this side cannot receive the default of %d bytes", r.name, verdict, r.def)
		}
		n.own[k] = r.def
		return nil
	}
	if verdict == valueIrrelevant || n.defaultFits(k) {
		return nil
	}
	return Refuse(LoginInitiatorFailure, "the peer answered %s=%s, and its default is not acceptable to this side", r.name, verdict)
}

// defaultFits reports whether this side can live with the key's default.
func (n *Negotiation) defaultFits(k Key) bool {
	r := &rules[k]
	switch r.kind {
	case kindList:
		return slices.Contains(n.wantList(k), r.list[0])
	case kindMin, kindMax, kindOr:
		return n.combine(k, r.def) == r.def
	case kindAnd:
		if k == KeyRDMAExtensions {
			return n.profile.RDMA != RDMARequired
		}
		return n.combine(k, r.def) == r.def
	}
	return true
}

// Demand appends what the target must bring up itself because the initiator has
// not: declarations, and keys whose default it cannot accept. ask is true when
// an answer must come before the stage can end.
func (n *Negotiation) Demand(dst []byte) (out []byte, ask bool) {
	if !n.sent[KeyMaxRecvDataSegmentLength] && !n.rdma() {
		dst = n.offer(dst, KeyMaxRecvDataSegmentLength)
	}
	if n.rdma() && n.leading && !n.sent[KeyMaxOutstandingUnexpectedPDUs] && n.profile.MaxOutstandingUnexpectedPDUs != 0 {
		dst = n.offer(dst, KeyMaxOutstandingUnexpectedPDUs)
	}
	for k := range numKeys {
		r := &rules[k]
		if r.kind.declared() || n.state[k] != unsettled || n.irrelevant(k) || n.discovery && r.session ||
			r.use == useLeading && !n.leading || k == KeyRDMAExtensions || r.kind == kindNo || r.kind == kindObsolete {
			continue
		}
		fits := n.defaultFits(k)
		if k == KeyDefaultTime2Retain || k == KeyDefaultTime2Wait || k == KeyProtocolLevel {
			fits = true // not worth a round trip: the session keeps to the default
		}
		if k == KeyFirstBurstLength && n.val[KeyFirstBurstLength] > n.val[KeyMaxBurstLength] {
			fits = false
		}
		if !fits {
			dst = n.offer(dst, k)
		}
	}
	return dst, !n.Settled()
}

// Settled reports whether no answer of the peer is outstanding.
func (n *Negotiation) Settled() bool { return !slices.Contains(n.state[:], offered) }

// check applies the rules that tie keys together.
func (n *Negotiation) check() error {
	if n.state[KeyFirstBurstLength] == settled && n.state[KeyMaxBurstLength] == settled &&
		n.val[KeyFirstBurstLength] > n.val[KeyMaxBurstLength] {
		return Refuse(LoginInitiatorFailure, "FirstBurstLength %d is larger than MaxBurstLength %d (RFC 7143 §13.14)",
			n.val[KeyFirstBurstLength], n.val[KeyMaxBurstLength])
	}
	return nil
}

// Finish is asked when login is about to end: what must hold by then.
func (n *Negotiation) Finish() error {
	if n.profile.RDMA == RDMARequired && !n.discovery && n.leading && !n.rdma() {
		return Refuse(LoginInitiatorFailure, "RDMAExtensions=Yes was not negotiated, but the connection is RDMA (RFC 7145 §6.3)")
	}
	for _, k := range []Key{KeyHeaderDigest, KeyDataDigest} {
		if !slices.Contains(n.wantList(k), rules[k].list[n.val[k]]) {
			return Refuse(LoginInitiatorFailure, "%s: no value is acceptable to both ends", rules[k].name)
		}
	}
	return nil
}

// Params returns the outcome so far.
func (n *Negotiation) Params() Params {
	v := &n.val
	p := Params{
		InitiatorName:  n.text[KeyInitiatorName],
		InitiatorAlias: n.text[KeyInitiatorAlias],
		TargetName:     n.text[KeyTargetName],
		TargetAlias:    n.text[KeyTargetAlias],

		TargetPortalGroupTag: uint16(v[KeyTargetPortalGroupTag]),
		HasPortalGroup:       n.got[KeyTargetPortalGroupTag],

		HeaderDigest: Digest(v[KeyHeaderDigest]),
		DataDigest:   Digest(v[KeyDataDigest]),

		MaxRecvDataSegmentLength: n.own[KeyMaxRecvDataSegmentLength],
		MaxXmitDataSegmentLength: v[KeyMaxRecvDataSegmentLength],

		MaxConnections:      v[KeyMaxConnections],
		InitialR2T:          v[KeyInitialR2T] != 0,
		ImmediateData:       v[KeyImmediateData] != 0,
		MaxBurstLength:      v[KeyMaxBurstLength],
		FirstBurstLength:    min(v[KeyFirstBurstLength], v[KeyMaxBurstLength]),
		DefaultTime2Wait:    v[KeyDefaultTime2Wait],
		DefaultTime2Retain:  v[KeyDefaultTime2Retain],
		MaxOutstandingR2T:   v[KeyMaxOutstandingR2T],
		DataPDUInOrder:      v[KeyDataPDUInOrder] != 0,
		DataSequenceInOrder: v[KeyDataSequenceInOrder] != 0,
		ErrorRecoveryLevel:  v[KeyErrorRecoveryLevel],
		TaskReporting:       TaskReporting(v[KeyTaskReporting]),
		ProtocolLevel:       v[KeyProtocolLevel],

		RDMAExtensions:                 n.rdma(),
		InitiatorRecvDataSegmentLength: v[KeyInitiatorRecvDataSegmentLength],
		TargetRecvDataSegmentLength:    max(v[KeyTargetRecvDataSegmentLength], v[KeyLongTargetRecv]),
		MaxOutstandingUnexpectedPDUs:   v[KeyMaxOutstandingUnexpectedPDUs],
		MaxAHSLength:                   v[KeyMaxAHSLength],
	}
	tagged, hello := v[KeyTaggedBuffer], v[KeyISERHelloRequired]
	if n.role == RoleInitiator { // declared by this side
		tagged, hello = n.own[KeyTaggedBuffer], n.own[KeyISERHelloRequired]
	}
	p.TaggedBufferForSolicitedDataOnly, p.ISERHelloRequired = tagged != 0, hello != 0
	if n.discovery {
		p.SessionType = DiscoverySession
	}
	if p.RDMAExtensions {
		p.MaxRecvDataSegmentLength, p.MaxXmitDataSegmentLength = p.TargetRecvDataSegmentLength, p.InitiatorRecvDataSegmentLength
		if n.role == RoleInitiator {
			p.MaxRecvDataSegmentLength, p.MaxXmitDataSegmentLength = p.MaxXmitDataSegmentLength, p.MaxRecvDataSegmentLength
		}
	}
	return p
}

// Declared returns the text that the peer declared for a key, and whether it has.
func (n *Negotiation) Declared(k Key) (string, bool) { return n.text[k], n.got[k] }

// PeerMaxRecv returns the peer's MaxRecvDataSegmentLength, which bounds what is
// sent to it, in login too. Bytes.
func (n *Negotiation) PeerMaxRecv() int { return int(n.val[KeyMaxRecvDataSegmentLength]) }
