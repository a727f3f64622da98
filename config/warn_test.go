package config

import (
	"strings"
	"testing"
)

// A file by which nothing is served is warned of, with its name and what is missing.
func TestNothingServed(t *testing.T) {
	const volume = "volumes: [{name: ram, type: memory, size: 1MiB}]\n"
	for _, c := range []struct{ text, add string }{
		{"", "add volumes, and a target with luns"},
		{"portals: [{listen: '127.0.0.1:0'}]", "add volumes, and a target with luns"},
		{volume, "that name volume ram"},
		{"targets: [{iqn: 'iqn.2026-11.test:a'}]", "add luns to iqn.2026-11.test:a"},
		{"subsystems: [{nqn: 'nqn.2026-11.test:a'}]", "add namespaces to nqn.2026-11.test:a"},
		{volume + "targets: [{iqn: 'iqn.2026-11.test:b'}, {iqn: 'iqn.2026-11.test:a', luns: [{lun: 0, volume: ram}]}]", ""},
		{volume + "targets: [{iqn: 'iqn.2026-11.test:b'}]\nsubsystems: [{nqn: 'nqn.2026-11.test:a', namespaces: [{nsid: 1, volume: ram}]}]", ""},
		{"discovery: {referrals: [{address: '192.0.2.1:4420'}]}", ""},
	} {
		cfg, err := Parse([]byte(c.text), "/etc/t.yaml")
		if err != nil {
			t.Fatalf("%q: %v", c.text, err)
		}
		told := ""
		for _, w := range cfg.Warnings() {
			if strings.Contains(w, "no volume is served") {
				told = w
			}
		}
		if (told != "") != (c.add != "") || !strings.Contains(told, c.add) || told != "" && !strings.Contains(told, "/etc/t.yaml") {
			t.Errorf("%q: %q, want %q", c.text, told, c.add)
		}
	}
}

// Only what other machines reach is warned of, whichever interface an address names.
func TestExposed(t *testing.T) {
	for listen, want := range map[string]bool{
		"127.0.0.1:3260": false, "localhost:3260": false, "[::1]:3260": false, "[::1%lo]:3260": false, "[::ffff:127.0.0.1]:3260": false,
		"0.0.0.0:3260": true, "[::]:3260": true, "192.0.2.1:3260": true, "[fe80::1%eth0]:3260": true, "host:3260": true,
	} {
		cfg, err := Parse([]byte("portals: [{listen: '"+listen+"'}]\nvolumes: [{name: ram, type: memory, size: 1MiB}]\ntargets: [{iqn: 'iqn.2026-11.test:a', luns: [{lun: 0, volume: ram}]}]\n"), "")
		if err != nil {
			t.Fatal(err)
		}
		if all := strings.Join(cfg.Warnings(), "\n"); strings.Contains(all, "is offered on "+listen) != want {
			t.Errorf("%s: %q", listen, all)
		}
	}
}
