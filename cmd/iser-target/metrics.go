package main

import (
	"context"
	"errors"
	"net"
	"net/http"
	"runtime"
	"strconv"
	"strings"
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

// scrapePatience is Prometheus' own.
const scrapePatience = 10 * time.Second

// observers are what the metrics listener answers.
func observers(status func() target.Status) http.Handler {
	reg := prometheus.NewRegistry()
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), newCollector(status))
	h := newHealth(status)
	mux := http.NewServeMux()
	// Scrapes of a server that is stuck are few, and are answered: each has a connection as long as it lasts.
	mux.Handle("GET /metrics", promhttp.HandlerFor(reg, promhttp.HandlerOpts{MaxRequestsInFlight: cap(h.asks), Timeout: scrapePatience}))
	mux.Handle("GET /", statuspage.Handler(statuspage.Config{Status: h.check, Version: version}))
	mux.HandleFunc("GET /healthz", h.live)
	mux.HandleFunc("GET /readyz", h.ready)
	return mux
}

// collector turns a status snapshot into metrics at scrape time, so that the
// data path counts with plain atomics and knows no label.
type collector struct {
	status func() target.Status
	all    []*prometheus.Desc

	buildInfo                             *prometheus.Desc
	reloads, reloadOK, reloadTime         *prometheus.Desc
	connections, garbage, evicted, turned *prometheus.Desc // of portals
	logins, refused, pending, pendingMost *prometheus.Desc
	sessionsMost, noRoom, aged            *prometheus.Desc
	staging, stagingLimit                 *prometheus.Desc
	up, lunLatency                        *prometheus.Desc // of LUNs
	retransmits                           *prometheus.Desc
	sessionsUntold                        *prometheus.Desc

	iscsi   iscsiDescs
	session sessionDescs
	volumes volumeDescs
	nvme    nvmeDescs
	rdma    rdmaDescs
	roce    roceDescs
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
	c := &collector{
		status:         status,
		logins:         d("logins_total", "Sessions that were opened."),
		refused:        d("logins_refused_total", "Logins that were refused, by reason.", "reason"),
		buildInfo:      d("build_info", "1, with what the program is.", "version", "goversion", "goarch"),
		reloads:        d("config_reloads_total", "Reloads of the configuration; failed: not all of it is in force.", "result"),
		reloadOK:       d("config_last_reload_successful", "1: the last reload, or the start, took all of the configuration into force."),
		reloadTime:     d("config_last_reload_success_timestamp_seconds", "When that was last so."),
		sessionsUntold: d("sessions_without_series", "Sessions and controllers beyond the first that have series of their own; sums have them."),
		retransmits:    d("tcp_retransmits_total", "Segments that TCP has sent again, below all connections of a transport.", "transport"),
		pending:        d("pending_logins", "Connections before their full feature phase."),
		connections:    d("connections_total", "Connections accepted.", "portal"),
		evicted:        d("connections_evicted_total", "Connections that made room before they had logged in.", "portal"),
		turned:         d("connections_turned_away_total", "Connections that were refused unheard.", "portal"),
		sessionsMost:   d("sessions_limit", "Sessions that there may be."),
		pendingMost:    d("pending_logins_limit", "Connections that there may be before their full feature phase."),
		noRoom:         d("sessions_refused_total", "Sessions for which there was no place."),
		aged:           d("discovery_ended_total", "Discovery sessions that were too old or made room."),
		garbage:        d("connections_unrecognised_total", "Connections that spoke neither iSCSI nor MPA, or nothing.", "portal"),
		staging:        d("staging_bytes", "Staging memory in use.", "kind"),
		stagingLimit:   d("staging_limit_bytes", "What limits.staging_memory allows."),
		up:             d("lun_up", "1: the LUN is served; 0: it is configured, but could not be (status says why).", lun...),
		lunLatency:     d("lun_latency_seconds", "Commands to the LUN: time from the arrival of a command to its response.", append(lun[:3:3], "kind")...),
		iscsi:          newISCSIDescs(d),
		session:        newSessionDescs(d),
		volumes:        newVolumeDescs(d),
		nvme:           newNVMeDescs(d),
		rdma:           newRDMADescs(d),
		roce:           newRoCEDescs(d),
	}
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
func (c *collector) Collect(to chan<- prometheus.Metric) {
	ch := metrics(to)
	st := c.status()
	ch.gauge(c.buildInfo, 1, version, runtime.Version(), runtime.GOARCH)
	ch.counter(c.logins, st.Logins)
	for reason, n := range st.Refusals {
		ch.counter(c.refused, n, reason)
	}
	ch.gauge(c.pending, float64(st.Pending))
	ch.gauge(c.pendingMost, float64(st.Limits.PendingLogins))
	ch.gauge(c.sessionsMost, float64(st.Limits.Sessions))
	ch.counter(c.noRoom, st.Limits.NoRoom)
	ch.counter(c.aged, st.Limits.DiscoveryEnded)
	c.iscsi.collect(&st, ch)
	c.rdma.collect(st.RDMA, ch)
	c.collectRetransmits(&st, ch)
	if r := st.Reload; r != nil {
		ch.counter(c.reloads, r.Done, "ok")
		ch.counter(c.reloads, r.Failed, "failed")
		ch.gauge(c.reloadOK, up(r.OK))
		ch.gauge(c.reloadTime, float64(r.Last.UnixMilli())/1000)
	}
	ch.gauge(c.staging, float64(st.Staging.Reserved), "sessions")
	ch.gauge(c.staging, float64(st.Staging.Used-st.Staging.Reserved), "volumes")
	ch.gauge(c.stagingLimit, float64(st.Staging.Limit))
	for _, p := range st.Portals {
		at := portalLabel(&p)
		ch.counter(c.connections, p.Accepted, at)
		ch.counter(c.garbage, p.Garbage+p.Silent, at)
		ch.counter(c.evicted, p.Evicted, at)
		ch.counter(c.turned, p.Turned, at)
	}
	c.roce.collect(st.RoCE, ch)
	for _, t := range st.Targets {
		for _, l := range t.LUNs {
			labels := []string{t.Name, strconv.Itoa(int(l.LUN)), l.Volume}
			if l.Error != "" {
				ch.gauge(c.up, 0, labels...)
				continue
			}
			ch.gauge(c.up, 1, labels...)
			ch.histogram(c.lunLatency, append(labels[:3:3], "read"), &l.ReadLatency)
			ch.histogram(c.lunLatency, append(labels[:3:3], "write"), &l.WriteLatency)
		}
	}
	c.volumes.collect(&st, ch)
	c.nvme.collect(&st, ch)
	c.session.collect(st.Sessions, ch)
	ch.gauge(c.sessionsUntold, float64(max(len(st.Sessions)-seriesLimit, 0)+max(len(st.Controllers)-seriesLimit, 0)))
}

// collectRetransmits tells of TCP, wherever it is what carries.
func (c *collector) collectRetransmits(st *target.Status, ch metrics) {
	for _, r := range st.RDMA {
		if !strings.HasSuffix(r.Transport, "RoCE") {
			ch.counter(c.retransmits, r.Retransmits, r.Transport)
		}
	}
	tell := func(name string, n uint64) {
		if strings.Contains(name, "TCP") {
			ch.counter(c.retransmits, n, name)
		}
	}
	for _, t := range st.ISCSI {
		tell(t.Name, t.Retransmits)
	}
	for _, t := range st.NVMe {
		tell(t.Name, t.Retransmits)
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
