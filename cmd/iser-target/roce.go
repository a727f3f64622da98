package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/prometheus/client_golang/prometheus"

	"softiser/rdma"
)

// roceScheme begins the address of a portal for RoCE.
const roceScheme = "roce://"

// isRoCE reports whether a portal is one for RoCE, whose socket, of UDP, is not handed over.
func isRoCE(listen string) bool { return strings.HasPrefix(listen, roceScheme) }

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
	{"np_ecn_marked_roce_packets", "packets that routers have marked on their way here.", func(c *rdma.RoCECounters) uint64 { return c.ECNMarkedPkts }},
	{"np_cnp_sent", "notices of congestion sent to peers, for marked packets.", func(c *rdma.RoCECounters) uint64 { return c.CNPSent }},
	{"rp_cnp_handled", "notices of congestion for which less is in flight.", func(c *rdma.RoCECounters) uint64 { return c.CNPHandled }},
	{"rp_cnp_ignored", "notices of congestion within a round trip of the last, or with nothing in flight.", func(c *rdma.RoCECounters) uint64 { return c.CNPIgnored }},
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
	if err := w.Flush(); err != nil {
		return err
	}
	if !slices.ContainsFunc(ports, func(p rdma.RoCEPort) bool { return len(p.Paths) > 0 }) {
		return nil
	}
	w = newTable(out)
	fmt.Fprintln(w, "\nQPS\tRTT\tSHORTEST\tMAY BE IN FLIGHT\tRATE\tLOSSES\tCONGESTED\tDELAYED\tROCE PEER")
	for i := range ports {
		for k := range ports[i].Paths {
			p := &ports[i].Paths[k]
			fmt.Fprintf(w, "%d\t%v\t%v\t%s\t%s/s\t%d\t%d\t%d\t%s\n", p.QPs, p.RTT.Round(time.Microsecond), p.MinRTT.Round(time.Microsecond),
				humanize.IBytes(uint64(p.Limit)), humanize.IBytes(uint64(p.Rate)), p.Losses, p.Congested, p.Delayed, p.Peer)
		}
	}
	return w.Flush()
}

// roceDescs describe the addresses that the process speaks RoCE at.
type roceDescs struct {
	mtu, qps, pending *prometheus.Desc
	counters          []*prometheus.Desc // by roceCounters
	paths             rocePathDescs
}

func newRoCEDescs(d describe) roceDescs {
	all := roceDescs{
		mtu:     d("roce_active_mtu_bytes", "RoCE: the largest path MTU that fits the interface.", "address"),
		qps:     d("roce_queue_pairs", "RoCE: queue pairs connected.", "address"),
		pending: d("roce_pending_requests", "RoCE: connections asked for by peers that have not proved their address.", "address"),
		paths:   newRoCEPathDescs(d),
	}
	for _, r := range roceCounters {
		all.counters = append(all.counters, d("roce_"+r.name+"_total", "RoCE: "+r.help, "address"))
	}
	return all
}

func (d *roceDescs) collect(ports []rdma.RoCEPort, ch metrics) {
	for i := range ports {
		p := &ports[i]
		at := p.Addr.String()
		ch.gauge(d.mtu, float64(p.ActiveMTU), at)
		ch.gauge(d.qps, float64(p.QPs), at)
		ch.gauge(d.pending, float64(p.Pending), at)
		for k, r := range roceCounters {
			ch.counter(d.counters[k], r.of(&p.Counters), at)
		}
	}
	d.paths.collect(ports, ch)
}

// rocePathDescs describe the ways to peers that are connected.
type rocePathDescs struct{ limit, inFlight, rtt, losses, congested, delayed *prometheus.Desc }

func newRoCEPathDescs(d describe) rocePathDescs {
	return rocePathDescs{
		limit:     d("roce_path_limit_bytes", "RoCE: bytes that may be in flight to a peer: half with a loss or a notice of congestion, more while round trips are short.", "address", "peer"),
		inFlight:  d("roce_path_in_flight_bytes", "RoCE: bytes in flight to a peer.", "address", "peer"),
		rtt:       d("roce_path_rtt_seconds", "RoCE: round trip to a peer, smoothed; 0: not measured.", "address", "peer"),
		losses:    d("roce_path_losses_total", "RoCE: losses for which less may be in flight to a peer.", "address", "peer"),
		congested: d("roce_path_congested_total", "RoCE: notices of congestion for which less may be in flight to a peer.", "address", "peer"),
		delayed:   d("roce_path_delayed_total", "RoCE: round trips to a peer that were too long for more to be in flight.", "address", "peer"),
	}
}

func (d *rocePathDescs) collect(ports []rdma.RoCEPort, ch metrics) {
	for i := range ports {
		for k := range ports[i].Paths {
			p := &ports[i].Paths[k]
			way := []string{p.Local.String(), p.Peer.String()}
			ch.gauge(d.limit, float64(p.Limit), way...)
			ch.gauge(d.inFlight, float64(p.InFlight), way...)
			ch.gauge(d.rtt, p.RTT.Seconds(), way...)
			ch.counter(d.losses, p.Losses, way...)
			ch.counter(d.congested, p.Congested, way...)
			ch.counter(d.delayed, p.Delayed, way...)
		}
	}
}
