package rdma

import (
	"net/netip"

	"softiser/rdma/internal/roce"
	"softiser/rdma/internal/roce/mad"
)

// RoCEPort is UDP port 4791 of an address that this process speaks RoCE on, for all devices
// together: what Linux's rxe_cfg and "rdma statistic" tell of rxe. The counters are of
// packets unless they say otherwise, and have rxe's names in JSON where rxe has them.
type RoCEPort struct {
	Addr       netip.Addr `json:"address"`
	ActiveMTU  int        `json:"active_mtu"`           // the largest path MTU that fits the interface, bytes
	RecvBuffer int        `json:"receive_buffer_bytes"` // as the kernel counts them
	GSO        bool       `json:"gso"`                  // the kernel cuts what is sent into packets
	GRO        bool       `json:"gro"`                  // … and may join what comes
	QPs        int        `json:"queue_pairs"`          // connected
	Pending    int        `json:"pending_requests"`     // connections asked for by peers that have not proved their address

	Paths    []RoCEPath   `json:"paths,omitempty"` // to the peers that are connected
	Counters RoCECounters `json:"counters"`
}

// RoCECounters counts since the port was opened.
type RoCECounters struct {
	SentPkts            uint64 `json:"sent_pkts"`
	RcvdPkts            uint64 `json:"rcvd_pkts"`
	DuplicateRequest    uint64 `json:"duplicate_request"`
	OutOfSeqRequest     uint64 `json:"out_of_seq_request"`
	RcvdRNRErr          uint64 `json:"rcvd_rnr_err"`
	SendRNRErr          uint64 `json:"send_rnr_err"`
	RcvdSeqErr          uint64 `json:"rcvd_seq_err"`
	RetryExceededErr    uint64 `json:"retry_exceeded_err"`
	RetryRNRExceededErr uint64 `json:"retry_rnr_exceeded_err"`
	CompleterRetryErr   uint64 `json:"completer_retry_err"` // nothing was answered in time
	SendErr             uint64 `json:"send_err"`            // management datagrams that the kernel would not send

	// What rxe does not tell.
	SentBytes       uint64 `json:"sent_bytes"` // from the base header on
	RcvdBytes       uint64 `json:"rcvd_bytes"`
	RepeatedPkts    uint64 `json:"repeated_pkts"`    // of requests, sent again
	LostResponses   uint64 `json:"lost_responses"`   // gaps between answers
	BadICRC         uint64 `json:"bad_icrc"`         // damaged, or from a sender whose IP header we do not foresee
	StrangeID       uint64 `json:"strange_id"`       // the same, found by the identification that it would have
	UnknownQP       uint64 `json:"unknown_qp"`       // for a queue pair that is not there
	WrongPeer       uint64 `json:"wrong_peer"`       // for one that is connected to another address
	Malformed       uint64 `json:"malformed"`        // too short, of an unknown kind, of another partition
	CMRequests      uint64 `json:"cm_requests"`      // connections asked for by peers
	CMRetries       uint64 `json:"cm_retries"`       // management datagrams sent again
	CMRequestsFull  uint64 `json:"cm_requests_full"` // requests dropped because too many wait
	CMUnmatched     uint64 `json:"cm_unmatched"`     // answers to nothing
	CMMalformed     uint64 `json:"cm_malformed"`     // management datagrams that are none
	CMStaleRequests uint64 `json:"cm_stale_requests"`

	// Congestion, by the names of mlx5's counters.
	ECNMarkedPkts uint64 `json:"np_ecn_marked_roce_packets"` // that routers have marked
	CNPSent       uint64 `json:"np_cnp_sent"`                // peers told of that
	CNPHandled    uint64 `json:"rp_cnp_handled"`             // told by peers, and less is in flight to them since
	CNPIgnored    uint64 `json:"rp_cnp_ignored"`             // … within a round trip of the last, or with nothing in flight that waits for an answer
}

// RoCEPorts are those that the process has open now, by address.
func RoCEPorts() []RoCEPort {
	var all []RoCEPort
	for _, p := range roce.Ports() {
		c, x, m := &p.Counters, &p.Port, &p.CM
		var ways []RoCEPath
		for i := range p.Paths {
			if w := &p.Paths[i]; w.QPs > 0 {
				ways = append(ways, pathOf(p.Addr, w))
			}
		}
		all = append(all, RoCEPort{
			Addr: p.Addr, ActiveMTU: p.MTU, RecvBuffer: p.RecvBuffer, GSO: p.GSO, GRO: p.GRO, QPs: p.QPs, Pending: m.Pending, Paths: ways,
			Counters: RoCECounters{
				SentPkts: c.Sent, RcvdPkts: c.Received, DuplicateRequest: c.Duplicates, OutOfSeqRequest: c.OutOfSeq,
				RcvdRNRErr: c.ReceivedRNR, SendRNRErr: c.SentRNR, RcvdSeqErr: c.ReceivedSeq,
				RetryExceededErr: c.RetryExceeded, RetryRNRExceededErr: c.RNRExceeded, CompleterRetryErr: c.Timeouts, SendErr: x.Unsent,
				SentBytes: c.SentBytes, RcvdBytes: c.ReceivedBytes, RepeatedPkts: c.Repeated, LostResponses: c.LostAnswers,
				BadICRC: x.BadICRC, StrangeID: x.StrangeID, UnknownQP: x.NoQP, WrongPeer: x.NotPeer, Malformed: x.Malformed + x.BadPKey + x.NotMAD,
				CMRequests: m.Received.Of(mad.AttrREQ), CMRetries: m.Retries, CMRequestsFull: m.Full, CMUnmatched: m.Unmatched,
				CMMalformed: m.Malformed, CMStaleRequests: m.Stale,
				ECNMarkedPkts: c.ECNMarked, CNPSent: c.CNPSent, CNPHandled: c.CNPHandled, CNPIgnored: c.CNPIgnored,
			},
		})
	}
	return all
}
