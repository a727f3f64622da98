package iscsi

import "softiser/internal/iscsi"

// policy translates an Auth for the login machine.
func (a *Auth) policy() iscsi.TargetAuth {
	p := iscsi.TargetAuth{Required: a.Required()}
	if !p.Required {
		return p
	}
	for _, n := range a.Algorithms {
		p.Algorithms = append(p.Algorithms, iscsi.CHAPAlgorithm(n))
	}
	users := make(map[string]iscsi.Secret, len(a.Users))
	for _, u := range a.Users {
		users[u.Name] = iscsi.Secret(u.Secret)
	}
	p.Lookup = func(user string) (iscsi.Secret, bool) { s, ok := users[user]; return s, ok }
	p.MutualUser, p.MutualSecret = a.Mutual.Name, iscsi.Secret(a.Mutual.Secret)
	return p
}

// settings translates the target's side of the negotiation.
func (p *SessionParams) settings() iscsi.Settings {
	s := iscsi.DefaultSettings()
	s.HeaderDigest, s.DataDigest = digests(p.HeaderDigest), digests(p.DataDigest)
	s.InitialR2T = !p.AllowUnsolicited
	s.ImmediateData = !p.NoImmediateData
	s.MaxRecvDataSegmentLength = uint32(p.MaxRecvDataSegmentLength)
	s.MaxBurstLength = uint32(p.MaxBurstLength)
	s.FirstBurstLength = uint32(p.FirstBurstLength)
	s.MaxOutstandingR2T = uint32(p.MaxOutstandingR2T)
	// What the target asks for and sends is in order anyway; the initiator may send
	// its PDUs in any order, unless holes have to be told from them.
	s.DataSequenceInOrder, s.DataPDUInOrder = false, p.ErrorRecoveryLevel > 0
	s.MaxConnections = uint32(p.MaxConnections)
	s.ErrorRecoveryLevel = uint32(p.ErrorRecoveryLevel)
	s.DefaultTime2Wait = uint32(p.DefaultTime2Wait)
	s.DefaultTime2Retain = uint32(max(p.DefaultTime2Retain, 0))
	return s
}

func digests(names []string) []iscsi.Digest {
	ds := make([]iscsi.Digest, 0, len(names))
	for _, n := range names {
		if n == iscsi.DigestCRC32C.String() {
			ds = append(ds, iscsi.DigestCRC32C)
		} else {
			ds = append(ds, iscsi.DigestNone)
		}
	}
	return ds
}
