package portal

import "softiser/rdma"

// RDMAStatus is what the queue pairs of one protocol over one provider are and have done.
type RDMAStatus struct {
	Transport string `json:"transport"` // iSER, NVMe/RDMA, iSER/RoCE, NVMe/RoCE
	QPs       int    `json:"queue_pairs"`
	MRs       int    `json:"memory_regions"` // and windows
	// Established are the connections so far. What follows counts those that have ended as well.
	Established   uint64    `json:"established_total"`
	WireIn        uint64    `json:"wire_in_bytes"`
	WireOut       uint64    `json:"wire_out_bytes"`
	ReceiveCalls  uint64    `json:"receive_calls_total"`
	SendCalls     uint64    `json:"send_calls_total"`
	Frames        uint64    `json:"frames_out_total"`
	ReadRequests  uint64    `json:"read_requests_out_total"`
	PlacedDirect  uint64    `json:"placed_direct_bytes"`
	PlacedCopied  uint64    `json:"placed_copied_bytes"`
	Faults        uint64    `json:"memory_faults_total"`
	TerminatesIn  uint64    `json:"terminates_in_total"`
	TerminatesOut uint64    `json:"terminates_out_total"`
	Retransmits   uint64    `json:"tcp_retransmits_total"` // segments that TCP has sent again; 0 over RoCE, which has its own counters
	Ends          []RDMAEnd `json:"ends,omitempty"`
}

// RDMAEnd counts the connections that ended for one mistake, which a Terminate or a NAK names.
type RDMAEnd struct {
	FoundBy string `json:"found_by"` // us, peer
	Layer   string `json:"layer"`
	Reason  string `json:"reason"`
	Code    string `json:"code"`
	Count   uint64 `json:"count"`
}

// rdmaStatusOf tells of a device whose connections speak h.
func rdmaStatusOf(h Hello, d *rdma.Device) RDMAStatus {
	s := d.Stats()
	st := RDMAStatus{
		Transport: h.String(), QPs: s.QPs, MRs: s.MRs, Established: s.Connections, WireIn: s.WireIn, WireOut: s.WireOut,
		ReceiveCalls: s.RecvCalls, SendCalls: s.SendCalls, Frames: s.FPDUsOut, ReadRequests: s.ReadRequestsOut,
		PlacedDirect: s.PlacedDirect, PlacedCopied: s.PlacedCopied, Faults: s.Faults, TerminatesIn: s.TerminatesIn, TerminatesOut: s.TerminatesOut, Retransmits: s.Retransmits,
	}
	for _, e := range s.Ends {
		by := "us"
		if e.Remote {
			by = "peer"
		}
		st.Ends = append(st.Ends, RDMAEnd{FoundBy: by, Layer: e.Layer, Reason: e.Reason, Code: e.Code, Count: e.Count})
	}
	return st
}
