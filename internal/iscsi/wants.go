package iscsi

// want is this side's value of a numeric or boolean key: its offer, its
// declaration, or the limit of its answer.
func (n *Negotiation) want(k Key) uint32 {
	s, p := &n.settings, &n.profile
	switch k {
	case KeyMaxConnections:
		if n.rdma() || p.RDMA == RDMARequired { // a session over RDMA has one connection here
			return 1
		}
		return s.MaxConnections
	case KeyInitialR2T:
		return boolValue(s.InitialR2T)
	case KeyImmediateData:
		return boolValue(s.ImmediateData)
	case KeyMaxRecvDataSegmentLength:
		if p.RDMA == RDMAOptional { // only a stream has this key's meaning
			return s.MaxRecvDataSegmentLength
		}
		return limited(s.MaxRecvDataSegmentLength, p.RecvDataSegmentLength)
	case KeyMaxBurstLength:
		return s.MaxBurstLength
	case KeyFirstBurstLength:
		if n.state[KeyMaxBurstLength] == settled {
			return min(s.FirstBurstLength, n.val[KeyMaxBurstLength])
		}
		return min(s.FirstBurstLength, s.MaxBurstLength)
	case KeyDefaultTime2Wait:
		return s.DefaultTime2Wait
	case KeyDefaultTime2Retain:
		return s.DefaultTime2Retain
	case KeyMaxOutstandingR2T:
		return s.MaxOutstandingR2T
	case KeyDataPDUInOrder:
		return boolValue(s.DataPDUInOrder)
	case KeyDataSequenceInOrder:
		return boolValue(s.DataSequenceInOrder)
	case KeyErrorRecoveryLevel:
		if n.rdma() || p.RDMA == RDMARequired { // RFC 7145 §6: recovery levels above 0 need what no RDMA peer has
			return 0
		}
		return s.ErrorRecoveryLevel
	case KeyProtocolLevel:
		return s.ProtocolLevel
	case KeyRDMAExtensions:
		return boolValue(p.RDMA != RDMANever)
	case KeyTargetRecvDataSegmentLength:
		if n.role == RoleInitiator {
			return min(n.want(KeyLongTargetRecv), DefaultMRDSL) // more is asked for by that key alone
		}
		return n.want(KeyLongTargetRecv)
	case KeyLongTargetRecv:
		if n.role == RoleTarget {
			return limited(s.TargetRecvDataSegmentLength, p.RecvDataSegmentLength)
		}
		return limited(s.TargetRecvDataSegmentLength, p.SendDataSegmentLength)
	case KeyInitiatorRecvDataSegmentLength:
		if n.role == RoleInitiator {
			return limited(s.InitiatorRecvDataSegmentLength, p.RecvDataSegmentLength)
		}
		return limited(s.InitiatorRecvDataSegmentLength, p.SendDataSegmentLength)
	case KeyMaxOutstandingUnexpectedPDUs:
		return p.MaxOutstandingUnexpectedPDUs
	case KeyTaggedBuffer:
		return boolValue(p.DeclareTaggedBuffer)
	case KeyISERHelloRequired:
		return boolValue(p.RequireHello)
	}
	return rules[k].def
}

func limited(v, limit uint32) uint32 {
	if limit != 0 {
		return min(v, limit)
	}
	return v
}

// wantList is this side's values of a list key, best first.
func (n *Negotiation) wantList(k Key) []string {
	switch k {
	case KeyHeaderDigest, KeyDataDigest:
		if n.digestsOff() {
			return []string{valueNone}
		}
		ds := n.settings.HeaderDigest
		if k == KeyDataDigest {
			ds = n.settings.DataDigest
		}
		return names(ds, valueNone)
	case KeyTaskReporting:
		return names(n.settings.TaskReporting, ReportRFC3720.String())
	}
	return rules[k].list[:1]
}

func names[T interface{ String() string }](vs []T, otherwise string) []string {
	if len(vs) == 0 {
		return []string{otherwise}
	}
	l := make([]string, 0, len(vs))
	for _, v := range vs {
		l = append(l, v.String())
	}
	return l
}
