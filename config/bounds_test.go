package config

import (
	"strings"
	"testing"
)

// Values that are possible and cannot be meant are named with their key, and what to write instead.
func TestOddValues(t *testing.T) {
	const ha = "ha:\n  node: n\n  store: /shared\n  groups: [{name: g, volumes: [d], fencing: node, grace: %}]\n"
	for section, odd := range map[string]map[string]string{
		"portals: [{listen: \"127.0.0.1:3260\", %}]": {
			"group: 0":                   "portals[0].group: 0 is no portal group: they are numbered from 1 to 65535; leave it out for 1",
			"group: -1":                  "portals[0].group: -1 is not between 1 and 65535",
			"group: 65536":               "portals[0].group: 65536 is not between 1 and 65535",
			"advertise: host:0":          "portals[0].advertise: \"host:0\": initiators cannot connect to port 0",
			"advertise: host:00":         "portals[0].advertise: \"host:00\": initiators cannot connect to port 00",
			"advertise: host:65536":      "portals[0].advertise: \"host:65536\" is no address",
			"advertise: \":3260\"":       "portals[0].advertise: \":3260\" is no address of one interface",
			"advertise: 0.0.0.0:3260":    "portals[0].advertise: \"0.0.0.0:3260\" is no address of one interface",
			"advertise: \"[::]:3260\"":   "portals[0].advertise: \"[::]:3260\" is no address of one interface",
			"advertise: 224.0.0.1:3260":  "portals[0].advertise: \"224.0.0.1:3260\" is no address of one interface",
			"send_buffer: 64":            "portals[0].send_buffer: 64B is not between 4KiB and 1GiB",
			"recv_buffer: 2GiB":          "portals[0].recv_buffer: 2GiB is not between 4KiB and 1GiB",
			"advertise: host:3260":       "",
			"advertise: \"[fd00::7]:1\"": "",
			"send_buffer: 0":             "",
			"group: 65535":               "",
		},
		"volumes: [{name: v, type: memory, size: 1MiB, %}]": {
			"qos: {burst: 1MiB}":                               "volumes[0].qos.burst: 1MiB: there is no bandwidth",
			"qos: {burst: 1MiB, iops: 10}":                     "volumes[0].qos.burst: 1MiB: there is no bandwidth",
			"qos: {burst_iops: 10}":                            "volumes[0].qos.burst_iops: 10: there is no iops",
			"qos: {burst_iops: 10, bandwidth: 1MiB}":           "volumes[0].qos.burst_iops: 10: there is no iops",
			"qos: {bandwidth: 100}":                            "volumes[0].qos.bandwidth: 100B a second is less than 4KiB",
			"qos: {iops: -1}":                                  "volumes[0].qos: limits cannot be negative",
			"block_size: 1024":                                 "volumes[0].block_size: ",
			"placement: sideways":                              "volumes[0].placement: \"sideways\" is not one of direct, verified",
			"block_size: 0":                                    "volumes[0].block_size: 0 is not a block size we serve",
			"phys_block_size: 0":                               "volumes[0].phys_block_size: 0 is no block size",
			"fault: {read_delay: 2h}":                          "volumes[0].fault.read_delay: 2h0m0s is more than 1h0m0s",
			"fault: {write_delay: -1s}":                        "volumes[0].fault: delays cannot be negative",
			"qos: {iops: 1, burst_iops: 1}":                    "",
			"qos: {iops: 1, burst_iops: -1}":                   "volumes[0].qos: limits cannot be negative",
			"qos: {bandwidth: 4095}":                           "volumes[0].qos.bandwidth: 4095B a second is less than 4KiB",
			"fault: {error_rate: 1}":                           "",
			"fault: {error_rate: 1.01}":                        "volumes[0].fault.error_rate: 1.01 is not a share between 0 and 1",
			"fault: {error_rate: -0.01}":                       "volumes[0].fault.error_rate: -0.01 is not a share between 0 and 1",
			"fault: {error_rate: .nan}":                        "volumes[0].fault.error_rate: NaN is not a share between 0 and 1",
			"fault: {read_delay: 1h, write_delay: 1h}":         "",
			"devices: [/dev/a]":                                "volumes[0]: vg, lv, devices",
			"vg: g":                                            "volumes[0]: vg, lv, devices",
			"lv: l":                                            "volumes[0]: vg, lv, devices",
			"qos: {bandwidth: 4KiB, burst: 1GiB}":              "",
			"qos: {iops: 0, bandwidth: 0, burst: 0}":           "",
			"fault: {read_delay: 8s, write_delay: 1ms}":        "",
			"block_size: 4KiB, phys_block_size: 4KiB, qos: {}": "",
		},
		"targets: [{iqn: \"iqn.2026-11.test:a\", %}]": {
			"redirect: host:0":           "targets[0].redirect: \"host:0\": initiators cannot connect to port 0",
			"redirect: \"[::]:3260\"":    "targets[0].redirect: \"[::]:3260\" is no address of one interface",
			"redirect: 192.0.2.2:3260":   "",
			"redirect: \"[fd00::]:326\"": "",
		},
		"iscsi: {%}": {
			"nop_interval: 1ns":   "iscsi.nop_interval: 1ns is less than 100ms; write a time with its unit, such as 15s",
			"nop_timeout: 1us":    "iscsi.nop_timeout: 1µs is less than 100ms",
			"login_timeout: 99ms": "iscsi.login_timeout: 99ms is less than 100ms",
			"login_timeout: 2h":   "iscsi.login_timeout: 2h0m0s is not between 0s and 1h0m0s",
			"nop_interval: 0s":    "",
			"nop_interval: 100ms": "",

			"nop_interval: 24h":                  "",
			"nop_interval: 24h1s":                "iscsi.nop_interval: 24h0m1s is not between 0s and 24h0m0s",
			"nop_timeout: 24h1s":                 "iscsi.nop_timeout: 24h0m1s is not between 0s and 24h0m0s",
			"login_timeout: 1h":                  "",
			"time2wait: 1h1s":                    "iscsi.time2wait: 1h0m1s is not between 0s and 1h0m0s",
			"time2retain: 1h":                    "",
			"time2retain: -1s":                   "iscsi.time2retain: -1s is not between 0s and 1h0m0s",
			"time2wait: 1500ms":                  "iscsi.time2wait: 1.5s: whole seconds are negotiated",
			"time2retain: 2500ms":                "iscsi.time2retain: 2.5s: whole seconds are negotiated",
			"queue_depth: 1024":                  "",
			"queue_depth: 1025":                  "iscsi.queue_depth: 1025 is not between 1 and 1024",
			"first_burst: 511":                   "iscsi.first_burst: 511B is not between 512B and 16777215B",
			"first_burst: 512":                   "",
			"max_burst: 16777215":                "",
			"max_burst: 16777216":                "iscsi.max_burst: 16MiB is not between 512B and 16777215B",
			"max_recv_data_segment: 511":         "iscsi.max_recv_data_segment: 511B is not between 512B and 16777215B",
			"max_recv_data_segment: 512":         "",
			"max_recv_data_segment: 16MiB":       "iscsi.max_recv_data_segment: 16MiB is not between 512B and 16777215B",
			"first_burst: 4KiB, max_burst: 4KiB": "",
			"first_burst: 8KiB, max_burst: 4KiB": "iscsi.first_burst: 8KiB is more than max_burst (4KiB)",
			"max_outstanding_r2t: 65535":         "",
			"max_outstanding_r2t: 65536":         "iscsi.max_outstanding_r2t: 65536 is not between 1 and 65535",
			"max_connections: 32":                "",
			"max_connections: 33":                "iscsi.max_connections: 33 is not between 1 and 32",
			"error_recovery_level: 3":            "iscsi.error_recovery_level: 3 is not between 0 and 2",
			"header_digest: [crc32c, none]":      "",
			"header_digest: [crc32c, md5]":       "iscsi.header_digest: \"md5\" is not one of none, crc32c",
			"data_digest: [sha1]":                "iscsi.data_digest: \"sha1\" is not one of none, crc32c",
		},
		"transport: {%}": {
			"crc: perhaps":         "transport.crc: \"perhaps\" is not one of required, offered, off",
			"zerocopy: perhaps":    "transport.zerocopy: \"perhaps\" is not one of auto, on, off",
			"fpdu: small":          "transport.fpdu: \"small\" is not one of auto, mss, big",
			"busy_poll_us: 0":      "",
			"busy_poll_us: auto":   "",
			"busy_poll_us: 10000":  "",
			"busy_poll_us: 10001":  "transport.busy_poll_us: \"10001\" is neither auto nor a number",
			"busy_poll_us: -1":     "transport.busy_poll_us: \"-1\" is neither auto nor a number",
			"busy_poll_us: always": "transport.busy_poll_us: \"always\" is neither auto nor a number",
			"ird: 256, ord: 256":   "",
			"ird: 257":             "transport.ird: 257 is not between 1 and 256",
			"ord: 257":             "transport.ord: 257 is not between 1 and 256",
		},
		"limits: {%}": {
			"discovery_age: 1ms": "limits.discovery_age: 1ms is less than 1s",
			"discovery_age: -1s": "limits.discovery_age: cannot be negative",
			"discovery_age: 0s":  "",

			"discovery_age: 1s":                             "",
			"sessions: 1048577":                             "limits.sessions: 1048577 is not between 1 and 1048576",
			"pending_logins: 65537":                         "limits.pending_logins: 65537 is not between 1 and 65536",
			"sessions: 1000, sessions_per_address: 1000":    "",
			"sessions: 1000, sessions_per_address: 1001":    "limits.sessions_per_address: 1001 is not between 0 and 1000",
			"sessions: 1000, reserved_sessions: 999":        "",
			"sessions: 1000, reserved_sessions: 1000":       "limits.reserved_sessions: 1000 is not between 0 and 999",
			"pending_logins: 100, pending_per_address: 100": "",
			"pending_logins: 100, pending_per_address: 101": "limits.pending_per_address: 101 is not between 0 and 100",
			"pending_per_address: -1":                       "limits.pending_per_address: -1 is not between 0 and",
		},
		"volumes: [{name: d, type: raw, path: /dev/d, size: 1GiB, wwid: \"60000000000000000000000000000001\", serial: s}]\n" + ha: {
			"0s":  "ha.groups[0].grace: 0s leaves commands no time; leave it out for 2s",
			"-1s": "ha.groups[0].grace: -1s is not between 0s and 1h0m0s",
			"24h": "ha.groups[0].grace: 24h0m0s is not between 0s and 1h0m0s",
			"1ms": "",
			"1h":  "",
		},
		"volumes: [{name: v, type: lvm, vg: g, lv: l, devices: [/dev/a], create: true, size: 1GiB, %}]": {
			"stripes: 128":                                      "",
			"stripes: 129":                                      "volumes[0].stripes: 129 must be between 1 and 128",
			"stripes: -1":                                       "volumes[0].stripes: -1 must be between 1 and 128",
			"stripes: 2, stripe_size: 4KiB":                     "",
			"stripes: 2, stripe_size: 2KiB":                     "volumes[0].stripe_size: 2KiB must be a power of two from 4KiB on",
			"stripes: 2, stripe_size: 12KiB":                    "volumes[0].stripe_size: 12KiB must be a power of two from 4KiB on",
			"stripes: 1, stripe_size: 4KiB":                     "volumes[0].stripe_size: needs stripes: 2 or more",
			"phys_block_size: 8KiB":                             "volumes[0].block_size: the blocks of a logical volume are those of its devices",
			"pool: p, pool_size: 1GiB":                          "",
			"error_when_full: true":                             "volumes[0].pool: missing",
			"pool: p, error_when_full: true":                    "volumes[0].pool_size: missing",
			"snapshots: {every: 1m, keep: 1, size: 64MiB}":      "",
			"snapshots: {every: 59s, keep: 1, size: 64MiB}":     "volumes[0].snapshots.every: 59s is less than 1m",
			"snapshots: {every: 1m, keep: 0, size: 64MiB}":      "volumes[0].snapshots.keep: 0 must be between 1 and",
			"snapshots: {every: 61500ms, keep: 1, size: 64MiB}": "volumes[0].snapshots.every: 1m1.5s is no whole number of seconds",
		},
		"portals: [{listen: \"127.0.0.1:3260\", group: 7}]\nvolumes: [{name: v, type: memory, size: 1MiB}]\ntargets: [{iqn: \"iqn.2026-11.test:a\", luns: [{lun: 1, volume: v, %}]}]": {
			"alua: standby":  "",
			"alua: sleeping": "targets[0].luns[0].alua: \"sleeping\" is not one of",
			"alua_groups: [{group: 7, state: standby}]":  "",
			"alua_groups: [{group: 7, state: sleeping}]": "targets[0].luns[0].alua_groups[0].state: \"sleeping\" is not one of",
			"alua_groups: [{group: 8, state: standby}]":  "targets[0].luns[0].alua_groups[0].group: no portal belongs to group 8",
		},
		"portals: [{listen: \"127.0.0.1:3260\", group: 7}]\nvolumes: [{name: v, type: memory, size: 1MiB}]\nsubsystems: [{nqn: \"nqn.2026-11.test:a\", namespaces: [{nsid: 1, volume: v, %}]}]": {
			"ana: inaccessible": "",
			"ana: sleeping":     "subsystems[0].namespaces[0].ana: \"sleeping\" is not one of",
			"ana_groups: [{group: 7, state: sleeping}]":  "subsystems[0].namespaces[0].ana_groups[0].state: \"sleeping\" is not one of",
			"ana_groups: [{group: 8, state: optimized}]": "subsystems[0].namespaces[0].ana_groups[0].group: no portal belongs to group 8",
		},
		"subsystems: [{nqn: \"nqn.2026-11.test:a\", %}]": {
			"serial: \"12345678901234567890\"":  "",
			"serial: \"123456789012345678901\"": "subsystems[0].serial: \"123456789012345678901\" has 21 characters, 20 are possible",
			"serial: \" ~\"":                    "",
			"serial: \"a\\x7f\"":                "subsystems[0].serial: \"a\\x7f\": a serial number is printable ASCII",
			"serial: \"a\\x1f\"":                "subsystems[0].serial: \"a\\x1f\": a serial number is printable ASCII",
			"min_cntlid: 1, max_cntlid: 1":      "",
			"min_cntlid: 2, max_cntlid: 1":      "subsystems[0].max_cntlid: 1 is less than min_cntlid, 2",
		},
	} {
		for text, want := range odd {
			_, err := Parse([]byte(strings.Replace(section, "%", text, 1)), "x.yaml")
			got := ""
			if err != nil {
				got = err.Error()
			}
			if (got == "") != (want == "") || !strings.Contains(got, want) || strings.Contains(got, "\n") {
				t.Errorf("%s: %q, want %q", text, got, want)
			}
		}
	}
}

// Port 0 is another port each time: what listens there is in nobody's way.
func TestPortsThatTheSystemChooses(t *testing.T) {
	for _, text := range []string{
		"portals: [{listen: '127.0.0.1:0'}, {listen: '127.0.0.1:0'}]",
		"portals: [{listen: '127.0.0.1:0'}]\nadmin: {metrics: 'localhost:0'}",
		"portals: [{listen: ':0'}]\nadmin: {metrics: '127.0.0.1:0'}",
	} {
		if _, err := Parse([]byte(text), "x.yaml"); err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
}
