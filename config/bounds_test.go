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
			"block_size: 0":                                    "volumes[0].block_size: 0 is not a block size we serve",
			"phys_block_size: 0":                               "volumes[0].phys_block_size: 0 is no block size",
			"fault: {read_delay: 2h}":                          "volumes[0].fault.read_delay: 2h0m0s is more than 1h0m0s",
			"fault: {write_delay: -1s}":                        "volumes[0].fault: delays cannot be negative",
			"qos: {iops: 1, burst_iops: 1}":                    "",
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
		},
		"limits: {%}": {
			"discovery_age: 1ms": "limits.discovery_age: 1ms is less than 1s",
			"discovery_age: -1s": "limits.discovery_age: cannot be negative",
			"discovery_age: 0s":  "",
		},
		"volumes: [{name: d, type: raw, path: /dev/d, size: 1GiB, wwid: \"60000000000000000000000000000001\", serial: s}]\n" + ha: {
			"0s":  "ha.groups[0].grace: 0s leaves commands no time; leave it out for 2s",
			"-1s": "ha.groups[0].grace: -1s is not between 0s and 1h0m0s",
			"24h": "ha.groups[0].grace: 24h0m0s is not between 0s and 1h0m0s",
			"1ms": "",
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
