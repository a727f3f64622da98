package nvmf

import (
	"context"
	"errors"
	"fmt"
	"net"

	"softiser/initiator/internal/volurl"
	"softiser/internal/nvme"
)

// Entry is one way to a subsystem that discovery has found, under the names that nvme-cli
// prints.
type Entry struct {
	Transport  string `json:"trtype"`
	Family     string `json:"adrfam"`
	Type       string `json:"subtype"`
	Requires   string `json:"treq"`
	PortID     uint16 `json:"portid"`
	Service    string `json:"trsvcid"`
	Subsystem  string `json:"subnqn"`
	Address    string `json:"traddr"`
	EntryFlags string `json:"eflags,omitempty"`
	Security   string `json:"sectype,omitempty"`
	// What nvme-cli calls rdma_prtype, rdma_qptype and rdma_cms.
	Provider  string `json:"prtype,omitempty"`
	QueuePair string `json:"qptype,omitempty"`
	Manager   string `json:"cms,omitempty"`
}

// Scheme is that of URLs for what the entry leads to.
func (e *Entry) Scheme() string {
	if e.Transport == nvme.TransportRDMA.String() && e.Provider == nvme.ProviderRoCEv2.String() {
		return "nvme+" + TransportRoCE.String()
	}
	return "nvme+" + e.Transport
}

// URL is the address of a namespace of the subsystem that the entry leads to.
func (e *Entry) URL(nsid uint32) string {
	return formatURL(e.Scheme(), net.JoinHostPort(e.Address, e.Service), e.Subsystem, nsid)
}

// Log is the discovery log page.
type Log struct {
	Generation uint64  `json:"genctr"`
	Records    []Entry `json:"records"`
}

// Discover asks the discovery service at cfg.Address what it knows; cfg.Subsystem may name a
// service of its own, and is the well-known one by default.
func Discover(ctx context.Context, cfg Config) (*Log, error) {
	if cfg.Subsystem == "" {
		cfg.Subsystem = nvme.DiscoveryNQN
	}
	if cfg.KeepAlive == 0 {
		cfg.KeepAlive = -1 // a discovery is too short for keep-alives
	}
	cfg = cfg.withDefaults()
	if err := cfg.validate(cfg.Transport.discoveryPort()); err != nil {
		return nil, err
	}
	a, err := connect(ctx, cfg)
	if err != nil {
		return nil, err
	}
	log, err := a.DiscoveryLog(ctx)
	left := a.Close()
	if err != nil {
		return log, errors.Join(fmt.Errorf("nvmf: discovery at %s: %w", cfg.Address, err), left)
	}
	return log, nil // whatever the controller makes of the farewell
}

// pieceEntries is how many entries one command reads at most, and generationTries how often a log
// may change meanwhile before that is called an error.
const (
	pieceEntries    = 16
	generationTries = 8
)

var errGeneration = errors.New("the discovery log changes faster than it can be read")

// DiscoveryLog reads the discovery log page, again when it has changed meanwhile.
func (a *Association) DiscoveryLog(ctx context.Context) (*Log, error) {
	for range generationTries {
		log, err := a.readDiscovery(ctx)
		if err != errGeneration {
			return log, err
		}
	}
	return nil, errGeneration
}

// readDiscovery reads the header, the entries in pieces, and the header once more: they
// belong together if the generation is the same.
func (a *Association) readDiscovery(ctx context.Context) (*Log, error) {
	head := make([]byte, nvme.DiscoveryEntryLen)
	generation, count, err := a.discoveryHeader(ctx, head)
	if err != nil {
		return nil, err
	}
	log := &Log{Generation: generation, Records: []Entry{}}
	c := a.controller()
	b := make([]byte, min(pieceEntries*nvme.DiscoveryEntryLen, c.pages(c.ident.MDTS)))
	for len(log.Records) < count {
		k := min(count-len(log.Records), len(b)/nvme.DiscoveryEntryLen)
		at := uint64(1+len(log.Records)) * nvme.DiscoveryEntryLen
		piece := b[:k*nvme.DiscoveryEntryLen]
		if err := a.admin.logPage(ctx, nvme.LogDiscovery, at, piece); err != nil {
			return nil, err
		}
		for ; len(piece) > 0; piece = piece[nvme.DiscoveryEntryLen:] {
			e, err := nvme.ParseDiscoveryEntry(piece)
			if err != nil {
				return nil, err
			}
			log.Records = append(log.Records, entry(&e, a.cfg.Address))
		}
	}
	again, n, err := a.discoveryHeader(ctx, head)
	if err == nil && (again != generation || n != count) {
		err = errGeneration
	}
	return log, err
}

func (a *Association) discoveryHeader(ctx context.Context, b []byte) (uint64, int, error) {
	if err := a.admin.logPage(ctx, nvme.LogDiscovery, 0, b); err != nil {
		return 0, 0, err
	}
	return nvme.ParseDiscoveryHeader(b)
}

// entry is a discovery log entry of the service at an address in the words of nvme-cli.
func entry(e *nvme.DiscoveryEntry, service string) Entry {
	out := Entry{
		Transport: e.Transport.String(), Family: e.Family.String(), Type: e.Type.String(),
		PortID: e.PortID, Service: e.Service, Subsystem: e.Subsystem, Address: volurl.OnLink(e.Address, service),
	}
	switch e.Requirements & 3 {
	case nvme.ChannelUnspecified:
		out.Requires = "not specified"
	case nvme.ChannelRequired:
		out.Requires = "required"
	case nvme.ChannelNotRequired:
		out.Requires = "not required"
	}
	if e.Requirements&nvme.FlowControlOffOK != 0 {
		out.Requires += ", sq flow control disable supported"
	}
	switch {
	case e.Flags&nvme.EntryDuplicate != 0 && e.Flags&nvme.EntryPersistent != 0:
		out.EntryFlags = "explicit discovery connections, duplicate discovery information"
	case e.Flags&nvme.EntryPersistent != 0:
		out.EntryFlags = "explicit discovery connections"
	case e.Flags&nvme.EntryDuplicate != 0:
		out.EntryFlags = "duplicate discovery information"
	default:
		out.EntryFlags = "none"
	}
	if e.Transport == nvme.TransportTCP {
		out.Security = map[uint8]string{nvme.SecurityNone: "none", nvme.SecurityTLS13: "tls13"}[e.Security]
	}
	if e.Transport == nvme.TransportRDMA {
		out.Provider, out.QueuePair, out.Manager = e.Provider.String(), "connected", "rdma-cm"
	}
	return out
}
