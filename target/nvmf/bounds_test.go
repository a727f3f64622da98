package nvmf

import (
	"strings"
	"testing"

	"softiser/internal/nvme"
)

// What a front end cannot serve is refused, by what is wrong with it; what is left out has defaults.
func TestConfigBounds(t *testing.T) {
	for _, c := range []struct {
		c    Config
		want string // "": it is fine
	}{
		{Config{}, ""},
		{Config{Limits: Limits{Entries: 16, Queues: 1}}, ""},
		{Config{Limits: Limits{Entries: 1024, Queues: 65535}}, ""},
		{Config{Limits: Limits{Entries: 15}}, "queues of 15 entries"},
		{Config{Limits: Limits{Entries: 1025}}, "queues of 1025 entries"},
		{Config{Limits: Limits{Queues: -1}}, "-1 I/O queues"},
		{Config{Limits: Limits{Queues: 65536}}, "65536 I/O queues"},
		{Config{DiscoveryNQN: "discovery"}, "discovery service"},
		{Config{DiscoveryNQN: nvme.DiscoveryNQN}, ""},
	} {
		k := c.c
		if err := k.fill(); c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%+v, %q: %v", c.c.Limits, c.c.DiscoveryNQN, err)
		}
	}
	var k Config
	if err := k.fill(); err != nil || k.Limits.Entries != 128 || k.Limits.Queues != 128 || k.Limits.Controllers != 1024 {
		t.Errorf("%+v, %v", k.Limits, err)
	}
}

// The same of a subsystem.
func TestSubsystemBounds(t *testing.T) {
	const nqn = "nqn.2026-11.softiser:disk0"
	for _, c := range []struct {
		c    SubsystemConfig
		want string // "": it is fine
	}{
		{SubsystemConfig{NQN: nqn}, ""},
		{SubsystemConfig{NQN: nqn, Serial: strings.Repeat("s", 20), Model: strings.Repeat("m", 40)}, ""},
		{SubsystemConfig{NQN: nqn, Serial: strings.Repeat("s", 21)}, "may have 20 and 40 characters"},
		{SubsystemConfig{NQN: nqn, Model: strings.Repeat("m", 41)}, "may have 20 and 40 characters"},
		{SubsystemConfig{NQN: nqn, MinCntlID: 5, MaxCntlID: 5}, ""},
		{SubsystemConfig{NQN: nqn, MinCntlID: 6, MaxCntlID: 5}, "identifiers 6 to 5"},
		{SubsystemConfig{NQN: nqn, MaxCntlID: nvme.MaxCntlID}, ""},
		{SubsystemConfig{NQN: nqn, MaxCntlID: nvme.MaxCntlID + 1}, "are possible"},
		{SubsystemConfig{NQN: nvme.DiscoveryNQN}, "every discovery service's name"},
		{SubsystemConfig{NQN: "disk0"}, "subsystem"},
		{SubsystemConfig{NQN: nqn, Hosts: []HostRule{{NQN: "nqn.[x"}}}, "nqn.[x"},
		{SubsystemConfig{NQN: nqn, Hosts: []HostRule{{NQN: "nqn.x", CtrlSecret: new(Secret)}}}, "none of its own"},
		{SubsystemConfig{NQN: nqn, Hosts: []HostRule{{NQN: "nqn.x", Secret: new(Secret), CtrlSecret: new(Secret)}}}, ""},
		{SubsystemConfig{NQN: nqn, Hosts: []HostRule{{Secret: new(Secret)}}}, "the whole name of one host"},
		{SubsystemConfig{NQN: nqn, Hosts: []HostRule{{NQN: "nqn.*", Secret: new(Secret)}}}, "the whole name of one host"},
		{SubsystemConfig{NQN: nqn, Hosts: []HostRule{{NQN: "nqn.?", TLSKey: new(TLSKey)}}}, "the whole name of one host"},
		{SubsystemConfig{NQN: nqn, Hosts: []HostRule{{NQN: "nqn.x", TLSKey: new(TLSKey)}}}, ""},
	} {
		k := c.c
		if err := k.fill(); c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%+v: %v", c.c, err)
		}
	}
	k := SubsystemConfig{NQN: nqn}
	if err := k.fill(); err != nil || k.MinCntlID != 1 || k.MaxCntlID != nvme.MaxCntlID || k.Model != "softiser" || k.Serial == "" || len(k.Serial) > 20 {
		t.Errorf("%+v, %v", k, err)
	}
}
