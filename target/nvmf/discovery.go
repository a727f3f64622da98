package nvmf

import (
	"net"

	"softiser/internal/nvme"
	"softiser/target/portal"
)

// newDiscovery makes the discovery subsystem, which every host may use.
func newDiscovery(f *Frontend) *subsystem {
	s := &subsystem{
		fe: f, admin: &discoveryAdmin, kind: nvme.TypeDiscovery, controllers: map[uint16]*controller{},
		cfg: SubsystemConfig{NQN: nvme.DiscoveryNQN, Serial: serialOf(nvme.DiscoveryNQN), Model: "softiser", MinCntlID: firstCntlID, MaxCntlID: nvme.MaxCntlID},
	}
	return s
}

// discoveryPage is the discovery log as one host may see it: a host never learns of a
// subsystem that it may not connect to.
func (f *Frontend) discoveryPage(host string, q *queue) []byte {
	generation := f.generation.Load()
	local, from := q.conn.Local, q.conn.Remote.Addr()
	var entries []nvme.DiscoveryEntry
	add := func(nqn string, kind nvme.SubsystemType) {
		for i, p := range f.cfg.Portals {
			addr, port, err := net.SplitHostPort(p.AddressFor(local, from))
			if err != nil {
				continue // it does not listen
			}
			// That no secure channel is required would make libnvme ask for TLS.
			e := nvme.DiscoveryEntry{
				Family: nvme.FamilyIPv4, Type: kind, Requirements: nvme.FlowControlOffOK,
				PortID: uint16(i + 1), CntlID: nvme.CntlIDDynamic, AdminQueue: 32, Service: port, Subsystem: nqn, Address: addr,
			}
			if ip := net.ParseIP(addr); ip != nil && ip.To4() == nil {
				e.Family = nvme.FamilyIPv6
			}
			if kind == nvme.SubsystemDiscovery {
				e.Flags = nvme.EntryPersistent
			}
			if !p.Config().NoNVMeTCP {
				e.Transport = nvme.TransportTCP
				entries = append(entries, e)
			}
			if !p.Config().NoNVMeRDMA {
				e.Transport = nvme.TransportRDMA
				entries = append(entries, e)
			}
		}
	}
	add(nvme.DiscoveryNQN, nvme.SubsystemDiscovery)
	for _, s := range f.list() {
		if s.admits(host, from) {
			add(s.cfg.NQN, nvme.SubsystemNVM)
		}
	}
	return nvme.AppendDiscovery(nil, generation, entries)
}

var _ portal.Frontend = (*Frontend)(nil)
