package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"softiser/config/examples"
)

func TestExamplesLoad(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "secrets"), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, secret := range map[string]string{"alice": "alice-has-a-secret\n", "target": "the-target-has-too\n"} {
		if err := os.WriteFile(filepath.Join(dir, "secrets", name), []byte(secret), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	entries, err := examples.Files.ReadDir(".")
	if err != nil || len(entries) < 4 {
		t.Fatalf("examples: %d files, %v", len(entries), err)
	}
	for _, e := range entries {
		text, err := examples.Files.ReadFile(e.Name())
		if err != nil {
			t.Fatal(err)
		}
		c, err := Parse(text, filepath.Join(dir, e.Name()))
		if err != nil {
			t.Errorf("%s:\n%v", e.Name(), err)
			continue
		}
		if len(c.Targets) == 0 || len(c.Portals) == 0 {
			t.Errorf("%s: %d targets on %d portals", e.Name(), len(c.Targets), len(c.Portals))
		}
	}
}

// production.yaml claims to show the defaults; hold it to that.
func TestProductionShowsTheDefaults(t *testing.T) {
	text, err := examples.Files.ReadFile("production.yaml")
	if err != nil {
		t.Fatal(err)
	}
	c, err := Parse(text, "production.yaml")
	if err != nil {
		t.Fatal(err)
	}
	d, err := Default()
	if err != nil {
		t.Fatal(err)
	}
	if c.Transport != d.Transport {
		t.Errorf("transport: %+v, defaults %+v", c.Transport, d.Transport)
	}
	if c.Limits != d.Limits {
		t.Errorf("limits: %+v, defaults %+v", c.Limits, d.Limits)
	}
	if c.ISCSI.QueueDepth != d.ISCSI.QueueDepth || c.ISCSI.FirstBurst != d.ISCSI.FirstBurst || c.ISCSI.MaxBurst != d.ISCSI.MaxBurst ||
		c.ISCSI.MaxRecvDataSegment != d.ISCSI.MaxRecvDataSegment || c.ISCSI.NopInterval != d.ISCSI.NopInterval || c.ISCSI.InitialR2T != d.ISCSI.InitialR2T {
		t.Errorf("iscsi: %+v, defaults %+v", c.ISCSI, d.ISCSI)
	}
	if d.Transport.CRC != "required" {
		t.Errorf("CRC is %q by default; the MPA CRC is the only check that iSER has", d.Transport.CRC)
	}
}

const head = `portals:
  - listen: 127.0.0.1:3260
volumes:
  - {name: a, type: memory, size: 1MiB}
  - {name: b, type: file, path: b.img, size: 1MiB, create: true}
targets:
  - iqn: iqn.2026-11.softiser:a
    luns:
      - {lun: 0, volume: a}
`

// What is wanted as a text is what stands in the file, whatever else YAML takes it for.
func TestTextsAsWritten(t *testing.T) {
	for _, written := range []string{"00012345", "0x1F", "1e5", "1_000", "true", "2026-11-29", "1.10", "~", "7"} {
		c, err := Parse([]byte(strings.Replace(head, "luns:", "alias: "+written+"\n    luns:", 1)), "x.yaml")
		want := strings.Trim(written, "~")
		if err != nil || c.Targets[0].Alias != want {
			t.Errorf("%s: %v, %+v", written, err, c)
		}
	}
	two := "  - {name: 007, type: memory, size: 1MiB, serial: 0012, wwid: 60000000000000000000000000000001}\n" +
		"  - {name: 7, type: memory, size: 1MiB, serial: 10, wwid: 60000000000000000000000000000002}\ntargets:"
	c, err := Parse([]byte(strings.Replace(head, "targets:", two, 1)), "x.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if v := c.Volumes[2]; v.Name != "007" || v.Serial != "0012" || v.WWID != "60000000000000000000000000000001" {
		t.Errorf("%+v", v)
	}
	if _, err := Parse(nil, ""); err != nil {
		t.Error(err)
	}
	if _, err := Parse([]byte("# nothing\n---\n"), ""); err != nil {
		t.Error(err)
	}
}

func TestParseRefuses(t *testing.T) {
	for _, tc := range []struct {
		name, old, new string
		want           []string // parts of the message, line first
	}{
		{"unknown key", "size: 1MiB}", "sise: 1MiB}", []string{"x.yaml:4:", "volumes[0].sise", "unknown key", `did you mean "size"?`}},
		{"unknown section", "portals:", "portal:", []string{"x.yaml:1:", "portal", "unknown key"}},
		{"key twice", "    luns:", "    alias: x\n    alias: y\n    luns:", []string{"x.yaml:9:", "targets[0].alias", "stands twice", "line 8"}},
		{"bare unit", "size: 1MiB}", "size: 1M}", []string{"x.yaml:4:", "volumes[0].size", "ambiguous", "1MiB", "1MB"}},
		{"no size", "size: 1MiB}", "size: lots}", []string{"x.yaml:4:", "is not a size"}},
		{"odd size", "size: 1MiB}", "size: 1000B}", []string{"x.yaml:4:", "not a whole number of blocks"}},
		{"missing size", ", size: 1MiB}", "}", []string{"x.yaml:4:", "volumes[0].size", "missing"}},
		{"not a list", "  - listen: 127.0.0.1:3260", "  listen: 127.0.0.1:3260", []string{"x.yaml:2:", "portals", "expected a list"}},
		{"not a bool", "create: true", "create: maybe", []string{"x.yaml:5:", "volumes[1].create", "true or false"}},
		{"not a number", "lun: 0", "lun: zero", []string{"x.yaml:9:", "targets[0].luns[0].lun", "whole number"}},
		{"volume type", "type: memory", "type: tape", []string{"x.yaml:4:", "volumes[0].type", "file, raw, memory, null or lvm"}},
		{"lvm layout", "type: memory, size: 1MiB", "type: lvm, vg: v, lv: l, devices: [/d], stripes: 2", []string{"x.yaml:4:", "volumes[0]", "add create: true"}},
		{"lvm written through", "type: memory, size: 1MiB", "type: lvm, vg: v, lv: l, devices: [/d], write_through: true", []string{"x.yaml:4:", "volumes[0].write_through", "flushes"}},
		{"lvm blocks", "type: memory, size: 1MiB", "type: lvm, vg: v, lv: l, devices: [/d], block_size: 4096", []string{"x.yaml:4:", "volumes[0].block_size", "those of its devices"}},
		{"lvm locked", "type: memory, size: 1MiB", "type: lvm, vg: v, lv: l, devices: [/d], lock: true, rotational: true, fault: {seed: 1, error_rate: 0.5}", []string{"x.yaml:4:", "volumes[0].lock", "volumes[0].rotational", "volumes[0].fault"}},
		{"lvm layout elsewhere", "type: memory,", "type: memory, pool: p,", []string{"x.yaml:4:", "belong to type: lvm"}},
		{"lvm pool", "type: memory, size: 1MiB", "type: lvm, vg: v, lv: l, devices: [/d], create: true, size: 1GiB, pool_size: 1GiB", []string{"x.yaml:4:", "volumes[0].pool", "missing"}},
		{"lvm pool size", "type: memory, size: 1MiB", "type: lvm, vg: v, lv: l, devices: [/d], create: true, size: 1GiB, pool: p, stripes: 2", []string{"x.yaml:4:", "volumes[0].pool_size", "missing"}},
		{"lvm pool itself", "type: memory, size: 1MiB", "type: lvm, vg: v, lv: l, devices: [/d], create: true, size: 1GiB, pool: l", []string{"x.yaml:4:", "volumes[0].pool", "the volume itself"}},
		{"lvm stripes", "type: memory, size: 1MiB", "type: lvm, vg: v, lv: l, devices: [/d], create: true, size: 1GiB, stripes: 999", []string{"x.yaml:4:", "volumes[0].stripes", "128"}},
		{"lvm stripe size", "type: memory, size: 1MiB", "type: lvm, vg: v, lv: l, devices: [/d], create: true, size: 1GiB, stripes: 2, stripe_size: 5KiB", []string{"x.yaml:4:", "volumes[0].stripe_size", "power of two"}},
		{"protocol", "127.0.0.1:3260", "127.0.0.1:3260\n    protocols: [iscsi, nvme]", []string{"x.yaml:3:", "portals[0].protocols[1]", "iscsi, iser, nvme-tcp, nvme-rdma"}},
		{"targets that nobody reaches", "127.0.0.1:3260", "127.0.0.1:3260\n    protocols: [nvme-rdma]", []string{"targets", "no portal speaks iscsi or iser"}},
		{"subsystems that nobody reaches", "127.0.0.1:3260", "127.0.0.1:3260\n    protocols: [iser]\nsubsystems:\n  - {nqn: nqn.2026-11.softiser:a, namespaces: [{nsid: 1, volume: a}]}", []string{"subsystems", "no portal speaks nvme-tcp or nvme-rdma"}},
		{"volume twice", "name: b", "name: a", []string{"x.yaml:5:", "volumes[1].name", "already the name of volumes[0]"}},
		{"path twice", "targets:", "  - {name: c, type: file, path: ./b.img, size: 1MiB, create: true}\ntargets:", []string{"x.yaml:6:", "volumes[2].path", "already backs volumes[1]"}},
		{"wwid twice", "{name: a, type: memory, size: 1MiB}\n", "{name: a, type: memory, size: 1MiB, wwid: 60000000000000000000000000000001}\n  - {name: c, type: memory, size: 1MiB, wwid: 60000000000000000000000000000001}\n", []string{"x.yaml:5:", "volumes[1].wwid", "already the identifier"}},
		{"wwid form", "type: memory,", "type: memory, wwid: 12,", []string{"x.yaml:4:", "NAA 6"}},
		{"iqn twice", "    luns:\n", "    luns: []\n  - iqn: iqn.2026-11.softiser:a\n    luns:\n", []string{"x.yaml:9:", "targets[1].iqn", "already the name"}},
		{"lun twice", "      - {lun: 0, volume: a}", "      - {lun: 0, volume: a}\n      - {lun: 0, volume: b}", []string{"x.yaml:10:", "targets[0].luns[1].lun", "LUN 0"}},
		{"served twice", "volume: a}", "volume: a}\n      - {lun: 1, volume: a}", []string{"x.yaml:10:", "targets[0].luns[1].volume", "a is served as targets[0].luns[0] already", "several portals"}},
		{"served twice, once read-only", "volume: a}", "volume: a, read_only: true}\n      - {lun: 1, volume: a}", []string{"x.yaml:10:", "targets[0].luns[1].volume", "read_only: true at every LUN"}},
		{"served thrice", "volume: a}", "volume: a}\n      - {lun: 1, volume: b}\n      - {lun: 2, volume: a, read_only: true}", []string{"x.yaml:11:", "targets[0].luns[2].volume"}},
		{"lv twice", "{name: a, type: memory, size: 1MiB}\n", "{name: a, type: lvm, vg: v, lv: l, devices: [/d]}\n  - {name: c, type: lvm, vg: v, lv: l, devices: [/d]}\n", []string{"x.yaml:5:", "volumes[1].lv", "v/l already backs volumes[0]"}},
		{"no rate", "type: memory,", "type: memory, fault: {error_rate: .nan},", []string{"x.yaml:4:", "volumes[0].fault.error_rate", "not a share"}},
		{"tls of nothing", "127.0.0.1:3260", "127.0.0.1:3260\n    tls:", []string{"x.yaml:3:", "portals[0].tls", "is empty"}},
		{"mutual of nothing", "    luns:", "    auth: {mutual: }\n    luns:", []string{"x.yaml:8:", "targets[0].auth.mutual", "is empty"}},
		{"metrics on all", "volumes:", "admin: {metrics: \":3260\"}\nvolumes:", []string{"x.yaml:3:", "admin.metrics", "portals[0], 127.0.0.1:3260"}},
		{"lun range", "lun: 0", "lun: 16384", []string{"x.yaml:9:", "between 0 and 16383"}},
		{"alua group", "volume: a}", "volume: a, alua_groups: [{group: 9, state: standby}]}", []string{"x.yaml:9:", "targets[0].luns[0].alua_groups[0].group", "no portal belongs to group 9"}},
		{"alua state", "volume: a}", "volume: a, alua_groups: [{group: 1, state: asleep}]}", []string{"x.yaml:9:", "alua_groups[0].state", "standby"}},
		{"alua mode", "    luns:\n", "    alua_mode: both\n    luns:\n", []string{"x.yaml:8:", "targets[0].alua_mode", "implicit, explicit"}},
		{"no such volume", "volume: a", "volume: aa", []string{"x.yaml:9:", `no volume "aa"`, `did you mean "a"?`}},
		{"iqn form", "iqn.2026-11.softiser:a", "disk", []string{"x.yaml:7:", "no iSCSI name", "iqn.YYYY-MM"}},
		{"iqn month", "iqn.2026-11", "iqn.2026-13", []string{"x.yaml:7:", "no iSCSI name"}},
		{"iqn case", "softiser:a", "softiser:A", []string{"x.yaml:7:", "lower case"}},
		{"address", "127.0.0.1:3260", "127.0.0.1", []string{"x.yaml:2:", "portals[0].listen", "host:port"}},
		{"all interfaces by a star", "127.0.0.1:3260", "\"*:3260\"", []string{"x.yaml:2:", "portals[0].listen", `"[::]:3260"`, "0.0.0.0:3260"}},
		{"RoCE by a star", "volumes:", "  - listen: roce://*:4791\nvolumes:", []string{"x.yaml:3:", "portals[1].listen"}},
		{"brackets around IPv4", "127.0.0.1:3260", "\"[127.0.0.1]:3260\"", []string{"x.yaml:2:", "portals[0].listen", "write 127.0.0.1:3260"}},
		{"RoCE with brackets around IPv4", "volumes:", "  - listen: roce://[127.0.0.2]\nvolumes:", []string{"x.yaml:3:", "portals[1].listen", "brackets are for IPv6"}},
		{"numbers that are no address", "127.0.0.1:3260", "300.1.1.1:3260", []string{"x.yaml:2:", "portals[0].listen", "from 0 to 255"}},
		{"three numbers", "127.0.0.1:3260", "10.0.1:3260", []string{"portals[0].listen", "four numbers"}},
		{"portal twice", "volumes:", "  - listen: 127.0.0.1:3260\nvolumes:", []string{"x.yaml:3:", "portals[1].listen", "already the address of portals[0]"}},
		{"network", "    luns:", "    acl: {networks: [10.0.0.0/33]}\n    luns:", []string{"x.yaml:8:", "targets[0].acl.networks[0]", "no network"}},
		{"binding to nobody", "    luns:", "    acl: {bind: [{initiator: \"iqn.*\", users: []}]}\n    luns:", []string{"targets[0].acl.bind[0].users", "missing"}},
		{"binding to a stranger", "    luns:", "    acl: {bind: [{initiator: \"iqn.*\", users: [eve]}]}\n    luns:", []string{"targets[0].acl.bind[0].users[0]", "no CHAP user"}},
		{"binding of nothing", "    luns:", "    acl: {bind: [{users: [eve]}]}\n    luns:", []string{"targets[0].acl.bind[0].initiator", "no pattern"}},
		{"chap without users", "    luns:", "    auth: {method: chap}\n    luns:", []string{"x.yaml:8:", "targets[0].auth.users", "at least one user"}},
		{"users without chap", "    luns:", "    auth: {users: [{name: u, secret_env: SOFTISER_TEST_SECRET}]}\n    luns:", []string{"x.yaml:8:", "method: chap"}},
		{"secret missing", "    luns:", "    auth: {method: chap, users: [{name: u}]}\n    luns:", []string{"x.yaml:8:", "no secret"}},
		{"secret file missing", "    luns:", "    auth: {method: chap, users: [{name: u, secret_file: /nonexistent/s}]}\n    luns:", []string{"x.yaml:8:", "secret_file", "/nonexistent/s"}},
		{"secret short", "    luns:", "    auth: {method: chap, users: [{name: u, secret_env: SOFTISER_TEST_SHORT}]}\n    luns:", []string{"x.yaml:8:", "has 5 bytes", "at least 12"}},
		{"secret reflected", "    luns:", "    auth: {method: chap, users: [{name: u, secret_env: SOFTISER_TEST_SECRET}], mutual: {name: t, secret_env: SOFTISER_TEST_SECRET}}\n    luns:", []string{"x.yaml:8:", "same secret as user"}},
		{"algorithm", "    luns:", "    auth: {method: chap, algorithms: [md4], users: [{name: u, secret_env: SOFTISER_TEST_SECRET}]}\n    luns:", []string{"x.yaml:8:", `"md4" is not one of md5`}},
		{"first burst", "targets:", "iscsi: {first_burst: 2MiB}\ntargets:", []string{"x.yaml:6:", "iscsi.first_burst", "more than max_burst"}},
		{"crc", "targets:", "transport: {crc: maybe}\ntargets:", []string{"x.yaml:6:", "required, offered, off"}},
		{"busy_poll_us, a word", "targets:", "transport: {busy_poll_us: always}\ntargets:", []string{"x.yaml:6:", `"always" is neither auto nor`}},
		{"busy_poll_us, too long", "targets:", "transport: {busy_poll_us: 10001}\ntargets:", []string{"x.yaml:6:", "0 (never) to 10000"}},
		{"half a second", "targets:", "iscsi: {time2retain: 1500ms}\ntargets:", []string{"x.yaml:6:", "iscsi.time2retain", "whole seconds"}},
		{"no time for an answer", "targets:", "iscsi: {nop_timeout: 0s}\ntargets:", []string{"x.yaml:6:", "iscsi.nop_timeout", "cannot be 0"}},
		{"negative duration", "targets:", "iscsi: {nop_interval: -5s}\ntargets:", []string{"x.yaml:6:", "iscsi.nop_interval", "-5s is not between 0s and 24h0m0s"}},
		{"duration", "targets:", "iscsi: {login_timeout: 5}\ntargets:", []string{"x.yaml:6:", "is not a duration"}},
		{"two documents", "targets:", "---\ntargets:", []string{"x.yaml:6", "second document"}},
		{"IPv6 without quotes", "127.0.0.1:3260", "[::]:3260", []string{"x.yaml", `quoted, as in listen: "[::]:3260"`}},
		{"IPv6 without quotes, in a line", "  - listen: 127.0.0.1:3260", "  - {listen: [fd00::7]:3260}", []string{"x.yaml", `quoted, as in listen: "[::]:3260"`}},
		{"no text", "portals:", "\x7fELF\x00portals:", []string{"x.yaml", "no text"}},
		{"no UTF-8", "portals:", "\xff\xfeportals:", []string{"x.yaml", "no text"}},
		{"portal by name", "volumes:", "  - listen: localhost:3260\nvolumes:", []string{"x.yaml:3:", "portals[1].listen", "localhost:3260 is already the address of portals[0]"}},
		{"portal spelt otherwise", "volumes:", "  - listen: \"[::ffff:127.0.0.1]:03260\"\nvolumes:", []string{"portals[1].listen", "already the address of portals[0]"}},
		{"portal covered by another spelling", "volumes:", "  - listen: \"[0::0]:3260\"\nvolumes:", []string{"portals[1].listen", "overlaps with 127.0.0.1:3260"}},
		{"metrics on a portal by name", "targets:", "admin: {metrics: \"LocalHost:3260\"}\ntargets:", []string{"admin.metrics", "already the address of portals[0]"}},
		{"more than an integer holds", "targets:", "limits: {sessions: 18446744073709551615}\ntargets:", []string{"limits.sessions", "18446744073709551615 is too large"}},
		{"metrics on a portal", "targets:", "admin: {metrics: \"127.0.0.1:3260\"}\ntargets:", []string{"x.yaml:6:", "admin.metrics", "already the address of portals[0]"}},
		{"a long socket", "targets:", "admin: {socket: /" + strings.Repeat("s", 107) + "}\ntargets:", []string{"x.yaml:6:", "admin.socket", "108 bytes", "at most 107"}},
		{"tab", "targets:", "\ttargets:", []string{"x.yaml", "tab"}},
		{"bare null", "type: memory", "type: null", []string{"x.yaml:4:", "volumes[0].type", "in quotes"}},
		{"memory written through", "type: memory,", "type: memory, write_through: true,", []string{"x.yaml:4:", "volumes[0].write_through", "survives"}},
		{"memory preallocated", "type: memory,", "type: memory, preallocate: true,", []string{"x.yaml:4:", "volumes[0].preallocate", "only files"}},
		{"null locked", "type: memory,", "type: \"null\", lock: true,", []string{"x.yaml:4:", "volumes[0].lock"}},
		{"raw huge", "type: memory,", "type: raw, path: /dev/x, huge_pages: true,", []string{"x.yaml:4:", "volumes[0].huge_pages"}},
		{"RoCE everywhere", "volumes:", "  - listen: roce://0.0.0.0\nvolumes:", []string{"x.yaml:3:", "portals[1].listen", "no address of one interface"}},
		{"RoCE twice", "volumes:", "  - listen: roce://127.0.0.1\n  - listen: roce://127.0.0.1:3260\nvolumes:", []string{"portals[2].listen", "already the address of portals[1]"}},
		{"RoCE and TCP", "volumes:", "  - listen: roce://[::1]\n    protocols: [iser, iscsi]\n    freebind: true\nvolumes:", []string{"portals[1].protocols[1]", "iser, nvme-rdma", "portals[1].freebind"}},
		{"portal covered", "volumes:", "  - listen: 0.0.0.0:3260\nvolumes:", []string{"x.yaml:3:", "portals[1].listen", "0.0.0.0:3260 overlaps with 127.0.0.1:3260"}},
		{"more than any integer holds", "targets:", "limits: {sessions: 99999999999999999999}\ntargets:", []string{"limits.sessions", "99999999999999999999 is too large"}},
		{"a volume's name of two lines", "name: b", "name: \"b\\nc\"", []string{"x.yaml:5:", "volumes[1].name", "cannot be shown"}},
		{"a volume's name that is no part of a path", "name: b", "name: /", []string{"x.yaml:5:", "volumes[1].name", "alone is no name"}},
		{"an address that initiators cannot have, of an interface", "volumes:", "    advertise: \"[ff02::1%lo]:3260\"\nvolumes:", []string{"portals[0].advertise", "no address of one interface"}},
		{"a volume's name that colours the terminal", "name: b", "name: \"\\e[31mb\"", []string{"volumes[1].name", `"\x1b[31mb"`}},
		{"an alias that ends on the wire", "    luns:", "    alias: \"x\\0TargetName=y\"\n    luns:", []string{"x.yaml:8:", "targets[0].alias", "can be shown"}},
		{"a long alias", "    luns:", "    alias: " + strings.Repeat("ü", 128) + "\n    luns:", []string{"targets[0].alias", "255 bytes"}},
		{"iqn with a comma", "softiser:a", "softiser:a,b", []string{"x.yaml:7:", "targets[0].iqn", "exclude"}},
		{"yaml syntax", "portals:", "portals: [", []string{"x.yaml", "line"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Setenv("SOFTISER_TEST_SECRET", "long-enough-secret")
			t.Setenv("SOFTISER_TEST_SHORT", "short")
			text := strings.Replace(head, tc.old, tc.new, 1)
			if text == head {
				t.Fatalf("%q does not occur in the text", tc.old)
			}
			_, err := Parse([]byte(text), "x.yaml")
			if err == nil {
				t.Fatal("accepted")
			}
			for _, w := range tc.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("message lacks %q:\n%v", w, err)
				}
			}
		})
	}
}

// Numbers are decimal, as sizes are, whatever YAML 1.1 takes them for.
func TestLeadingZeros(t *testing.T) {
	c, err := Parse([]byte("limits: {workers: 010, sessions: 00000900}\niscsi: {max_outstanding_r2t: 08, error_recovery_level: 00}"), "")
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("SOFTISER_LIMITS_PENDING_LOGINS", "010")
	if c, err := Default(); err != nil || c.Limits.PendingLogins != 10 {
		t.Errorf("from the environment: %v, %+v", err, c)
	}
	if c.Limits.Workers != 10 || c.Limits.Sessions != 900 || c.ISCSI.MaxOutstandingR2T != 8 || c.ISCSI.ErrorRecoveryLevel != 0 {
		t.Errorf("%+v, %+v", c.Limits, c.ISCSI)
	}
}

func TestParseReportsEverythingAtOnce(t *testing.T) {
	text := strings.NewReplacer("type: memory", "type: tape", "volume: a", "volume: z", "127.0.0.1:3260", "nowhere").Replace(head)
	_, err := Parse([]byte(text), "x.yaml")
	var ps Problems
	if !errors.As(err, &ps) || len(ps) != 3 {
		t.Fatalf("%d problems, want 3:\n%v", len(ps), err)
	}
	for i := 1; i < len(ps); i++ {
		if ps[i].Line < ps[i-1].Line {
			t.Errorf("not in file order:\n%v", err)
		}
	}
}

func TestEnvironmentOverrides(t *testing.T) {
	t.Setenv("SOFTISER_TRANSPORT_CRC", "off")
	t.Setenv("SOFTISER_ISCSI_FIRST_BURST", "8KiB")
	t.Setenv("SOFTISER_ISCSI_NOP_INTERVAL", "3s")
	t.Setenv("SOFTISER_ISCSI_DATA_DIGEST", "crc32c,none")
	c, err := Parse([]byte(head+"transport: {crc: offered}\n"), "x.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if c.Transport.CRC != "off" || c.ISCSI.FirstBurst != 8192 || c.ISCSI.NopInterval.D() != 3*time.Second || c.ISCSI.DataDigest[0] != "crc32c" {
		t.Errorf("environment ignored: %+v %+v", c.Transport, c.ISCSI)
	}
	t.Setenv("SOFTISER_LIMITS_SESSIONS", "many")
	if _, err := Parse([]byte(head), "x.yaml"); err == nil || !strings.Contains(err.Error(), `SOFTISER_LIMITS_SESSIONS is "many"`) {
		t.Errorf("a bad environment value: %v", err)
	}
	t.Setenv("SOFTISER_LIMITS_SESSIONS", "0")
	if _, err := Parse([]byte(head), "x.yaml"); err == nil || strings.Contains(err.Error(), "x.yaml") || !strings.Contains(err.Error(), "says the environment variable SOFTISER_LIMITS_SESSIONS") {
		t.Errorf("a value out of range: %v", err)
	}
}

func TestPathsAreRelativeToTheFile(t *testing.T) {
	c, err := Parse([]byte(head), "/etc/softiser/x.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if got := c.Volumes[1].Path; got != "/etc/softiser/b.img" {
		t.Errorf("path %q", got)
	}
}

func TestSecretsAreReadAndNotPrinted(t *testing.T) {
	t.Setenv("SOFTISER_TEST_SECRET", "long-enough-secret")
	c, err := Parse([]byte(strings.Replace(head, "    luns:", "    auth: {method: chap, users: [{name: u, secret_env: SOFTISER_TEST_SECRET}]}\n    luns:", 1)), "x.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if got := string(c.Targets[0].Auth.Users[0].Secret()); got != "long-enough-secret" {
		t.Errorf("secret %q", got)
	}
	if out := c.YAML(); strings.Contains(out, "long-enough") || !strings.Contains(out, "SOFTISER_TEST_SECRET") {
		t.Errorf("printed configuration:\n%s", out)
	}
}

// A CHAP secret can be found by trial from one login that somebody has recorded, unless it is long.
func TestShortSecret(t *testing.T) {
	text := strings.Replace(head, "    luns:", "    auth: {method: chap, users: [{name: u, secret_env: SOFTISER_TEST_SECRET}]}\n    luns:", 1)
	for secret, ok := range map[string]bool{"eleven byte": false, "twelve bytes": true} {
		t.Setenv("SOFTISER_TEST_SECRET", secret)
		if _, err := Parse([]byte(text), "x.yaml"); (err == nil) != ok || err != nil && !strings.Contains(err.Error(), "the secret has 11 bytes") {
			t.Errorf("%q: %v", secret, err)
		}
	}
}

// What check prints is itself a configuration that means the same.
func TestPrintedConfigurationLoads(t *testing.T) {
	const nothing = "# nothing is configured\n"
	const empty = "targets: [{iqn: iqn.2026-11.x:a}]\nsubsystems: [{nqn: nqn.2026-11.x:a}]\n"
	for _, text := range []string{head, nothing, empty} {
		c, err := Parse([]byte(text), "/x/x.yaml")
		if err != nil {
			t.Fatal(err)
		}
		again, err := Parse([]byte(c.YAML()), "/x/x.yaml")
		if err != nil {
			t.Fatalf("%v\n%s", err, c.YAML())
		}
		if c.YAML() != again.YAML() {
			t.Errorf("first:\n%s\nsecond:\n%s", c.YAML(), again.YAML())
		}
		if b, err := json.Marshal(c); err != nil || bytes.Contains(b, []byte("null")) {
			t.Errorf("%s, %v", b, err)
		}
	}
}

func TestParseSize(t *testing.T) {
	for in, want := range map[string]Size{
		"0": 0, "512": 512, "512B": 512, "4KiB": 4096, "4 KiB": 4096, "4kB": 4000, "1.5GiB": 3 << 29, "2TiB": 2 << 40, "1_000": 1000, "1MB": 1e6,
	} {
		if got, err := ParseSize(in); err != nil || got != want {
			t.Errorf("ParseSize(%q) = %d, %v; want %d", in, got, err, want)
		}
	}
	for _, in := range []string{"", "k", "4k", "4K", "1m", "1G", "1t", "-1KiB", "1.5", "1XB", "9EiB1", "16EiB", "GiB"} {
		if got, err := ParseSize(in); err == nil {
			t.Errorf("ParseSize(%q) = %d; want an error", in, got)
		}
	}
	for _, s := range []Size{0, 1, 512, 1000, 4096, 3 << 29, 1 << 40, 1<<63 - 1} {
		if got, err := ParseSize(s.String()); err != nil || got != s {
			t.Errorf("ParseSize(%q) = %d, %v", s.String(), got, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(head))
	entries, _ := examples.Files.ReadDir(".")
	for _, e := range entries {
		text, _ := examples.Files.ReadFile(e.Name())
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		c, err := Parse(text, "f.yaml")
		if (c == nil) == (err == nil) {
			t.Fatalf("config %v, error %v", c, err)
		}
	})
}

// A volume that nobody can write may have several LUNs.
func TestReadOnlyTwice(t *testing.T) {
	for _, change := range []*strings.Replacer{
		strings.NewReplacer("volume: a}", "volume: a, read_only: true}\n      - {lun: 1, volume: a, read_only: true}"),
		strings.NewReplacer("size: 1MiB}", "size: 1MiB, read_only: true}", "volume: a}", "volume: a}\n      - {lun: 1, volume: a}", ", create: true", ""),
	} {
		text := change.Replace(head)
		if _, err := Parse([]byte(text), "x.yaml"); err != nil {
			t.Errorf("%s\n%v", text, err)
		}
	}
}

// TestUnreadableFiles: a file that the user of the process may not read is told together with what to do about it.
func TestUnreadableFiles(t *testing.T) {
	if err := unreadable(&fs.PathError{Op: "open", Path: "x.yaml", Err: syscall.EACCES}); !errors.Is(err, fs.ErrPermission) || !strings.Contains(err.Error(), fmt.Sprintf("user %d, who may not read it", os.Geteuid())) {
		t.Errorf("%v", err)
	}
	if err := unreadable(fs.ErrNotExist); err != fs.ErrNotExist { //nolint:errorlint // this very one
		t.Errorf("%v", err)
	}
	if os.Geteuid() == 0 {
		t.Skip("root may read everything")
	}
	f := filepath.Join(t.TempDir(), "c.yaml")
	if err := os.WriteFile(f, []byte(head), 0o200); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(f); err == nil || !strings.Contains(err.Error(), "who may not read it") {
		t.Errorf("a configuration: %v", err)
	}
	if _, err := readSecret(f); err == nil || !strings.Contains(err.Error(), "who may not read it") {
		t.Errorf("a secret: %v", err)
	}
}

// A secret that every user of the machine can read is none; a group may read it.
func TestSecretFilesAreSecret(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "s")
	text := strings.Replace(head, "    luns:", "    auth: {method: chap, users: [{name: u, secret_file: s}]}\n    luns:", 1)
	for mode, ok := range map[os.FileMode]bool{0o600: true, 0o400: true, 0o640: true, 0o660: true, 0o644: false, 0o604: false, 0o602: false, 0o666: false} {
		if err := os.WriteFile(file, []byte("long-enough-secret\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(file, mode); err != nil {
			t.Fatal(err)
		}
		_, err := Parse([]byte(text), filepath.Join(dir, "x.yaml"))
		if ok && err != nil || !ok && (err == nil || !strings.Contains(err.Error(), fmt.Sprintf("mode %04o", mode)) || !strings.Contains(err.Error(), "chmod o= ")) {
			t.Errorf("mode %04o: %v", mode, err)
		}
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
	}
}

// A variable that was meant to override something and does not is an error.
func TestMistypedEnvironment(t *testing.T) {
	for _, c := range []struct{ name, want string }{
		{"SOFTISER_LIMITS_SESIONS", `did you mean "SOFTISER_LIMITS_SESSIONS"?`},
		{"SOFTISER_LIMIT_SESSIONS", `did you mean "SOFTISER_LIMITS_SESSIONS"?`},
		{"SOFTISER_PORTALS", "overrides nothing; with this prefix"},
		{"SOFTISER_ADMIN_SOKCET", `did you mean "SOFTISER_ADMIN_SOCKET"?`},
		{"SOFTISER_TEST_SECRET", ""}, // named by the file
		{"SOFTISER_ALICE", ""},       // likewise
		{"SOFTISER_LOGGING_LEVEL", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Setenv("SOFTISER_ALICE", "long-enough-secret")
			t.Setenv(c.name, map[bool]string{true: "long-enough-secret", false: "info"}[c.want == "" && !strings.Contains(c.name, "LEVEL")])
			_, err := Parse([]byte(strings.Replace(head, "    luns:", "    auth: {method: chap, users: [{name: u, secret_env: SOFTISER_ALICE}]}\n    luns:", 1)), "x.yaml")
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.name+": ") || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
}

func TestWarnings(t *testing.T) {
	const target = "targets: [{iqn: iqn.2026-11.test:a, luns: [{lun: 0, volume: v}]%s}]\nvolumes: [{name: v, type: memory, size: 1MiB}]\nportals: [%s]\n"
	for _, c := range []struct {
		portals, rest string
		warn          bool
	}{
		{"{listen: 127.0.0.1:3260}", "", false},
		{`{listen: "[::1]:3260"}`, "", false},
		{"{listen: localhost:3260}", "", false},
		{"{listen: 0.0.0.0:3260}", "", true},
		{`{listen: ":3260"}`, "", true},
		{`{listen: "[::]:3260"}`, "", true},
		{"{listen: 192.0.2.1:3260}", "", true},
		{"{listen: 127.0.0.1:3260}, {listen: 192.0.2.1:3260}", "", true},
		{"{listen: 127.0.0.1:3260}, {listen: 192.0.2.1:3260}", ", portals: [127.0.0.1:3260]", false},
		{"{listen: 0.0.0.0:3260}", ", acl: {networks: [192.0.2.0/24]}", false},
		{"{listen: 0.0.0.0:3260}", ", acl: {initiators: [iqn.2026-11.test:i]}", false},
		{"{listen: 0.0.0.0:3260}", ", auth: {method: chap, users: [{name: u, secret_env: SOFTISER_TEST_SECRET}]}", false},
	} {
		t.Setenv("SOFTISER_TEST_SECRET", "long-enough-secret")
		cfg, err := Parse(fmt.Appendf(nil, target, c.rest, c.portals), "x.yaml")
		if err != nil {
			t.Fatal(err)
		}
		if w := cfg.Warnings(); (len(w) > 0) != c.warn || len(w) > 1 {
			t.Errorf("%s%s: %q", c.portals, c.rest, w)
		}
	}
}
