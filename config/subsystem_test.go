package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"softiser/internal/nvme/dhchap"
)

// What is wrong with a subsystem is said with the key that it is at.
func TestSubsystemMistakes(t *testing.T) {
	const volumes = "volumes: [{name: a, type: memory, size: 1MiB}, {name: r, type: memory, size: 1MiB, removable: true}]\n"
	for want, text := range map[string]string{
		"subsystems[0].nqn":                  `subsystems: [{nqn: iqn.x}]`,
		`"nqn.x\x00y" is no NVMe name`:       `subsystems: [{nqn: "nqn.x\0y"}]`,
		"subsystems[1].nqn":                  `subsystems: [{nqn: nqn.x}, {nqn: nqn.x}]`,
		"a serial number is printable ASCII": `subsystems: [{nqn: nqn.x, serial: "ä"}]`,
		"subsystems[0].serial":               `subsystems: [{nqn: nqn.x, serial: "123456789012345678901"}]`,
		"subsystems[0].namespaces[0].nsid":   `subsystems: [{nqn: nqn.x, namespaces: [{nsid: 0, volume: a}]}]`,
		"subsystems[0].namespaces[1].nsid":   `subsystems: [{nqn: nqn.x, namespaces: [{nsid: 1, volume: a}, {nsid: 1, volume: a}]}]`,
		"subsystems[0].namespaces[0].volume": `subsystems: [{nqn: nqn.x, namespaces: [{nsid: 1, volume: b}]}]`,
		"subsystems[0].min_cntlid":           `subsystems: [{nqn: nqn.x, min_cntlid: 65520}]`,
		"subsystems[0].max_cntlid":           `subsystems: [{nqn: nqn.x, min_cntlid: 9, max_cntlid: 8}]`,
		"subsystems[0].hosts[0]":             `subsystems: [{nqn: nqn.x, hosts: ["[" ]}]`,
		"subsystems[0].networks[0]":          `subsystems: [{nqn: nqn.x, networks: [10.0.0.0/33]}]`,
	} {
		_, err := Parse([]byte(volumes+text), "")
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
	if _, err := Parse([]byte(volumes+"subsystems: [{nqn: nqn.x, namespaces: [{nsid: 1, volume: r}]}]"), ""); err == nil || !strings.Contains(err.Error(), "removable") {
		t.Errorf("a removable volume: %v", err)
	}
}

// A subsystem that everybody may reach is warned of, whatever hosts it names: a host calls
// itself what it likes.
func TestExposedSubsystemWarns(t *testing.T) {
	const rest = "\nvolumes: [{name: a, type: memory, size: 1MiB}]\nsubsystems: [{nqn: nqn.x, hosts: [nqn.h], namespaces: [{nsid: 1, volume: a}]"
	for text, want := range map[string]bool{
		`portals: [{listen: ":3260"}]` + rest + "}]":                             true,
		`portals: [{listen: ":3260"}]` + rest + ", networks: [10.0.0.0/8]}]":     false,
		`portals: [{listen: "127.0.0.1:3260"}]` + rest + "}]":                    false,
		`portals: [{listen: "127.0.0.1:3260"}, {listen: ":3261"}]` + rest + "}]": true,
	} {
		c, err := Parse([]byte(text), "")
		if err != nil {
			t.Fatal(err)
		}
		got := strings.Contains(strings.Join(c.Warnings(), "\n"), "subsystem nqn.x is offered")
		if got != want {
			t.Errorf("%s: warned %t", text, got)
		}
	}
}

// The keys of hosts are read from files that not everybody can read, checked, and shown
// nowhere.
func TestHostKeys(t *testing.T) {
	const (
		first  = "DHHC-1:01:ICEiIyQlJicoKSorLC0uLzAxMjM0NTY3ODk6Ozw9Pj/jBqb2:"
		tlsKey = "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:"
		second = "DHHC-1:02:YGFiY2RlZmdoaWprbG1ub3BxcnN0dXZ3eHl6e3x9fn+AgYKDhIWGh4iJiouMjY6PbQqfxQ==:"
	)
	dir := t.TempDir()
	for name, text := range map[string]string{"first": first + "\n", "second": second, "open": first, "tls": tlsKey, "broken": strings.Replace(first, "ICEi", "ICEj", 1)} {
		mode := os.FileMode(0o640)
		if name == "open" {
			mode = 0o644
		}
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("SOFTISER_TEST_HOST_KEY", second)
	parse := func(subsystems string) (*Config, error) {
		return Parse([]byte(`portals: [{listen: ":3260"}]
volumes: [{name: a, type: memory, size: 1MiB}]
subsystems: [`+subsystems+"]\n"), filepath.Join(dir, "softiser.yaml"))
	}
	good := `{nqn: nqn.x, namespaces: [{nsid: 1, volume: a}], keys: [{host: nqn.h, dhchap_secret_file: first, dhchap_ctrl_secret_env: SOFTISER_TEST_HOST_KEY, dhchap_hashes: [sha384, sha512], dhchap_dhgroups: [ffdhe3072, "null"]}]}`
	c, err := parse(good)
	if err != nil {
		t.Fatal(err)
	}
	k := &c.Subsystems[0].Keys[0]
	if k.Secret().Reveal() != first || k.CtrlSecret().Reveal() != second {
		t.Error("the secrets are not those of the file and the environment")
	}
	if p := k.Proof(); !p.Equal(ProofAllowed{Hashes: []dhchap.Hash{dhchap.SHA384, dhchap.SHA512}, Groups: []dhchap.Group{dhchap.FFDHE3072, dhchap.GroupNone}}) {
		t.Errorf("proofs may be made with %v", p)
	}
	tls, err := parse(`{nqn: nqn.x, secure_channel: required, keys: [{host: nqn.h, tls_key_file: tls}]}`)
	if err != nil || tls.Subsystems[0].Keys[0].TLSKey().Reveal() != tlsKey || strings.Contains(tls.YAML(), "VRLb") {
		t.Errorf("a TLS key alone: %v", err)
	}
	for want, text := range map[string]string{
		"has no effect":                  `{nqn: nqn.x, secure_channel: none, keys: [{host: nqn.h, tls_key_file: tls}]}`,
		"needs a TLS key":                `{nqn: nqn.x, secure_channel: required, keys: [{host: nqn.h, dhchap_secret_file: first}]}`,
		"list hosts under keys":          `{nqn: nqn.x, secure_channel: required, hosts: [nqn.o]}`,
		"subsystems[0].secure_channel":   `{nqn: nqn.x, secure_channel: maybe}`,
		"subsystems[0].keys[0].tls_key_": `{nqn: nqn.x, keys: [{host: nqn.h, tls_key_file: first}]}`,
	} {
		if _, err := parse(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
	if s := c.YAML(); strings.Contains(s, "ICEi") || strings.Contains(s, "YGFi") || !strings.Contains(s, filepath.Join(dir, "first")) {
		t.Errorf("the configuration is printed as\n%s", s)
	}
	if w := strings.Join(c.Warnings(), "\n"); strings.Contains(w, "nqn.x") {
		t.Errorf("a subsystem for hosts with keys alone is called exposed: %s", w)
	}
	if c, err = parse(strings.Replace(good, "keys:", "hosts: [nqn.o], keys:", 1)); err != nil {
		t.Fatal(err)
	} else if w := strings.Join(c.Warnings(), "\n"); !strings.Contains(w, "nqn.x") {
		t.Errorf("a subsystem with a host that proves nothing is not called exposed: %s", w)
	}
	for want, keys := range map[string]string{
		"mode 0644":                      `{host: nqn.h, dhchap_secret_file: open}`,
		"check sum":                      `{host: nqn.h, dhchap_secret_file: broken}`,
		"keys[0].dhchap_secret_file":     `{host: nqn.h, dhchap_secret_file: none}`,
		"keys[0].dhchap_ctrl_secret_env": `{host: nqn.h, dhchap_secret_file: first, dhchap_ctrl_secret_env: SOFTISER_TEST_NOTHING}`,
		"no secret":                      `{host: nqn.h, dhchap_ctrl_secret_file: first}`,
		"keep one":                       `{host: nqn.h, dhchap_secret_file: first, dhchap_secret_env: SOFTISER_TEST_HOST_KEY}`,
		"not the NVMe name of one host":  `{host: "nqn.*", dhchap_secret_file: first}`,
		"keep them together":             `{host: nqn.h, dhchap_secret_file: first}, {host: nqn.h, dhchap_secret_file: first}`,
		`"md5" is no hash`:               `{host: nqn.h, dhchap_secret_file: first, dhchap_hashes: [sha384, md5]}`,
		`"ffdhe1024" is no`:              `{host: nqn.h, dhchap_secret_file: first, dhchap_dhgroups: [ffdhe1024]}`,
		"have no effect without":         `{host: nqn.h, tls_key_file: tls, dhchap_hashes: [sha384]}`,
		"or other hashes":                `{host: nqn.h, dhchap_secret_file: first, dhchap_dhgroups: ["null"]}]}, {nqn: nqn.y, keys: [{host: nqn.h, dhchap_secret_file: first}`,
		"the same secret":                `{host: nqn.h, dhchap_secret_file: first, dhchap_ctrl_secret_file: first}`,
		"has other secrets in another":   `{host: nqn.h, dhchap_secret_file: first}]}, {nqn: nqn.y, keys: [{host: nqn.h, dhchap_secret_file: second}`,
		"unknown key":                    `{host: nqn.h, dhchap_secret: DHHC}`,
		"subsystems[0].keys[1].host":     `{host: nqn.h, dhchap_secret_file: first}, {host: iqn.h, dhchap_secret_file: first}`,
	} {
		_, err := parse("{nqn: nqn.x, keys: [" + keys + "]}")
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", keys, err, want)
		} else if strings.Contains(err.Error(), "ICE") {
			t.Errorf("%s: the error repeats the secret", keys)
		}
	}
}

// Portals of other nodes are addresses that a host can be told, and none of our own; their
// controllers and volumes have to fit ours.
func TestOtherNodes(t *testing.T) {
	const rest = "portals: [{listen: \"192.0.2.1:8009\"}, {listen: roce://192.0.2.9:4420, group: 2}]\nvolumes: [{name: a, type: memory, size: 1MiB, wwid: \"60000000000000000000000000000001\"}, {name: b, type: memory, size: 1MiB}]\n"
	const sub = "subsystems: [{nqn: nqn.x, min_cntlid: 1, max_cntlid: 99, namespaces: [{nsid: 1, volume: a}], remote: [%]}]"
	for text, want := range map[string]string{
		"discovery: {nqn: nqn.2026-11.test:d, referrals: [{address: \"192.0.2.2:8009\"}, {address: \"[2001:db8::2]:8009\", protocols: [nvme-tcp], nqn: nqn.other}]}": "",
		"discovery: {nqn: disk}":                                                                                                 "discovery.nqn: \"disk\" is no NVMe name",
		"discovery: {nqn: nqn.2014-08.org.nvmexpress.discovery}":                                                                 "is the name of every discovery service",
		"discovery: {nqn: nqn.x}\nsubsystems: [{nqn: nqn.x}]":                                                                    "already the name of subsystems[0]",
		"discovery: {referrals: [{address: node2:8009}]}":                                                                        "discovery.referrals[0].address: \"node2:8009\" is no address",
		"discovery: {referrals: [{address: \"0.0.0.0:8009\"}]}":                                                                  "is no address that a host can be told",
		"discovery: {referrals: [{address: \"192.0.2.2:0\"}]}":                                                                   "is no address that a host can be told",
		"discovery: {referrals: [{address: \"192.0.2.1:8009\"}]}":                                                                "is the address of portals[0]; name a portal of another node",
		"discovery: {referrals: [{address: \"192.0.2.2:8009\"}, {address: \"192.0.2.2:8009\"}]}":                                 "discovery.referrals[1].address: 192.0.2.2:8009 is already the address of discovery.referrals[0]",
		"discovery: {referrals: [{address: \"192.0.2.2:8009\", protocols: [iser]}]}":                                             "discovery.referrals[0].protocols[0]: \"iser\" is not one of nvme-tcp, nvme-rdma",
		"discovery: {referrals: [{address: \"192.0.2.2:8009\", nqn: x}]}":                                                        "discovery.referrals[0].nqn: \"x\" is no NVMe name",
		"discovery: {nqn: nqn.d, referrals: [{address: \"192.0.2.2:8009\", nqn: nqn.d}]}":                                        "a host would be sent in a circle",
		strings.Replace(sub, "%", "{address: \"192.0.2.2:4420\"}", 1):                                                            "",
		"discovery: {referrals: [{address: roce://192.0.2.1:8009}, {address: \"192.0.2.1:4420\"}]}":                              "",
		"discovery: {referrals: [{address: \"192.0.2.2:3260\"}, {address: roce://192.0.2.2}]}":                                   "",
		"discovery: {referrals: [{address: roce://192.0.2.2}, {address: roce://192.0.2.2:3260}]}":                                "discovery.referrals[1].address: roce://192.0.2.2:3260 is already the address of discovery.referrals[0]",
		"discovery: {referrals: [{address: roce://192.0.2.9:4420}]}":                                                             "is the address of portals[1]; name a portal of another node",
		strings.Replace(sub, "%", "{address: roce://192.0.2.2, protocols: [nvme-rdma]}", 1):                                      "",
		strings.Replace(sub, "%", "{address: \"roce://[2001:db8::2]:4420\"}", 1):                                                 "",
		strings.Replace(sub, "%", "{address: \"roce://0.0.0.0\"}", 1):                                                            "is no address that a host can be told",
		strings.Replace(sub, "%", "{address: roce://192.0.2.2, protocols: [nvme-tcp]}", 1):                                       "subsystems[0].remote[0].protocols[0]: nvme-tcp is not spoken over RoCE",
		strings.Replace(sub, "%", "{address: node2}", 1):                                                                         "subsystems[0].remote[0].address: \"node2\" is no address",
		strings.Replace(sub, "%", "{address: \"192.0.2.2:4420\", protocols: [tcp]}", 1):                                          "subsystems[0].remote[0].protocols[0]: \"tcp\" is not one of",
		strings.Replace(strings.Replace(sub, "%", "{address: \"192.0.2.2:4420\"}", 1), "min_cntlid: 1, max_cntlid: 99, ", "", 1): "subsystems[0].remote: each node needs controller identifiers of its own",
		strings.Replace(strings.Replace(sub, "%", "{address: \"192.0.2.2:4420\"}", 1), "volume: a", "volume: b", 1):              "b needs a wwid, the same on every node",
	} {
		switch _, err := Parse([]byte(rest+text), ""); {
		case want == "" && err != nil:
			t.Errorf("%s: %v", text, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
}

// Access states are known ones, through portal groups that there are, and places of a volume
// with a namespace agree on them.
func TestAccessStates(t *testing.T) {
	const rest = "portals: [{listen: \":3260\"}, {listen: \":4420\", group: 2}]\nvolumes: [{name: a, type: memory, size: 1MiB}]\n"
	places := func(lun, space string) string {
		return "targets: [{iqn: \"iqn.2026-11.test:a\", luns: [{lun: 0, volume: a" + lun + "}]}]\nsubsystems: [{nqn: nqn.x, namespaces: [{nsid: 1, volume: a" + space + "}]}]"
	}
	for text, want := range map[string]string{
		places("", ", ana: inaccessible, ana_groups: [{group: 2, state: non-optimized}]"): "",
		places(", alua: standby", ""):                        "",
		places(", alua: unavailable", ", ana: inaccessible"): "",
		places(", alua: standby, alua_groups: [{group: 1, state: active-optimized}]", ", ana_groups: [{group: 2, state: inaccessible}]"): "",
		places("", ", ana: standby"):                                                                       "subsystems[0].namespaces[0].ana: \"standby\" is not one of optimized, non-optimized, inaccessible, persistent-loss",
		places("", ", ana_groups: [{group: 2, state: change}]"):                                            "subsystems[0].namespaces[0].ana_groups[0].state",
		places("", ", ana_groups: [{group: 3, state: optimized}]"):                                         "subsystems[0].namespaces[0].ana_groups[0].group: no portal belongs to group 3",
		places(", alua: standby", ", ana: optimized"):                                                      "through portal group 1 a is optimized here and inaccessible at targets[0].luns[0]",
		places(", alua: standby", ", ana: inaccessible, ana_groups: [{group: 2, state: persistent-loss}]"): "through portal group 2 a is persistent-loss here",
	} {
		switch _, err := Parse([]byte(rest+text), ""); {
		case want == "" && err != nil:
			t.Errorf("%s: %v", text, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
	// LUNs alone have states of their own.
	luns := "targets: [{iqn: \"iqn.2026-11.test:a\", luns: [{lun: 0, volume: a, alua: standby}]}, {iqn: \"iqn.2026-11.test:b\", luns: [{lun: 0, volume: a, alua: offline}]}]\n"
	if _, err := Parse([]byte(rest+luns), ""); err != nil {
		t.Error(err)
	}
	if _, err := Parse([]byte(rest+luns+"subsystems: [{nqn: nqn.x, namespaces: [{nsid: 1, volume: a}]}]"), ""); err == nil || !strings.Contains(err.Error(), "targets[1].luns[0]: through portal group 1") {
		t.Errorf("a namespace of a volume whose LUNs are in two states: %v", err)
	}
}
