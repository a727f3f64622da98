package main

import (
	"bytes"
	"strings"
	"testing"

	"softiser/initiator"
	"softiser/initiator/multipath"
	"softiser/initiator/nvmf"
	"softiser/internal/iscsi"
)

// What a target says of itself, and of others, cannot change the terminal, nor begin lines of its own.
func TestTargetTextIsQuoted(t *testing.T) {
	const evil = "x\x1b[2J\u202e\u009b1m\nfake line"
	for name, print := range map[string]func(*bytes.Buffer){
		"targets": func(b *bytes.Buffer) {
			targets := []initiator.Target{{Name: evil, Portals: []initiator.Portal{{Address: evil, Group: 1}, {Address: evil, Group: -1}}}}
			(&discovery{}).printTargets(b, targets, initiator.TransportTCP)
			(&discovery{urls: true}).printTargets(b, targets, initiator.TransportTCP)
		},
		"discovery log": func(b *bytes.Buffer) {
			log := &nvmf.Log{Records: []nvmf.Entry{{Transport: "tcp", Type: nvmeSubsystem, Subsystem: evil, Address: evil, Service: evil}}}
			printDiscovery(b, log)
			printURLs(b, log)
		},
		"volume": func(b *bytes.Buffer) {
			r := report{URL: "u", Identity: identity{Vendor: evil, Product: evil, Revision: evil, Serial: evil, Designators: []string{evil}},
				Namespace: &namespace{Controller: evil}, Session: &initiator.SessionInfo{Portal: evil}, Paths: []multipath.Status{{Reason: evil}}}
			r.print(b)
		},
		"registrants": func(b *bytes.Buffer) {
			if err := (&reservations{Registrants: []registrant{{Name: evil}}}).print(b); err != nil {
				t.Error(err)
			}
		},
	} {
		var b bytes.Buffer
		print(&b)
		for line := range strings.Lines(b.String()) {
			if line = strings.TrimSuffix(line, "\n"); iscsi.Printable(line) != line || strings.HasPrefix(line, "fake") {
				t.Errorf("%s: %q", name, line)
			}
		}
	}
	if _, errs, _ := run(t, "info", "iscsi://127.0.0.1/\x1b[2J"); strings.Contains(errs, "\x1b") {
		t.Errorf("%q", errs)
	}
}
