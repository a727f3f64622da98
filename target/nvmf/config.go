package nvmf

import (
	"fmt"
	"net/netip"
	"path"
	"strings"
	"time"

	"go.uber.org/zap"

	"softiser/blockdev"
	"softiser/internal/nvme"
	"softiser/target/portal"
	"softiser/target/volume"
)

// Config describes a front end. The zero value of every optional field means the
// stated default.
type Config struct {
	Portals []*portal.Portal // where hosts are told to find the subsystems
	// Volumes is the registry that all front ends of a server share.
	Volumes *volume.Registry
	// StateDir keeps what must survive a restart; see volume.Config.
	StateDir string
	Staging  *blockdev.Pool // see volume.Config
	// DiscoveryNQN is a name that this discovery service has alone, beside the one that
	// all have; "": none.
	DiscoveryNQN string
	// Referrals are other discovery services that hosts are told of.
	Referrals []Remote
	Limits    Limits
	Timeouts  Timeouts
	Log       *zap.Logger // default: none
}

// Limits bound what hosts can have.
type Limits struct {
	Controllers int // of all subsystems; default 1024. Once half are there, a holder has an eighth: see shares
	Queues      int // I/O queues of a controller; default 128
	Entries     int // of a queue, 16 to 1024; default 128
}

// Timeouts of the front end.
type Timeouts struct {
	// Connect is how long a connection may take until its queue works: until
	// Connect and, where it is asked for, authentication have succeeded. Default 15 s.
	Connect time.Duration
	// Unread is how long a host may leave what is sent to it. Default 30 s.
	Unread time.Duration
	// Data is how long a host may take to send the data that it was asked for, of a write or of a
	// part of it; who is late is found when the queue is looked at, up to as much later. Default 30 s; negative: no limit.
	Data time.Duration
}

// fill sets what was left out to its default, and refuses what cannot be served.
func (c *Config) fill() error {
	if c.Volumes == nil {
		c.Volumes = new(volume.Registry)
	}
	if c.Log == nil {
		c.Log = zap.NewNop()
	}
	if c.Staging == nil {
		c.Staging = blockdev.DefaultPool()
	}
	setDefault(&c.Limits.Controllers, 1024)
	setDefault(&c.Limits.Queues, 128)
	setDefault(&c.Limits.Entries, 128)
	setDefault(&c.Timeouts.Connect, 15*time.Second)
	setDefault(&c.Timeouts.Unread, 30*time.Second)
	setDefault(&c.Timeouts.Data, 30*time.Second)
	if n := c.Limits.Entries; n < 16 || n > 1024 {
		return fmt.Errorf("nvmf: queues of %d entries; 16 to 1024 are possible", n)
	}
	if n := c.Limits.Queues; n < 1 || n > 65535 {
		return fmt.Errorf("nvmf: %d I/O queues for a controller; 1 to 65535 are possible", n)
	}
	if c.DiscoveryNQN != "" {
		if err := nvme.CheckNQN(c.DiscoveryNQN); err != nil {
			return fmt.Errorf("nvmf: discovery service: %w", err)
		}
	}
	return checkRemotes(c.Referrals)
}

func setDefault[T int | time.Duration](p *T, v T) {
	if *p == 0 {
		*p = v
	}
}

// SubsystemConfig describes a subsystem.
type SubsystemConfig struct {
	NQN        string
	Serial     string // 20 printable characters at most; default: derived from NQN
	Model      string // 40 at most; default "softiser"
	Namespaces []NamespaceConfig
	// Hosts are those who may connect; none: everybody.
	Hosts []HostRule
	// MinCntlID and MaxCntlID bound the controller identifiers, so that two targets
	// can serve one subsystem; default 1 to 65519.
	MinCntlID, MaxCntlID uint16
	SecureChannel        SecureChannel
	// Remote are portals of other nodes that serve the subsystem too; hosts are told of
	// them as of our own.
	Remote []Remote
}

// HostRule lets hosts connect.
type HostRule struct {
	NQN      string         // exact, or with * and ? as in path.Match; "" any
	Networks []netip.Prefix // where it may come from; none: anywhere
	// Secret is what the host of this name proves to know, by DH-HMAC-CHAP, on every
	// queue and to the discovery service too; nil: it need not. NQN is exact then.
	Secret *Secret
	// CtrlSecret is what a controller proves to know if the host asks for it; nil: it
	// cannot.
	CtrlSecret *Secret
	// Proof are the hashes and groups that both proofs may be made with.
	Proof ProofAllowed
	// TLSKey is the pre-shared key of the host of this name, for TLS; nil: it has none.
	// NQN is exact then. Without a Secret the host is let in through TLS alone.
	TLSKey *TLSKey
}

func (r *HostRule) admits(nqn string, from netip.Addr) bool {
	if r.NQN != "" && r.NQN != nqn {
		if ok, err := path.Match(r.NQN, nqn); err != nil || !ok {
			return false
		}
	}
	if len(r.Networks) == 0 {
		return true
	}
	from = from.Unmap().WithZone("") // no network contains an address with a zone
	for _, n := range r.Networks {
		if n.Contains(from) {
			return true
		}
	}
	return false
}

// NamespaceConfig describes a namespace.
type NamespaceConfig struct {
	NSID     uint32 // 1 to 1024
	Name     string // of the volume, for status and log
	Volume   blockdev.Device
	ReadOnly bool
	// Access is the state through portal groups at the start, 0 that through those that are
	// not named; nil: that of the volume.
	Access map[uint16]volume.PathState
	// Identity, Placement, Workers and QoS are the volume's; see volume.Config.
	Identity  volume.Identity
	Placement volume.Placement
	Workers   int
	QoS       volume.QoS
	// Store, when set, is where a volume that moves between nodes keeps its state; see
	// volume.Config.
	Store volume.Store
}

const (
	maxNSID     = 1024
	firstCntlID = 1
)

// fill sets defaults and checks limits.
func (c *SubsystemConfig) fill() error {
	if err := nvme.CheckNQN(c.NQN); err != nil {
		return fmt.Errorf("nvmf: subsystem: %w", err)
	}
	if c.NQN == nvme.DiscoveryNQN {
		return fmt.Errorf("nvmf: subsystem: %s is every discovery service's name", c.NQN)
	}
	if c.Serial == "" {
		c.Serial = serialOf(c.NQN)
	}
	if c.Model == "" {
		c.Model = "softiser"
	}
	if len(c.Serial) > 20 || len(c.Model) > 40 {
		return fmt.Errorf("nvmf: subsystem %s: serial number %q and model %q may have 20 and 40 characters", c.NQN, c.Serial, c.Model)
	}
	if err := checkHosts(c.NQN, c.Hosts); err != nil {
		return err
	}
	if err := checkRemotes(c.Remote); err != nil {
		return fmt.Errorf("nvmf: subsystem %s: %w", c.NQN, err)
	}
	if c.MinCntlID == 0 {
		c.MinCntlID = firstCntlID
	}
	if c.MaxCntlID == 0 {
		c.MaxCntlID = nvme.MaxCntlID
	}
	if c.MinCntlID > c.MaxCntlID || c.MaxCntlID > nvme.MaxCntlID {
		return fmt.Errorf("nvmf: subsystem %s: controller identifiers %d to %d; 1 to %d are possible", c.NQN, c.MinCntlID, c.MaxCntlID, nvme.MaxCntlID)
	}
	return nil
}

// checkHosts checks the rules of a subsystem.
func checkHosts(nqn string, hosts []HostRule) error {
	for _, r := range hosts {
		if _, err := path.Match(r.NQN, ""); err != nil {
			return fmt.Errorf("nvmf: subsystem %s: host %q: %w", nqn, r.NQN, err)
		}
		if r.Secret == nil && r.CtrlSecret != nil {
			return fmt.Errorf("nvmf: subsystem %s: host %q has a secret for the controller and none of its own", nqn, r.NQN)
		}
		if (r.Secret != nil || r.TLSKey != nil) && (r.NQN == "" || strings.ContainsAny(r.NQN, "*?[\\")) {
			return fmt.Errorf("nvmf: subsystem %s: host %q has a secret or key; that goes with the whole name of one host", nqn, r.NQN)
		}
	}
	return nil
}
