package initiator

import (
	"softiser/internal/iscsi"
)

// SessionInfo is what a session has negotiated, for people and for --json.
type SessionInfo struct {
	TargetName    string `json:"target_name"`
	TargetAlias   string `json:"target_alias,omitempty"`
	PortalGroup   int    `json:"portal_group"`
	Portal        string `json:"portal"`
	InitiatorName string `json:"initiator_name"`
	ISID          string `json:"isid"`
	TSIH          uint16 `json:"tsih"`
	State         string `json:"state"`
	Transport     string `json:"transport"` // with its settings
	AuthUser      string `json:"auth_user,omitempty"`

	HeaderDigest      string `json:"header_digest"`
	DataDigest        string `json:"data_digest"`
	RDMAExtensions    bool   `json:"rdma_extensions"`
	InitialR2T        bool   `json:"initial_r2t"`
	ImmediateData     bool   `json:"immediate_data"`
	FirstBurstLength  uint32 `json:"first_burst_length"`           // bytes, like the next three
	MaxBurstLength    uint32 `json:"max_burst_length"`             // of one Data-In sequence or R2T
	MaxRecvDataLength uint32 `json:"max_recv_data_segment_length"` // of one PDU to us
	MaxXmitDataLength uint32 `json:"max_xmit_data_segment_length"` // of one PDU to the target
	MaxOutstandingR2T uint32 `json:"max_outstanding_r2t"`
	Time2Wait         uint32 `json:"default_time2wait"`   // seconds, like the next
	Time2Retain       uint32 `json:"default_time2retain"` // that the target keeps tasks of a lost connection
	ErrorRecovery     uint32 `json:"error_recovery_level"`
	CommandWindow     int    `json:"command_window"` // commands that the target takes now
	QueueDepth        int    `json:"queue_depth"`
}

// Info returns what the session has negotiated at its last login.
func (s *Session) Info() SessionInfo {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := SessionInfo{
		TargetName: s.cfg.TargetName, Portal: s.portal, InitiatorName: s.cfg.InitiatorName,
		ISID: iscsi.ISID(s.cfg.ISID).String(), State: s.state.String(), QueueDepth: s.cfg.QueueDepth,
	}
	l := s.last
	if l == nil {
		return i
	}
	p := &l.params
	i.TargetAlias, i.PortalGroup = p.TargetAlias, int(p.TargetPortalGroupTag)
	i.TSIH, i.AuthUser, i.Transport = l.tsih, l.user, l.transport
	if s.conn != nil {
		i.Transport = s.conn.dm.Describe() // if it has become iSER since the login, this says so
	}
	i.HeaderDigest, i.DataDigest = p.HeaderDigest.String(), p.DataDigest.String()
	i.RDMAExtensions, i.InitialR2T, i.ImmediateData = p.RDMAExtensions, p.InitialR2T, p.ImmediateData
	i.FirstBurstLength, i.MaxBurstLength = p.FirstBurstLength, p.MaxBurstLength
	i.MaxRecvDataLength, i.MaxXmitDataLength = p.MaxRecvDataSegmentLength, p.MaxXmitDataSegmentLength
	i.MaxOutstandingR2T, i.ErrorRecovery = p.MaxOutstandingR2T, p.ErrorRecoveryLevel
	i.Time2Wait, i.Time2Retain = p.DefaultTime2Wait, p.DefaultTime2Retain
	i.CommandWindow = max(int(int32(s.win.MaxCmdSN-s.win.ExpCmdSN))+1, 0)
	return i
}

// Stats returns the session's counters.
func (s *Session) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.stats
	st.Outstanding, st.Waiting = s.tasks.used, s.wait.queue.n
	if s.conn != nil {
		addConn(&st, s.conn.dm.Stats())
	}
	return st
}

// addStats keeps the counters of a connection that has ended. The caller holds
// s.mu.
func (s *Session) addStats(c *conn) { addConn(&s.stats, c.dm.Stats()) }

func addConn(st *Stats, d iscsi.DatamoverStats) {
	st.PDUsIn += d.PDUsIn
	st.PDUsOut += d.PDUsOut
	st.PayloadCopied += d.PayloadCopied
	st.ReceiveCalls += d.ReceiveCalls
	st.SendCalls += d.SendCalls
}
