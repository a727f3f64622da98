package main

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"softiser/target"
)

// iscsiDescs describe initiators, by what carries them.
type iscsiDescs struct {
	sessions, connections, commands, failed, aborted, payload *prometheus.Desc
	recovery                                                  *prometheus.Desc
}

func newISCSIDescs(d describe) iscsiDescs {
	return iscsiDescs{
		sessions:    d("sessions", "Sessions of iSCSI now, those for discovery included.", "transport"),
		connections: d("iscsi_connections", "Connections that sessions have now.", "transport"),
		commands:    d("iscsi_commands_total", "Commands of initiators answered: data to them (read), from them (write), none (other).", "transport", "kind"),
		failed:      d("iscsi_failed_commands_total", "Of these, those with a status other than GOOD.", "transport"),
		aborted:     d("iscsi_aborted_commands_total", "Commands that initiators, or the end of their session, have aborted.", "transport"),
		payload:     d("iscsi_payload_bytes_total", "Payload of initiators, by its direction seen from the target.", "transport", "direction"),
		recovery:    d("recovery_events_total", "What has become of connections of iSCSI that were lost.", "event"),
	}
}

func (d *iscsiDescs) collect(st *target.Status, ch metrics) {
	for _, t := range st.ISCSI {
		ch.gauge(d.sessions, float64(t.Sessions), t.Name)
		ch.gauge(d.connections, float64(t.Connections), t.Name)
		for kind, n := range map[string]uint64{"read": t.Reads, "write": t.Writes, "other": t.Others} {
			ch.counter(d.commands, n, t.Name, kind)
		}
		ch.counter(d.failed, t.Failed, t.Name)
		ch.counter(d.aborted, t.Aborted, t.Name)
		ch.counter(d.payload, t.BytesIn, t.Name, "in")
		ch.counter(d.payload, t.BytesOut, t.Name, "out")
	}
	r := &st.Recovery
	for event, n := range map[string]uint64{
		"session_reinstated": r.Sessions, "connection_reinstated": r.Connections, "connection_lost": r.Lost, "task_reassigned": r.Tasks,
	} {
		ch.counter(d.recovery, n, event)
	}
}

// sessionDescs describe single sessions.
type sessionDescs struct {
	in, out, copied, commands, outstanding, noMemory, latency *prometheus.Desc
}

func newSessionDescs(d describe) sessionDescs {
	session := []string{"target", "initiator", "tsih", "transport"}
	return sessionDescs{
		in:          d("session_payload_in_bytes_total", "Payload received.", session...),
		out:         d("session_payload_out_bytes_total", "Payload sent.", session...),
		copied:      d("session_payload_copied_bytes_total", "Payload copied in user space.", session...),
		commands:    d("session_commands_total", "Commands answered.", append(session[:4:4], "kind")...),
		outstanding: d("session_outstanding_commands", "Commands in execution.", session...),
		noMemory:    d("session_no_memory_total", "Commands put off with BUSY for want of staging memory.", session...),
		latency:     d("session_latency_seconds", "Time from the arrival of a command to its response.", append(session[:4:4], "kind")...),
	}
}

// collect tells of the first of them.
func (d *sessionDescs) collect(all []target.SessionStatus, ch metrics) {
	all = all[:min(len(all), seriesLimit)]
	for _, s := range all {
		labels := []string{s.Target, s.Initiator, strconv.Itoa(int(s.TSIH)), s.Transport}
		ch.counter(d.in, s.BytesIn, labels...)
		ch.counter(d.out, s.BytesOut, labels...)
		ch.counter(d.copied, s.BytesCopied, labels...)
		ch.counter(d.noMemory, s.NoMemory, labels...)
		ch.gauge(d.outstanding, float64(s.Outstanding), labels...)
		for kind, n := range map[string]uint64{"read": s.Reads, "write": s.Writes, "other": s.Others} {
			ch.counter(d.commands, n, append(labels[:4:4], kind)...)
		}
		ch.histogram(d.latency, append(labels[:4:4], "read"), &s.ReadLatency)
		ch.histogram(d.latency, append(labels[:4:4], "write"), &s.WriteLatency)
	}
}
