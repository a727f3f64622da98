package main

import (
	"github.com/prometheus/client_golang/prometheus"

	"softiser/target"
	"softiser/target/scsi"
)

// volumeDescs describe volumes, wherever they are served.
type volumeDescs struct {
	reads, writes, read, written, size, latency                                      *prometheus.Desc
	placementCopied, mediumErrors, throttled, throttling, throttleTime, stagingWaits *prometheus.Desc
	workers, snapshots, snapshotTime, snapshotsKept, registrants                     *prometheus.Desc
}

func newVolumeDescs(d describe) volumeDescs {
	return volumeDescs{
		reads:           d("volume_reads_total", "Reads of the volume, by whichever LUN or namespace.", "volume"),
		writes:          d("volume_writes_total", "Writes of the volume, by whichever LUN or namespace.", "volume"),
		read:            d("volume_read_bytes_total", "Bytes read from the volume.", "volume"),
		written:         d("volume_written_bytes_total", "Bytes written to the volume.", "volume"),
		size:            d("volume_size_bytes", "Size of the volume.", "volume"),
		latency:         d("volume_latency_seconds", "Reads and writes of the volume by all LUNs and namespaces: time from the arrival of a command to its response.", "volume", "kind"),
		placementCopied: d("volume_placement_copied_bytes_total", "Bytes of writes that verified placement has copied.", "volume"),
		mediumErrors:    d("volume_medium_errors_total", "Errors of the medium that nothing has corrected.", "volume", "kind"),
		throttled:       d("volume_throttled_commands_total", "Commands that have waited for the rate limits of the volume.", "volume"),
		throttling:      d("volume_throttled_commands", "Commands that wait for the rate limits of the volume now.", "volume"),
		throttleTime:    d("volume_throttled_seconds_total", "Time that commands have waited for the rate limits, added up.", "volume"),
		stagingWaits:    d("volume_staging_waits_total", "Writes that have waited for their share of the staging memory.", "volume"),
		workers:         d("volume_workers", "Goroutines of the volume for commands that wait for storage.", "volume"),
		snapshots:       d("snapshots_total", "Snapshots of the volume that were due; failed: it could not be taken, or an old one not removed.", "volume", "result"),
		snapshotTime:    d("snapshot_last_timestamp_seconds", "When the newest scheduled snapshot of the volume was taken.", "volume"),
		snapshotsKept:   d("snapshots_kept", "Scheduled snapshots of the volume that there are.", "volume"),
		registrants:     d("volume_registrants", "Initiators and hosts that have registered for reservations.", "volume", "wire"),
	}
}

// collect tells of each volume what all of its places have done.
func (d *volumeDescs) collect(st *target.Status, ch metrics) {
	latencies := volumeLatencies(st)
	for _, v := range st.Volumes {
		for kind, n := range map[string]uint64{"read": v.Stats.ReadErrors, "write": v.Stats.WriteErrors, "verify": v.Stats.VerifyErrors} {
			ch.counter(d.mediumErrors, n, v.Name, kind)
		}
		ch.counter(d.throttled, v.Stats.Throttling.Commands, v.Name)
		ch.counter(d.stagingWaits, v.Stats.StagingWaits, v.Name)
		ch.gauge(d.throttling, float64(v.Stats.Throttling.Waiting), v.Name)
		ch <- prometheus.MustNewConstMetric(d.throttleTime, prometheus.CounterValue, v.Stats.Throttling.Waited.Seconds(), v.Name)
		ch.gauge(d.workers, float64(v.Stats.Workers), v.Name)
		l := latencies[v.Name]
		ch.histogram(d.latency, []string{v.Name, "read"}, l.reads...)
		ch.histogram(d.latency, []string{v.Name, "write"}, l.writes...)
		ch.counter(d.reads, v.Stats.Reads, v.Name)
		ch.counter(d.writes, v.Stats.Writes, v.Name)
		ch.counter(d.read, v.Stats.ReadBytes, v.Name)
		ch.counter(d.written, v.Stats.WriteBytes, v.Name)
		ch.counter(d.placementCopied, v.Stats.PlacementCopied, v.Name)
		ch.gauge(d.size, float64(v.Size), v.Name)
		if s := v.Snapshots; s != nil {
			ch.counter(d.snapshots, s.Taken, v.Name, "ok")
			ch.counter(d.snapshots, s.Failed, v.Name, "failed")
			ch.gauge(d.snapshotsKept, float64(s.Kept), v.Name)
			if !s.Time.IsZero() {
				ch.gauge(d.snapshotTime, float64(s.Time.Unix()), v.Name)
			}
		}
		registrants := map[string]int{"iSCSI": 0, "NVMe": 0}
		if v.Reservation != nil {
			for _, r := range v.Reservation.Registrants {
				registrants[r.Wire]++
			}
		}
		for wire, n := range registrants {
			ch.gauge(d.registrants, float64(n), v.Name, wire)
		}
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
