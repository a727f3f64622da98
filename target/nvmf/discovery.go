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
	add := func(s *subsystem, kind nvme.SubsystemType) {
		need, security := f.channel(s, host)
		for i, p := range f.cfg.Portals {
			addr, port, err := net.SplitHostPort(p.AddressFor(local, from))
			if err != nil {
				continue // it does not listen
			}
			e := nvme.DiscoveryEntry{
				Family: nvme.FamilyIPv4, Type: kind, Requirements: nvme.FlowControlOffOK,
				PortID: uint16(i + 1), CntlID: nvme.CntlIDDynamic, AdminQueue: 32, Service: port, Subsystem: s.cfg.NQN, Address: addr,
			}
			if ip := net.ParseIP(addr); ip != nil && ip.To4() == nil {
				e.Family = nvme.FamilyIPv6
			}
			if kind == nvme.SubsystemDiscovery {
				e.Flags = nvme.EntryPersistent
			}
			if !p.Config().NoNVMeTCP {
				t := e
				t.Transport, t.Requirements, t.Security = nvme.TransportTCP, e.Requirements|need, security
				entries = append(entries, t)
			}
			if !p.Config().NoNVMeRDMA && need != nvme.ChannelRequired {
				e.Transport = nvme.TransportRDMA
				entries = append(entries, e)
			}
		}
	}
	add(f.discovery, nvme.SubsystemDiscovery)
	for _, s := range f.list() {
		if s.admits(host, from) {
			add(s, nvme.SubsystemNVM)
		}
	}
	return nvme.AppendDiscovery(nil, generation, entries)
}

var _ portal.Frontend = (*Frontend)(nil)
