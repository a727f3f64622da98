package main

import (
	"github.com/prometheus/client_golang/prometheus"

	"softiser/target/portal"
)

// rdmaDescs describe what queue pairs are and have done.
type rdmaDescs struct {
	qps, regions, established, wire, calls, frames, reads *prometheus.Desc
	placed, faults, terminates, ends, crc                 *prometheus.Desc
}

func newRDMADescs(d describe) rdmaDescs {
	return rdmaDescs{
		qps:         d("rdma_queue_pairs", "Queue pairs now.", "transport"),
		regions:     d("rdma_memory_regions", "Memory regions and windows now.", "transport"),
		established: d("rdma_connections_total", "Connections established.", "transport"),
		wire:        d("rdma_wire_bytes_total", "Bytes of the stream, or of packets, headers included.", "transport", "direction"),
		calls:       d("rdma_calls_total", "System calls that moved data; over RoCE batches of packets.", "transport", "direction"),
		frames:      d("rdma_frames_sent_total", "Frames of MPA sent.", "transport"),
		reads:       d("rdma_read_requests_total", "RDMA Reads asked for.", "transport"),
		placed:      d("rdma_placed_bytes_total", "Payload received: straight to its place, or by way of a buffer.", "transport", "way"),
		faults:      d("rdma_memory_faults_total", "Placements into memory that could not be touched.", "transport"),
		terminates:  d("rdma_terminates_total", "Terminate messages.", "transport", "direction"),
		crc:         d("rdma_crc_errors_total", "Frames whose CRC32C was wrong here, each of which has ended its connection; RoCE counts roce_bad_icrc_total.", "transport"),
		ends:        d("rdma_errors_total", "Connections ended for a mistake that a Terminate or a NAK has a code for; MPA 2/0/02 is a CRC error.", "transport", "found_by", "layer", "reason", "code"),
	}
}

// crcError is MPA's code for a CRC that is wrong (RFC 5044 §8).
const crcError = "2/0/02"

// collect puts the counters of each RDMA transport.
func (d *rdmaDescs) collect(all []portal.RDMAStatus, ch metrics) {
	for i := range all {
		r := &all[i]
		ch.gauge(d.qps, float64(r.QPs), r.Transport)
		ch.gauge(d.regions, float64(r.MRs), r.Transport)
		ch.counter(d.established, r.Established, r.Transport)
		ch.counter(d.wire, r.WireIn, r.Transport, "in")
		ch.counter(d.wire, r.WireOut, r.Transport, "out")
		ch.counter(d.calls, r.ReceiveCalls, r.Transport, "in")
		ch.counter(d.calls, r.SendCalls, r.Transport, "out")
		ch.counter(d.frames, r.Frames, r.Transport)
		ch.counter(d.reads, r.ReadRequests, r.Transport)
		ch.counter(d.placed, r.PlacedDirect, r.Transport, "direct")
		ch.counter(d.placed, r.PlacedCopied, r.Transport, "copied")
		ch.counter(d.faults, r.Faults, r.Transport)
		ch.counter(d.terminates, r.TerminatesIn, r.Transport, "in")
		ch.counter(d.terminates, r.TerminatesOut, r.Transport, "out")
		var crc uint64
		for _, e := range r.Ends {
			if e.FoundBy == "us" && e.Code == crcError {
				crc = e.Count
			}
			ch.counter(d.ends, e.Count, r.Transport, e.FoundBy, e.Layer, e.Reason, e.Code)
		}
		ch.counter(d.crc, crc, r.Transport)
	}
}
