package nvmf

import (
	"testing"

	"softiser/internal/nvme"
)

// A service on a link tells of addresses there.
func TestDiscoveryOnLink(t *testing.T) {
	e := nvme.DiscoveryEntry{Transport: nvme.TransportTCP, Family: nvme.FamilyIPv6, Address: "fe80::1", Service: "4420", Subsystem: "nqn.x"}
	if got := entry(&e, "[fe80::2%eth0]:8009"); got.URL(1) != "nvme+tcp://[fe80::1%eth0]:4420/nqn.x/1" {
		t.Error(got.URL(1))
	}
}
