package main

import (
	"context"
	"errors"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.uber.org/zap"

	"softiser/target"
	"softiser/target/scsi"
)

// serveMetrics answers Prometheus, if that is configured.
func (a *app) serveMetrics(ctx context.Context, ln net.Listener) {
	if ln == nil {
		return
	}
	reg := prometheus.NewRegistry()
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), newCollector(a.reg.Status))
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(reg, promhttp.HandlerOpts{}))
	a.log.Info("metrics", zap.String("url", "http://"+ln.Addr().String()+"/metrics"))
	srv := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	context.AfterFunc(ctx, func() { srv.Close() })
	a.services.Go(func() {
		if err := srv.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
			a.log.Error("metrics endpoint failed", zap.Error(err))
		}
	})
}

// collector turns a status snapshot into metrics at scrape time, so that the
// data path counts with plain atomics and knows no label.
type collector struct {
	status func() target.Status

	logins, refused, pending, sessions      *prometheus.Desc
	connections, garbage, evicted, turned   *prometheus.Desc
	sessionsMost, pendingMost, noRoom, aged *prometheus.Desc
	staging, stagingLimit, noMemory         *prometheus.Desc
	reads, writes, read, written            *prometheus.Desc
	up, size, lunLatency, placementCopied   *prometheus.Desc
	registrants                             *prometheus.Desc
	in, out, copied, commands, outstanding  *prometheus.Desc
	latency                                 *prometheus.Desc

	namespaceUp, controllers, nvmeConnections      *prometheus.Desc
	nvmeCommands, nvmeFailed                       *prometheus.Desc
	nvmeReads, nvmeWrites, nvmeRead, nvmeWritten   *prometheus.Desc
	ctrlCommands, ctrlFailed, ctrlQueues, ctrlOpen *prometheus.Desc
	ctrlIn, ctrlOut                                *prometheus.Desc

	roceMTU, roceQPs, rocePending *prometheus.Desc
	roce                          []*prometheus.Desc // by roceCounters
}

// newCollector describes the metrics that are read off the server's status when they are
// asked for.
func newCollector(status func() target.Status) *collector {
	d := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("iser_target_"+name, help, labels, nil)
	}
	lun := []string{"target", "lun", "volume"}
	namespace := []string{"subsystem", "nsid", "volume"}
	controller := []string{"subsystem", "host", "controller", "transport"}
	session := []string{"target", "initiator", "tsih", "transport"}
	c := &collector{
		status:          status,
		logins:          d("logins_total", "Sessions that were opened."),
		refused:         d("logins_refused_total", "Logins that were refused, by reason.", "reason"),
		pending:         d("pending_logins", "Connections before their full feature phase."),
		sessions:        d("sessions", "Sessions now."),
		connections:     d("connections_total", "Connections accepted.", "portal"),
		evicted:         d("connections_evicted_total", "Connections that made room before they had logged in.", "portal"),
		turned:          d("connections_turned_away_total", "Connections that were refused unheard.", "portal"),
		sessionsMost:    d("sessions_limit", "Sessions that there may be."),
		pendingMost:     d("pending_logins_limit", "Connections that there may be before their full feature phase."),
		noRoom:          d("sessions_refused_total", "Sessions for which there was no place."),
		aged:            d("discovery_ended_total", "Discovery sessions that were too old or made room."),
		garbage:         d("connections_unrecognised_total", "Connections that spoke neither iSCSI nor MPA, or nothing.", "portal"),
		staging:         d("staging_bytes", "Staging memory in use.", "kind"),
		stagingLimit:    d("staging_limit_bytes", "What limits.staging_memory allows."),
		noMemory:        d("session_no_memory_total", "Commands put off with BUSY for want of staging memory.", session...),
		reads:           d("volume_reads_total", "Reads of the volume, by whichever LUN or namespace.", "volume"),
		writes:          d("volume_writes_total", "Writes of the volume, by whichever LUN or namespace.", "volume"),
		read:            d("volume_read_bytes_total", "Bytes read from the volume.", "volume"),
		written:         d("volume_written_bytes_total", "Bytes written to the volume.", "volume"),
		placementCopied: d("volume_placement_copied_bytes_total", "Bytes of writes that verified placement has copied.", "volume"),
		registrants:     d("volume_registrants", "Initiators and hosts that have registered for reservations.", "volume", "wire"),
		up:              d("lun_up", "1: the LUN is served; 0: it is configured, but could not be (status says why).", lun...),
		size:            d("volume_size_bytes", "Size of the volume.", "volume"),
		lunLatency:      d("lun_latency_seconds", "Commands to the LUN: time from the arrival of a command to its response.", append(lun[:3:3], "kind")...),
		in:              d("session_payload_in_bytes_total", "Payload received.", session...),
		out:             d("session_payload_out_bytes_total", "Payload sent.", session...),
		copied:          d("session_payload_copied_bytes_total", "Payload copied in user space.", session...),
		commands:        d("session_commands_total", "Commands answered.", append(session[:4:4], "kind")...),
		namespaceUp:     d("namespace_up", "1: the namespace is served; 0: it is configured, but could not be (status says why).", namespace...),
		controllers:     d("controllers", "Controllers that NVMe hosts have now.", "subsystem", "transport"),
		nvmeConnections: d("nvme_connections", "Connections of NVMe hosts now, one for each queue.", "transport"),
		nvmeCommands:    d("nvme_commands_total", "Commands of NVMe hosts answered.", "transport"),
		nvmeFailed:      d("nvme_failed_commands_total", "Of these, those that have failed.", "transport"),
		nvmeReads:       d("nvme_reads_total", "Of these, Read.", "transport"),
		nvmeWrites:      d("nvme_writes_total", "Of these, Write.", "transport"),
		nvmeRead:        d("nvme_read_bytes_total", "Bytes read by NVMe hosts.", "transport"),
		nvmeWritten:     d("nvme_written_bytes_total", "Bytes written by NVMe hosts.", "transport"),
		ctrlCommands:    d("controller_commands_total", "Commands answered.", controller...),
		ctrlFailed:      d("controller_failed_commands_total", "Commands that have failed.", controller...),
		ctrlQueues:      d("controller_io_queues", "I/O queues now.", controller...),
		ctrlOpen:        d("controller_outstanding_commands", "Commands in execution.", controller...),
		ctrlIn:          d("controller_payload_in_bytes_total", "Bytes written by the host.", controller...),
		ctrlOut:         d("controller_payload_out_bytes_total", "Bytes read by the host.", controller...),
		outstanding:     d("session_outstanding_commands", "Commands in execution.", session...),
		latency:         d("session_latency_seconds", "Time from the arrival of a command to its response.", append(session[:4:4], "kind")...),
		roceMTU:         d("roce_active_mtu_bytes", "RoCE: the largest path MTU that fits the interface.", "address"),
		roceQPs:         d("roce_queue_pairs", "RoCE: queue pairs connected.", "address"),
		rocePending:     d("roce_pending_requests", "RoCE: connections asked for by peers that have not proved their address.", "address"),
	}
	for _, r := range roceCounters {
		c.roce = append(c.roce, d("roce_"+r.name+"_total", "RoCE: "+r.help, "address"))
	}
	return c
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(c, ch) }

// Collect implements prometheus.Collector.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	st := c.status()
	counter := func(d *prometheus.Desc, v uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	counter(c.logins, st.Logins)
	for reason, n := range st.Refusals {
		counter(c.refused, n, reason)
	}
	gauge(c.pending, float64(st.Pending))
	gauge(c.pendingMost, float64(st.Limits.PendingLogins))
	gauge(c.sessionsMost, float64(st.Limits.Sessions))
	counter(c.noRoom, st.Limits.NoRoom)
	counter(c.aged, st.Limits.DiscoveryEnded)
	gauge(c.sessions, float64(len(st.Sessions)))
	gauge(c.staging, float64(st.Staging.Reserved), "sessions")
	gauge(c.staging, float64(st.Staging.Used-st.Staging.Reserved), "volumes")
	gauge(c.stagingLimit, float64(st.Staging.Limit))
	for _, p := range st.Portals {
		counter(c.connections, p.Accepted, p.Listen)
		counter(c.garbage, p.Garbage+p.Silent, p.Listen)
		counter(c.evicted, p.Evicted, p.Listen)
		counter(c.turned, p.Turned, p.Listen)
	}
	for i := range st.RoCE {
		p := &st.RoCE[i]
		at := p.Addr.String()
		gauge(c.roceMTU, float64(p.ActiveMTU), at)
		gauge(c.roceQPs, float64(p.QPs), at)
		gauge(c.rocePending, float64(p.Pending), at)
		for k, r := range roceCounters {
			counter(c.roce[k], r.of(&p.Counters), at)
		}
	}
	for _, t := range st.Targets {
		for _, l := range t.LUNs {
			labels := []string{t.Name, strconv.Itoa(int(l.LUN)), l.Volume}
			if l.Error != "" {
				gauge(c.up, 0, labels...)
				continue
			}
			gauge(c.up, 1, labels...)
			ch <- histogramMetric(c.lunLatency, &l.ReadLatency, append(labels[:3:3], "read"))
			ch <- histogramMetric(c.lunLatency, &l.WriteLatency, append(labels[:3:3], "write"))
		}
	}
	for _, v := range st.Volumes {
		counter(c.reads, v.Stats.Reads, v.Name)
		counter(c.writes, v.Stats.Writes, v.Name)
		counter(c.read, v.Stats.ReadBytes, v.Name)
		counter(c.written, v.Stats.WriteBytes, v.Name)
		counter(c.placementCopied, v.Stats.PlacementCopied, v.Name)
		gauge(c.size, float64(v.Size), v.Name)
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
	c.collectNVMe(&st, counter, gauge)
	for _, s := range st.Sessions {
		labels := []string{s.Target, s.Initiator, strconv.Itoa(int(s.TSIH)), s.Transport}
		counter(c.in, s.BytesIn, labels...)
		counter(c.out, s.BytesOut, labels...)
		counter(c.copied, s.BytesCopied, labels...)
		counter(c.noMemory, s.NoMemory, labels...)
		gauge(c.outstanding, float64(s.Outstanding), labels...)
		for kind, n := range map[string]uint64{"read": s.Reads, "write": s.Writes, "other": s.Others} {
			counter(c.commands, n, append(labels[:4:4], kind)...)
		}
		ch <- histogramMetric(c.latency, &s.ReadLatency, append(labels[:4:4], "read"))
		ch <- histogramMetric(c.latency, &s.WriteLatency, append(labels[:4:4], "write"))
	}
}

// collectNVMe tells of subsystems and of the controllers of their hosts.
func (c *collector) collectNVMe(st *target.Status, counter func(*prometheus.Desc, uint64, ...string), gauge func(*prometheus.Desc, float64, ...string)) {
	for _, s := range st.Subsystems {
		for _, n := range s.Namespaces {
			up := 1.0
			if n.Error != "" {
				up = 0
			}
			gauge(c.namespaceUp, up, s.NQN, strconv.Itoa(int(n.NSID)), n.Volume)
		}
	}
	count := map[[2]string]int{}
	for _, x := range st.Controllers {
		count[[2]string{x.Subsystem, x.Transport}]++
		labels := []string{x.Subsystem, x.Host, strconv.Itoa(int(x.ID)), x.Transport}
		counter(c.ctrlCommands, x.Commands, labels...)
		counter(c.ctrlFailed, x.Failed, labels...)
		counter(c.ctrlIn, x.WriteBytes, labels...)
		counter(c.ctrlOut, x.ReadBytes, labels...)
		gauge(c.ctrlQueues, float64(x.Queues), labels...)
		gauge(c.ctrlOpen, float64(x.Outstanding), labels...)
	}
	for k, n := range count {
		gauge(c.controllers, float64(n), k[0], k[1])
	}
	for _, t := range st.NVMe {
		gauge(c.nvmeConnections, float64(t.Connections), t.Name)
		counter(c.nvmeCommands, t.Commands, t.Name)
		counter(c.nvmeFailed, t.Failed, t.Name)
		counter(c.nvmeReads, t.Reads, t.Name)
		counter(c.nvmeWrites, t.Writes, t.Name)
		counter(c.nvmeRead, t.ReadBytes, t.Name)
		counter(c.nvmeWritten, t.WriteBytes, t.Name)
	}
}

// latencyBounds are the buckets that metrics report; the finer ones of the
// target are summed up into them.
var latencyBounds = []float64{20e-6, 50e-6, 100e-6, 200e-6, 500e-6, 1e-3, 2e-3, 5e-3, 10e-3, 20e-3, 50e-3, 0.1, 0.5, 1, 5, 30}

func histogramMetric(d *prometheus.Desc, l *scsi.Latency, labels []string) prometheus.Metric {
	buckets := make(map[float64]uint64, len(latencyBounds))
	for _, bound := range latencyBounds {
		var n uint64
		for _, b := range l.Buckets {
			if b.Below.Seconds() <= bound {
				n += b.Count
			}
		}
		buckets[bound] = n
	}
	return prometheus.MustNewConstHistogram(d, l.Count, l.Sum.Seconds(), buckets, labels...)
}
