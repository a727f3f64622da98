package config

import (
	"strings"
	"testing"
)

// What is wrong with a subsystem is said with the key that it is at.
func TestSubsystemMistakes(t *testing.T) {
	const volumes = "volumes: [{name: a, type: memory, size: 1MiB}, {name: r, type: memory, size: 1MiB, removable: true}]\n"
	for want, text := range map[string]string{
		"subsystems[0].nqn":                  `subsystems: [{nqn: iqn.x}]`,
		"subsystems[1].nqn":                  `subsystems: [{nqn: nqn.x}, {nqn: nqn.x}]`,
		"subsystems[0].serial":               `subsystems: [{nqn: nqn.x, serial: "123456789012345678901"}]`,
		"subsystems[0].namespaces[0].nsid":   `subsystems: [{nqn: nqn.x, namespaces: [{nsid: 0, volume: a}]}]`,
		"subsystems[0].namespaces[1].nsid":   `subsystems: [{nqn: nqn.x, namespaces: [{nsid: 1, volume: a}, {nsid: 1, volume: a}]}]`,
		"subsystems[0].namespaces[0].volume": `subsystems: [{nqn: nqn.x, namespaces: [{nsid: 1, volume: b}]}]`,
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
