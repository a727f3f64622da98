package main

import (
	"context"
	"errors"
	"net"
	"net/http"
	"runtime"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.uber.org/zap"
	"golang.org/x/net/netutil"

	"softiser/internal/handover"
	"softiser/target"
	"softiser/target/statuspage"
)

// metricsConns is how many connections the metrics listener has at a time: whoever reaches it is not to
// use up the descriptors of a target. Others wait until one ends, the silent ones for the timeouts.
const metricsConns = 128

// serveMetrics answers Prometheus, and who asks for the state of the process, if that is
// configured. What is there is to be read, by whoever reaches the address.
func (a *app) serveMetrics(ctx context.Context, ln *handover.Listener) {
	if ln == nil {
		return
	}
	a.log.Info("metrics", zap.String("url", "http://"+ln.Addr().String()+"/metrics"))
	srv := &http.Server{
		Handler: observers(a.reg.Status), ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second,
		WriteTimeout: time.Minute, IdleTimeout: 30 * time.Second, MaxHeaderBytes: 16 << 10,
	}
	context.AfterFunc(ctx, func() { srv.Close() })
	a.services.Go(func() {
		if err := srv.Serve(fewAtATime(ln)); !errors.Is(err, http.ErrServerClosed) {
			a.log.Error("metrics endpoint failed", zap.Error(err))
		}
	})
}

func fewAtATime(ln net.Listener) net.Listener { return netutil.LimitListener(ln, metricsConns) }

// observers are what the metrics listener answers.
func observers(status func() target.Status) http.Handler {
	reg := prometheus.NewRegistry()
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), newCollector(status))
	h := newHealth(status)
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(reg, promhttp.HandlerOpts{}))
	mux.Handle("/", statuspage.Handler(statuspage.Config{Status: h.check, Version: version}))
	mux.HandleFunc("GET /healthz", h.live)
	mux.HandleFunc("GET /readyz", h.ready)
	return mux
}

// collector turns a status snapshot into metrics at scrape time, so that the
// data path counts with plain atomics and knows no label.
type collector struct {
	status func() target.Status
	all    []*prometheus.Desc

	logins, refused, pending, sessions      *prometheus.Desc
	connections, garbage, evicted, turned   *prometheus.Desc
	sessionsMost, pendingMost, noRoom, aged *prometheus.Desc
	staging, stagingLimit, noMemory         *prometheus.Desc
	reads, writes, read, written            *prometheus.Desc
	up, size, lunLatency, placementCopied   *prometheus.Desc
	registrants                             *prometheus.Desc
	in, out, copied, commands, outstanding  *prometheus.Desc
	latency                                 *prometheus.Desc

	buildInfo, iscsiConnections                                     *prometheus.Desc
	iscsiCommands, iscsiFailed, iscsiAborted                        *prometheus.Desc
	iscsiPayload, recovery, volumeLatency                           *prometheus.Desc
	mediumErrors, throttled, throttling, throttleTime, stagingWaits *prometheus.Desc
	workers, reloads, reloadOK, reloadTime                          *prometheus.Desc
	sessionsUntold, connectsRefused, proofsFailed                   *prometheus.Desc
	snapshots, snapshotTime, snapshotsKept                          *prometheus.Desc
	retransmits                                                     *prometheus.Desc
	rdma                                                            rdmaDescs

	namespaceUp, controllers, nvmeConnections      *prometheus.Desc
	nvmeCommands, nvmeFailed                       *prometheus.Desc
	nvmeReads, nvmeWrites, nvmeRead, nvmeWritten   *prometheus.Desc
	ctrlCommands, ctrlFailed, ctrlQueues, ctrlOpen *prometheus.Desc
	ctrlIn, ctrlOut                                *prometheus.Desc

	roceMTU, roceQPs, rocePending *prometheus.Desc
	roce                          []*prometheus.Desc // by roceCounters
	rocePaths                     rocePathMetrics
}

// newCollector describes the metrics that are read off the server's status when they are
// asked for.
func newCollector(status func() target.Status) *collector {
	var all []*prometheus.Desc
	d := func(name, help string, labels ...string) *prometheus.Desc {
		x := prometheus.NewDesc("iser_target_"+name, help, labels, nil)
		all = append(all, x)
		return x
	}
	lun := []string{"target", "lun", "volume"}
	namespace := []string{"subsystem", "nsid", "volume"}
	controller := []string{"subsystem", "host", "controller", "transport"}
	session := []string{"target", "initiator", "tsih", "transport"}
	c := &collector{
		status:           status,
		logins:           d("logins_total", "Sessions that were opened."),
		refused:          d("logins_refused_total", "Logins that were refused, by reason.", "reason"),
		buildInfo:        d("build_info", "1, with what the program is.", "version", "goversion", "goarch"),
		iscsiConnections: d("iscsi_connections", "Connections that sessions have now.", "transport"),
		iscsiCommands:    d("iscsi_commands_total", "Commands of initiators answered: data to them (read), from them (write), none (other).", "transport", "kind"),
		iscsiFailed:      d("iscsi_failed_commands_total", "Of these, those with a status other than GOOD.", "transport"),
		iscsiAborted:     d("iscsi_aborted_commands_total", "Commands that initiators, or the end of their session, have aborted.", "transport"),
		iscsiPayload:     d("iscsi_payload_bytes_total", "Payload of initiators, by its direction seen from the target.", "transport", "direction"),
		recovery:         d("recovery_events_total", "What has become of connections of iSCSI that were lost.", "event"),
		volumeLatency:    d("volume_latency_seconds", "Reads and writes of the volume by all LUNs and namespaces: time from the arrival of a command to its response.", "volume", "kind"),
		mediumErrors:     d("volume_medium_errors_total", "Errors of the medium that nothing has corrected.", "volume", "kind"),
		throttled:        d("volume_throttled_commands_total", "Commands that have waited for the rate limits of the volume.", "volume"),
		stagingWaits:     d("volume_staging_waits_total", "Writes that have waited for their share of the staging memory.", "volume"),
		throttling:       d("volume_throttled_commands", "Commands that wait for the rate limits of the volume now.", "volume"),
		throttleTime:     d("volume_throttled_seconds_total", "Time that commands have waited for the rate limits, added up.", "volume"),
		workers:          d("volume_workers", "Goroutines of the volume for commands that wait for storage.", "volume"),
		reloads:          d("config_reloads_total", "Reloads of the configuration; failed: not all of it is in force.", "result"),
		reloadOK:         d("config_last_reload_successful", "1: the last reload, or the start, took all of the configuration into force."),
		reloadTime:       d("config_last_reload_success_timestamp_seconds", "When that was last so."),
		snapshots:        d("snapshots_total", "Snapshots of the volume that were due; failed: it could not be taken, or an old one not removed.", "volume", "result"),
		snapshotTime:     d("snapshot_last_timestamp_seconds", "When the newest scheduled snapshot of the volume was taken.", "volume"),
		snapshotsKept:    d("snapshots_kept", "Scheduled snapshots of the volume that there are.", "volume"),
		sessionsUntold:   d("sessions_without_series", "Sessions and controllers beyond the first that have series of their own; sums have them."),
		connectsRefused:  d("nvme_connects_refused_total", "Connect commands of NVMe hosts that were refused, by status.", "status"),
		retransmits:      d("tcp_retransmits_total", "Segments that TCP has sent again, below all connections of a transport.", "transport"),
		proofsFailed:     d("nvme_authentication_failures_total", "Authentications of NVMe hosts that have failed."),
		rdma:             newRDMADescs(d),
		pending:          d("pending_logins", "Connections before their full feature phase."),
		sessions:         d("sessions", "Sessions of iSCSI now, those for discovery included.", "transport"),
		connections:      d("connections_total", "Connections accepted.", "portal"),
		evicted:          d("connections_evicted_total", "Connections that made room before they had logged in.", "portal"),
		turned:           d("connections_turned_away_total", "Connections that were refused unheard.", "portal"),
		sessionsMost:     d("sessions_limit", "Sessions that there may be."),
		pendingMost:      d("pending_logins_limit", "Connections that there may be before their full feature phase."),
		noRoom:           d("sessions_refused_total", "Sessions for which there was no place."),
		aged:             d("discovery_ended_total", "Discovery sessions that were too old or made room."),
		garbage:          d("connections_unrecognised_total", "Connections that spoke neither iSCSI nor MPA, or nothing.", "portal"),
		staging:          d("staging_bytes", "Staging memory in use.", "kind"),
		stagingLimit:     d("staging_limit_bytes", "What limits.staging_memory allows."),
		noMemory:         d("session_no_memory_total", "Commands put off with BUSY for want of staging memory.", session...),
		reads:            d("volume_reads_total", "Reads of the volume, by whichever LUN or namespace.", "volume"),
		writes:           d("volume_writes_total", "Writes of the volume, by whichever LUN or namespace.", "volume"),
		read:             d("volume_read_bytes_total", "Bytes read from the volume.", "volume"),
		written:          d("volume_written_bytes_total", "Bytes written to the volume.", "volume"),
		placementCopied:  d("volume_placement_copied_bytes_total", "Bytes of writes that verified placement has copied.", "volume"),
		registrants:      d("volume_registrants", "Initiators and hosts that have registered for reservations.", "volume", "wire"),
		up:               d("lun_up", "1: the LUN is served; 0: it is configured, but could not be (status says why).", lun...),
		size:             d("volume_size_bytes", "Size of the volume.", "volume"),
		lunLatency:       d("lun_latency_seconds", "Commands to the LUN: time from the arrival of a command to its response.", append(lun[:3:3], "kind")...),
		in:               d("session_payload_in_bytes_total", "Payload received.", session...),
		out:              d("session_payload_out_bytes_total", "Payload sent.", session...),
		copied:           d("session_payload_copied_bytes_total", "Payload copied in user space.", session...),
		commands:         d("session_commands_total", "Commands answered.", append(session[:4:4], "kind")...),
		namespaceUp:      d("namespace_up", "1: the namespace is served; 0: it is configured, but could not be (status says why).", namespace...),
		controllers:      d("controllers", "Controllers that NVMe hosts have now.", "subsystem", "transport"),
		nvmeConnections:  d("nvme_connections", "Connections of NVMe hosts now, one for each queue.", "transport"),
		nvmeCommands:     d("nvme_commands_total", "Commands of NVMe hosts answered.", "transport"),
		nvmeFailed:       d("nvme_failed_commands_total", "Of these, those that have failed.", "transport"),
		nvmeReads:        d("nvme_reads_total", "Of these, Read.", "transport"),
		nvmeWrites:       d("nvme_writes_total", "Of these, Write.", "transport"),
		nvmeRead:         d("nvme_read_bytes_total", "Bytes read by NVMe hosts.", "transport"),
		nvmeWritten:      d("nvme_written_bytes_total", "Bytes written by NVMe hosts.", "transport"),
		ctrlCommands:     d("controller_commands_total", "Commands answered.", controller...),
		ctrlFailed:       d("controller_failed_commands_total", "Commands that have failed.", controller...),
		ctrlQueues:       d("controller_io_queues", "I/O queues now.", controller...),
		ctrlOpen:         d("controller_outstanding_commands", "Commands in execution.", controller...),
		ctrlIn:           d("controller_payload_in_bytes_total", "Bytes written by the host.", controller...),
		ctrlOut:          d("controller_payload_out_bytes_total", "Bytes read by the host.", controller...),
		outstanding:      d("session_outstanding_commands", "Commands in execution.", session...),
		latency:          d("session_latency_seconds", "Time from the arrival of a command to its response.", append(session[:4:4], "kind")...),
		roceMTU:          d("roce_active_mtu_bytes", "RoCE: the largest path MTU that fits the interface.", "address"),
		roceQPs:          d("roce_queue_pairs", "RoCE: queue pairs connected.", "address"),
		rocePending:      d("roce_pending_requests", "RoCE: connections asked for by peers that have not proved their address.", "address"),
	}
	for _, r := range roceCounters {
		c.roce = append(c.roce, d("roce_"+r.name+"_total", "RoCE: "+r.help, "address"))
	}
	c.rocePaths = newRoCEPathMetrics(d)
	c.all = all
	return c
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range c.all {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	st := c.status()
	counter := func(d *prometheus.Desc, v uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	gauge(c.buildInfo, 1, version, runtime.Version(), runtime.GOARCH)
	counter(c.logins, st.Logins)
	for reason, n := range st.Refusals {
		counter(c.refused, n, reason)
	}
	gauge(c.pending, float64(st.Pending))
	gauge(c.pendingMost, float64(st.Limits.PendingLogins))
	gauge(c.sessionsMost, float64(st.Limits.Sessions))
	counter(c.noRoom, st.Limits.NoRoom)
	counter(c.aged, st.Limits.DiscoveryEnded)
	c.collectISCSI(&st, counter, gauge)
	c.rdma.collect(st.RDMA, counter, gauge)
	c.collectRetransmits(&st, counter)
	if r := st.Reload; r != nil {
		counter(c.reloads, r.Done, "ok")
		counter(c.reloads, r.Failed, "failed")
		gauge(c.reloadOK, up(r.OK))
		gauge(c.reloadTime, float64(r.Last.UnixMilli())/1000)
	}
	gauge(c.staging, float64(st.Staging.Reserved), "sessions")
	gauge(c.staging, float64(st.Staging.Used-st.Staging.Reserved), "volumes")
	gauge(c.stagingLimit, float64(st.Staging.Limit))
	for _, p := range st.Portals {
		at := portalLabel(&p)
		counter(c.connections, p.Accepted, at)
		counter(c.garbage, p.Garbage+p.Silent, at)
		counter(c.evicted, p.Evicted, at)
		counter(c.turned, p.Turned, at)
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
	c.rocePaths.collect(st.RoCE, gauge, counter)
	for _, t := range st.Targets {
		for _, l := range t.LUNs {
			labels := []string{t.Name, strconv.Itoa(int(l.LUN)), l.Volume}
			if l.Error != "" {
				gauge(c.up, 0, labels...)
				continue
			}
			gauge(c.up, 1, labels...)
			ch <- histogramMetric(c.lunLatency, append(labels[:3:3], "read"), &l.ReadLatency)
			ch <- histogramMetric(c.lunLatency, append(labels[:3:3], "write"), &l.WriteLatency)
		}
	}
	c.collectVolumes(&st, ch, counter, gauge)
	c.collectNVMe(&st, counter, gauge)
	c.collectSessions(st.Sessions, ch, counter, gauge)
	gauge(c.sessionsUntold, float64(max(len(st.Sessions)-seriesLimit, 0)+max(len(st.Controllers)-seriesLimit, 0)))
}

// collectNVMe tells of subsystems and of the controllers of their hosts.
func (c *collector) collectNVMe(st *target.Status, counter func(*prometheus.Desc, uint64, ...string), gauge func(*prometheus.Desc, float64, ...string)) {
	for _, s := range st.Subsystems {
		for _, n := range s.Namespaces {
			gauge(c.namespaceUp, up(n.Error == ""), s.NQN, strconv.Itoa(int(n.NSID)), n.Volume)
		}
	}
	count := map[[2]string]int{}
	for reason, n := range st.ConnectsRefused {
		counter(c.connectsRefused, n, reason)
	}
	counter(c.proofsFailed, st.ProofsFailed)
	for i, x := range st.Controllers {
		count[[2]string{x.Subsystem, x.Transport}]++
		if i >= seriesLimit {
			continue
		}
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
