package nvmf

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"

	"softiser/internal/nvme"
	"softiser/target/portal"
)

// Remote is a portal of another node: one that serves a subsystem as well, or whose
// discovery service knows more.
type Remote struct {
	Address   netip.AddrPort
	TCP, RDMA bool   // what is spoken there
	RoCE      bool   // RDMA is over UDP, and there is no TCP
	NQN       string // of the discovery service, for a referral; "": the well-known one
}

func checkRemotes(l []Remote) error {
	for _, r := range l {
		if a := r.Address; !a.IsValid() || a.Port() == 0 || a.Addr().IsUnspecified() {
			return fmt.Errorf("nvmf: other portal %s: want the address and port that hosts reach it by", a)
		}
		if !r.TCP && !r.RDMA {
			return fmt.Errorf("nvmf: other portal %s speaks neither NVMe/TCP nor NVMe/RDMA", r.Address)
		}
		if r.RoCE && r.TCP {
			return fmt.Errorf("nvmf: other portal %s: NVMe/TCP is not spoken over RoCE", r.Address)
		}
		if r.NQN != "" {
			if err := nvme.CheckNQN(r.NQN); err != nil {
				return fmt.Errorf("nvmf: other portal %s: %w", r.Address, err)
			}
		}
	}
	return nil
}

// newDiscovery makes the discovery subsystem, which every host may use. It answers to the
// name that all discovery services have; what it calls itself is its own name, if it has one.
func newDiscovery(f *Frontend) *subsystem {
	own := cmp.Or(f.cfg.DiscoveryNQN, nvme.DiscoveryNQN)
	return &subsystem{
		fe: f, admin: &discoveryAdmin, kind: nvme.TypeDiscovery, controllers: map[uint16]*controller{},
		cfg: SubsystemConfig{NQN: own, Serial: serialOf(own), Model: "softiser", MinCntlID: firstCntlID, MaxCntlID: nvme.MaxCntlID},
	}
}

// discoveryPage is the discovery log as one host may see it: a host never learns of a
// subsystem that it may not connect to.
func (f *Frontend) discoveryPage(host string, q *queue) []byte {
	p := discoveryLog{from: q.conn.Remote.Addr(), local: q.conn.Local, portals: f.cfg.Portals}
	f.mu.Lock()
	generation, referrals := f.generation.Load(), f.referrals
	f.mu.Unlock()
	need, security := f.channel(f.discovery, host)
	flags := nvme.EntryPersistent
	if sameEverywhere(f.cfg.Portals) {
		flags |= nvme.EntryDuplicate
	}
	p.own(nvme.DiscoveryEntry{Type: nvme.SubsystemDiscovery, Subsystem: f.discovery.cfg.NQN, Flags: flags, Requirements: need, Security: security})
	for _, r := range referrals {
		p.remote(r, nvme.DiscoveryEntry{Type: nvme.SubsystemReferral, Subsystem: cmp.Or(r.NQN, nvme.DiscoveryNQN)})
	}
	for _, s := range f.list() {
		if !s.admits(host, p.from) {
			continue
		}
		need, security := f.channel(s, host)
		e := nvme.DiscoveryEntry{Type: nvme.SubsystemNVM, Subsystem: s.cfg.NQN, Requirements: need, Security: security}
		p.own(e)
		for i, r := range s.remotes() {
			e.PortID = uint16(len(f.cfg.Portals) + i + 1)
			p.remote(r, e)
		}
	}
	return nvme.AppendDiscovery(nil, generation, p.entries)
}

// discoveryLog collects entries for one host.
type discoveryLog struct {
	from    netip.Addr     // the host
	local   netip.AddrPort // what it has connected to
	portals []*portal.Portal
	entries []nvme.DiscoveryEntry
}

// own adds an entry for each of our portals. Requirements and Security of e are about TLS.
func (p *discoveryLog) own(e nvme.DiscoveryEntry) {
	for i, o := range p.portals {
		addr, port, err := net.SplitHostPort(o.AddressFor(p.local, p.from))
		if err != nil {
			continue // the portal does not listen
		}
		e.PortID = uint16(i + 1)
		e.Provider = nvme.ProviderIWARP
		if o.Config().RoCE() {
			e.Provider = nvme.ProviderRoCEv2
		}
		p.add(e, addr, port, !o.Config().NoNVMeTCP, !o.Config().NoNVMeRDMA)
	}
}

// remote adds the entries of another node's portal. What carries RDMA behind an address of TCP
// is not known: it may be an adapter.
func (p *discoveryLog) remote(r Remote, e nvme.DiscoveryEntry) {
	if r.RoCE {
		e.Provider = nvme.ProviderRoCEv2
	}
	p.add(e, r.Address.Addr().Unmap().String(), strconv.Itoa(int(r.Address.Port())), r.TCP, r.RDMA)
}

// add adds e by each transport of a portal; there is no TLS over RDMA.
func (p *discoveryLog) add(e nvme.DiscoveryEntry, addr, port string, tcp, rdma bool) {
	need := e.Requirements
	e.Requirements |= nvme.FlowControlOffOK
	e.CntlID, e.AdminQueue, e.Service, e.Address, e.Family = nvme.CntlIDDynamic, 32, port, addr, nvme.FamilyIPv4
	if ip := net.ParseIP(addr); ip != nil && ip.To4() == nil {
		e.Family = nvme.FamilyIPv6
	}
	if tcp {
		e.Transport = nvme.TransportTCP
		p.entries = append(p.entries, e)
	}
	if rdma && need != nvme.ChannelRequired {
		e.Transport, e.Requirements, e.Security = nvme.TransportRDMA, nvme.FlowControlOffOK, nvme.SecurityNone
		p.entries = append(p.entries, e)
	}
}

// sameEverywhere reports whether a host is told the same through whichever portal it asks:
// what it is told depends on the address that it has used where a portal listens on all of
// them, and some of its own addresses are for the host or the link alone.
func sameEverywhere(portals []*portal.Portal) bool {
	type reach struct{ everywhere, loopback, link bool }
	var all []reach
	for _, p := range portals {
		a, ok := p.Bound()
		ip := a.Addr().Unmap()
		switch {
		case !ok:
		case p.Config().Advertise != "":
			all = append(all, reach{})
		default:
			all = append(all, reach{ip.IsUnspecified(), ip.IsLoopback(), ip.IsLinkLocalUnicast()})
		}
	}
	return len(all) == 1 || len(slices.Compact(all)) == 1 && !all[0].everywhere
}

// SetReferrals changes which other discovery services hosts are told of.
func (f *Frontend) SetReferrals(l []Remote) error {
	if err := checkRemotes(l); err != nil {
		return err
	}
	f.mu.Lock()
	f.referrals = l
	f.mu.Unlock()
	f.discoveryChanged()
	return nil
}

// SetRemote changes which portals of other nodes hosts are told of for a subsystem.
func (f *Frontend) SetRemote(nqn string, l []Remote) error {
	if err := checkRemotes(l); err != nil {
		return err
	}
	s := f.served(nqn)
	if s == nil {
		return noSubsystem(nqn)
	}
	s.mu.Lock()
	s.remote = l
	s.mu.Unlock()
	f.discoveryChanged()
	return nil
}

func (s *subsystem) remotes() []Remote {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.remote
}

var _ portal.Frontend = (*Frontend)(nil)
