package main

import (
	"fmt"
	"io"

	"softiser/rdma"
)

// roceScheme begins the address of a portal for RoCE.
const roceScheme = "roce://"

// roceCounters are the metrics of a port of RoCE: rxe's hw_counters under their names, and
// what rxe does not tell.
var roceCounters = []struct {
	name, help string
	of         func(*rdma.RoCECounters) uint64
}{
	{"sent_pkts", "packets sent.", func(c *rdma.RoCECounters) uint64 { return c.SentPkts }},
	{"rcvd_pkts", "packets received.", func(c *rdma.RoCECounters) uint64 { return c.RcvdPkts }},
	{"duplicate_request", "requests that had come before.", func(c *rdma.RoCECounters) uint64 { return c.DuplicateRequest }},
	{"out_of_seq_request", "requests ahead of what was expected.", func(c *rdma.RoCECounters) uint64 { return c.OutOfSeqRequest }},
	{"rcvd_rnr_err", "the peer had no receive buffer.", func(c *rdma.RoCECounters) uint64 { return c.RcvdRNRErr }},
	{"send_rnr_err", "there was no receive buffer here.", func(c *rdma.RoCECounters) uint64 { return c.SendRNRErr }},
	{"rcvd_seq_err", "the peer has missed a request.", func(c *rdma.RoCECounters) uint64 { return c.RcvdSeqErr }},
	{"retry_exceeded_err", "connections that ended as the peer did not answer.", func(c *rdma.RoCECounters) uint64 { return c.RetryExceededErr }},
	{"retry_rnr_exceeded_err", "connections that ended as the peer had no receive buffer.", func(c *rdma.RoCECounters) uint64 { return c.RetryRNRExceededErr }},
	{"completer_retry_err", "requests that were not answered in time.", func(c *rdma.RoCECounters) uint64 { return c.CompleterRetryErr }},
	{"send_err", "management datagrams that the kernel would not send.", func(c *rdma.RoCECounters) uint64 { return c.SendErr }},
	{"sent_bytes", "bytes sent, from the base header on.", func(c *rdma.RoCECounters) uint64 { return c.SentBytes }},
	{"rcvd_bytes", "bytes received, from the base header on.", func(c *rdma.RoCECounters) uint64 { return c.RcvdBytes }},
	{"repeated_pkts", "packets of requests sent again.", func(c *rdma.RoCECounters) uint64 { return c.RepeatedPkts }},
	{"lost_responses", "gaps between answers.", func(c *rdma.RoCECounters) uint64 { return c.LostResponses }},
	{"bad_icrc", "packets damaged, or from a sender whose IP header is not foreseen.", func(c *rdma.RoCECounters) uint64 { return c.BadICRC }},
	{"strange_id", "packets whose checksum is right for an IP identification that their sender would not use.", func(c *rdma.RoCECounters) uint64 { return c.StrangeID }},
	{"unknown_qp", "packets for queue pairs that are not there.", func(c *rdma.RoCECounters) uint64 { return c.UnknownQP }},
	{"wrong_peer", "packets for queue pairs that are connected to another address.", func(c *rdma.RoCECounters) uint64 { return c.WrongPeer }},
	{"malformed", "packets too short, of an unknown kind, or of another partition.", func(c *rdma.RoCECounters) uint64 { return c.Malformed }},
	{"cm_requests", "connections asked for by peers.", func(c *rdma.RoCECounters) uint64 { return c.CMRequests }},
	{"cm_retries", "management datagrams sent again.", func(c *rdma.RoCECounters) uint64 { return c.CMRetries }},
	{"cm_requests_full", "requests for connections dropped because too many wait.", func(c *rdma.RoCECounters) uint64 { return c.CMRequestsFull }},
	{"cm_unmatched", "management datagrams that answer nothing.", func(c *rdma.RoCECounters) uint64 { return c.CMUnmatched }},
	{"cm_malformed", "management datagrams that are none.", func(c *rdma.RoCECounters) uint64 { return c.CMMalformed }},
	{"cm_stale_requests", "requests for a queue pair that an older connection still has.", func(c *rdma.RoCECounters) uint64 { return c.CMStaleRequests }},
}

// printRoCE writes the ports of RoCE, as rxe_cfg tells of rxe.
func printRoCE(out io.Writer, ports []rdma.RoCEPort) error {
	if len(ports) == 0 {
		return nil
	}
	on := map[bool]string{true: "on", false: "off"}
	w := newTable(out)
	fmt.Fprintln(w, "\nMTU\tQPS\tGSO\tGRO\tSENT\tRECEIVED\tAGAIN\tRNR\tDROPPED\tROCE")
	for i := range ports {
		p := &ports[i]
		c := &p.Counters
		fmt.Fprintf(w, "%d\t%d\t%s\t%s\t%d\t%d\t%d\t%d\t%d\t%s\n", p.ActiveMTU, p.QPs, on[p.GSO], on[p.GRO], c.SentPkts, c.RcvdPkts,
			c.RepeatedPkts+c.DuplicateRequest+c.LostResponses, c.SendRNRErr+c.RcvdRNRErr,
			c.BadICRC+c.StrangeID+c.UnknownQP+c.WrongPeer+c.Malformed+c.CMRequestsFull, p.Addr)
	}
	return w.Flush()
}
