package main

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"softiser/target"
)

// nvmeDescs describe subsystems, and the controllers of their hosts.
type nvmeDescs struct {
	namespaceUp, controllers, connectsRefused, proofsFailed, connections, commands *prometheus.Desc
	failed, reads, writes, read, written                                           *prometheus.Desc
	ctrl                                                                           controllerDescs
}

func newNVMeDescs(d describe) nvmeDescs {
	namespace := []string{"subsystem", "nsid", "volume"}
	return nvmeDescs{
		namespaceUp:     d("namespace_up", "1: the namespace is served; 0: it is configured, but could not be (status says why).", namespace...),
		controllers:     d("controllers", "Controllers that NVMe hosts have now.", "subsystem", "transport"),
		connectsRefused: d("nvme_connects_refused_total", "Connect commands of NVMe hosts that were refused, by status.", "status"),
		proofsFailed:    d("nvme_authentication_failures_total", "Authentications of NVMe hosts that have failed."),
		connections:     d("nvme_connections", "Connections of NVMe hosts now, one for each queue.", "transport"),
		commands:        d("nvme_commands_total", "Commands of NVMe hosts answered.", "transport"),
		failed:          d("nvme_failed_commands_total", "Of these, those that have failed.", "transport"),
		reads:           d("nvme_reads_total", "Of these, Read.", "transport"),
		writes:          d("nvme_writes_total", "Of these, Write.", "transport"),
		read:            d("nvme_read_bytes_total", "Bytes read by NVMe hosts.", "transport"),
		written:         d("nvme_written_bytes_total", "Bytes written by NVMe hosts.", "transport"),
		ctrl:            newControllerDescs(d),
	}
}

// collect tells of the namespaces, and of the first controllers; sums have all of them.
func (d *nvmeDescs) collect(st *target.Status, ch metrics) {
	for _, s := range st.Subsystems {
		for _, n := range s.Namespaces {
			ch.gauge(d.namespaceUp, up(n.Error == ""), s.NQN, strconv.Itoa(int(n.NSID)), n.Volume)
		}
	}
	count := map[[2]string]int{}
	for reason, n := range st.ConnectsRefused {
		ch.counter(d.connectsRefused, n, reason)
	}
	ch.counter(d.proofsFailed, st.ProofsFailed)
	for i, x := range st.Controllers {
		count[[2]string{x.Subsystem, x.Transport}]++
		if i >= seriesLimit {
			continue
		}
		labels := []string{x.Subsystem, x.Host, strconv.Itoa(int(x.ID)), x.Transport}
		ch.counter(d.ctrl.commands, x.Commands, labels...)
		ch.counter(d.ctrl.failed, x.Failed, labels...)
		ch.counter(d.ctrl.in, x.WriteBytes, labels...)
		ch.counter(d.ctrl.out, x.ReadBytes, labels...)
		ch.gauge(d.ctrl.queues, float64(x.Queues), labels...)
		ch.gauge(d.ctrl.open, float64(x.Outstanding), labels...)
	}
	for k, n := range count {
		ch.gauge(d.controllers, float64(n), k[0], k[1])
	}
	for _, t := range st.NVMe {
		ch.gauge(d.connections, float64(t.Connections), t.Name)
		ch.counter(d.commands, t.Commands, t.Name)
		ch.counter(d.failed, t.Failed, t.Name)
		ch.counter(d.reads, t.Reads, t.Name)
		ch.counter(d.writes, t.Writes, t.Name)
		ch.counter(d.read, t.ReadBytes, t.Name)
		ch.counter(d.written, t.WriteBytes, t.Name)
	}
}

// controllerDescs describe single controllers.
type controllerDescs struct {
	commands, failed, queues, open, in, out *prometheus.Desc
}

func newControllerDescs(d describe) controllerDescs {
	controller := []string{"subsystem", "host", "controller", "transport"}
	return controllerDescs{
		commands: d("controller_commands_total", "Commands answered.", controller...),
		failed:   d("controller_failed_commands_total", "Commands that have failed.", controller...),
		queues:   d("controller_io_queues", "I/O queues now.", controller...),
		open:     d("controller_outstanding_commands", "Commands in execution.", controller...),
		in:       d("controller_payload_in_bytes_total", "Bytes written by the host.", controller...),
		out:      d("controller_payload_out_bytes_total", "Bytes read by the host.", controller...),
	}
}
