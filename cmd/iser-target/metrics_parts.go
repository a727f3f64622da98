package main

import (
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"softiser/target"
	"softiser/target/portal"
	"softiser/target/scsi"
)

// seriesLimit is how many sessions, and how many controllers, have series of their own.
// Labels of peers' choosing could fill a Prometheus otherwise, and a session has some fifty.
const seriesLimit = 256

// A put makes a metric of a value.
type (
	putCounter = func(d *prometheus.Desc, v uint64, labels ...string)
	putGauge   = func(d *prometheus.Desc, v float64, labels ...string)
)

func up(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}

// collectISCSI tells of initiators, by what carries them.
func (c *collector) collectISCSI(st *target.Status, counter putCounter, gauge putGauge) {
	for _, t := range st.ISCSI {
		gauge(c.sessions, float64(t.Sessions), t.Name)
		gauge(c.iscsiConnections, float64(t.Connections), t.Name)
		for kind, n := range map[string]uint64{"read": t.Reads, "write": t.Writes, "other": t.Others} {
			counter(c.iscsiCommands, n, t.Name, kind)
		}
		counter(c.iscsiFailed, t.Failed, t.Name)
		counter(c.iscsiAborted, t.Aborted, t.Name)
		counter(c.iscsiPayload, t.BytesIn, t.Name, "in")
		counter(c.iscsiPayload, t.BytesOut, t.Name, "out")
	}
	r := &st.Recovery
	for event, n := range map[string]uint64{
		"session_reinstated": r.Sessions, "connection_reinstated": r.Connections, "connection_lost": r.Lost, "task_reassigned": r.Tasks,
	} {
		counter(c.recovery, n, event)
	}
}

// collectRetransmits tells of TCP, wherever it is what carries.
func (c *collector) collectRetransmits(st *target.Status, counter putCounter) {
	for _, r := range st.RDMA {
		if !strings.HasSuffix(r.Transport, "RoCE") {
			counter(c.retransmits, r.Retransmits, r.Transport)
		}
	}
	tell := func(name string, n uint64) {
		if strings.Contains(name, "TCP") {
			counter(c.retransmits, n, name)
		}
	}
	for _, t := range st.ISCSI {
		tell(t.Name, t.Retransmits)
	}
	for _, t := range st.NVMe {
		tell(t.Name, t.Retransmits)
	}
}

// readsAndWrites are the latencies of all places of a volume.
type readsAndWrites struct{ reads, writes []*scsi.Latency }

func volumeLatencies(st *target.Status) map[string]readsAndWrites {
	all := map[string]readsAndWrites{}
	add := func(volume string, read, write *scsi.Latency) {
		x := all[volume]
		x.reads, x.writes = append(x.reads, read), append(x.writes, write)
		all[volume] = x
	}
	for _, t := range st.Targets {
		for i := range t.LUNs {
			l := &t.LUNs[i]
			add(l.Volume, &l.ReadLatency, &l.WriteLatency)
		}
	}
	for _, s := range st.Subsystems {
		for i := range s.Namespaces {
			n := &s.Namespaces[i]
			add(n.Volume, &n.ReadLatency, &n.WriteLatency)
		}
	}
	return all
}

// collectVolumes tells of volumes, wherever they are served.
func (c *collector) collectVolumes(st *target.Status, ch chan<- prometheus.Metric, counter putCounter, gauge putGauge) {
	latencies := volumeLatencies(st)
	for _, v := range st.Volumes {
		for kind, n := range map[string]uint64{"read": v.Stats.ReadErrors, "write": v.Stats.WriteErrors, "verify": v.Stats.VerifyErrors} {
			counter(c.mediumErrors, n, v.Name, kind)
		}
		counter(c.throttled, v.Stats.Throttling.Commands, v.Name)
		counter(c.stagingWaits, v.Stats.StagingWaits, v.Name)
		gauge(c.throttling, float64(v.Stats.Throttling.Waiting), v.Name)
		ch <- prometheus.MustNewConstMetric(c.throttleTime, prometheus.CounterValue, v.Stats.Throttling.Waited.Seconds(), v.Name)
		gauge(c.workers, float64(v.Stats.Workers), v.Name)
		l := latencies[v.Name]
		ch <- histogramMetric(c.volumeLatency, []string{v.Name, "read"}, l.reads...)
		ch <- histogramMetric(c.volumeLatency, []string{v.Name, "write"}, l.writes...)
		counter(c.reads, v.Stats.Reads, v.Name)
		counter(c.writes, v.Stats.Writes, v.Name)
		counter(c.read, v.Stats.ReadBytes, v.Name)
		counter(c.written, v.Stats.WriteBytes, v.Name)
		counter(c.placementCopied, v.Stats.PlacementCopied, v.Name)
		gauge(c.size, float64(v.Size), v.Name)
		if s := v.Snapshots; s != nil {
			counter(c.snapshots, s.Taken, v.Name, "ok")
			counter(c.snapshots, s.Failed, v.Name, "failed")
			gauge(c.snapshotsKept, float64(s.Kept), v.Name)
			if !s.Time.IsZero() {
				gauge(c.snapshotTime, float64(s.Time.Unix()), v.Name)
			}
		}
		registrants := map[string]int{"iSCSI": 0, "NVMe": 0}
		if v.Reservation != nil {
			for _, r := range v.Reservation.Registrants {
				registrants[r.Wire]++
			}
		}
		for wire, n := range registrants {
			gauge(c.registrants, float64(n), v.Name, wire)
		}
	}
}

// portalLabel names a portal: as the configuration does, with the port that it has got where that leaves it open. There
// may be several such.
func portalLabel(p *target.PortalStatus) string {
	host, open := strings.CutSuffix(p.Listen, ":0")
	if _, port, err := net.SplitHostPort(p.Bound); open && err == nil {
		return host + ":" + port
	}
	return p.Listen
}

// collectSessions tells of the first of them.
func (c *collector) collectSessions(all []target.SessionStatus, ch chan<- prometheus.Metric, counter putCounter, gauge putGauge) {
	all = all[:min(len(all), seriesLimit)]
	for _, s := range all {
		labels := []string{s.Target, s.Initiator, strconv.Itoa(int(s.TSIH)), s.Transport}
		counter(c.in, s.BytesIn, labels...)
		counter(c.out, s.BytesOut, labels...)
		counter(c.copied, s.BytesCopied, labels...)
		counter(c.noMemory, s.NoMemory, labels...)
		gauge(c.outstanding, float64(s.Outstanding), labels...)
		for kind, n := range map[string]uint64{"read": s.Reads, "write": s.Writes, "other": s.Others} {
			counter(c.commands, n, append(labels[:4:4], kind)...)
		}
		ch <- histogramMetric(c.latency, append(labels[:4:4], "read"), &s.ReadLatency)
		ch <- histogramMetric(c.latency, append(labels[:4:4], "write"), &s.WriteLatency)
	}
}

// rdmaDescs describe what queue pairs are and have done.
type rdmaDescs struct {
	qps, regions, established, wire, calls, frames, reads *prometheus.Desc
	placed, faults, terminates, ends, crc                 *prometheus.Desc
}

func newRDMADescs(d func(name, help string, labels ...string) *prometheus.Desc) rdmaDescs {
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
func (c *rdmaDescs) collect(all []portal.RDMAStatus, counter putCounter, gauge putGauge) {
	for i := range all {
		r := &all[i]
		gauge(c.qps, float64(r.QPs), r.Transport)
		gauge(c.regions, float64(r.MRs), r.Transport)
		counter(c.established, r.Established, r.Transport)
		counter(c.wire, r.WireIn, r.Transport, "in")
		counter(c.wire, r.WireOut, r.Transport, "out")
		counter(c.calls, r.ReceiveCalls, r.Transport, "in")
		counter(c.calls, r.SendCalls, r.Transport, "out")
		counter(c.frames, r.Frames, r.Transport)
		counter(c.reads, r.ReadRequests, r.Transport)
		counter(c.placed, r.PlacedDirect, r.Transport, "direct")
		counter(c.placed, r.PlacedCopied, r.Transport, "copied")
		counter(c.faults, r.Faults, r.Transport)
		counter(c.terminates, r.TerminatesIn, r.Transport, "in")
		counter(c.terminates, r.TerminatesOut, r.Transport, "out")
		var crc uint64
		for _, e := range r.Ends {
			if e.FoundBy == "us" && e.Code == crcError {
				crc = e.Count
			}
			counter(c.ends, e.Count, r.Transport, e.FoundBy, e.Layer, e.Reason, e.Code)
		}
		counter(c.crc, crc, r.Transport)
	}
}

// histogramMetric is the sum of latencies.
func histogramMetric(d *prometheus.Desc, labels []string, all ...*scsi.Latency) prometheus.Metric {
	buckets := make(map[float64]uint64, len(latencyBounds))
	var count uint64
	var sum time.Duration
	for _, l := range all {
		count += l.Count
		sum += l.Sum
	}
	for _, bound := range latencyBounds {
		var n uint64
		for _, l := range all {
			for _, b := range l.Buckets {
				if b.Below.Seconds() <= bound {
					n += b.Count
				}
			}
		}
		buckets[bound] = n
	}
	return prometheus.MustNewConstHistogram(d, count, sum.Seconds(), buckets, labels...)
}
