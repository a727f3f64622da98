package nvmf

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/dustin/go-humanize/english"
	"go.uber.org/zap"

	"softiser/blockdev"
	"softiser/internal/nvme"
	"softiser/target/internal/loglimit"
	"softiser/target/portal"
	"softiser/target/volume"
)

// namespace is a place of a volume.
type namespace struct {
	sub   *subsystem
	id    uint32
	cfg   NamespaceConfig
	place volume.Place
	vol   *volume.Volume
	dev   blockdev.Device
	names nvme.Identifiers

	latency latencies
	faults  loglimit.Limit // of the log

	copies chan struct{} // holds a token for each copy that runs

	ending sync.Once
	ended  chan struct{} // closed when nothing uses the volume any more and it has been flushed
	err    error         // of that; read after ended
}

// newNamespace makes a namespace of s, as a place of the volume that cfg names.
func newNamespace(s *subsystem, cfg *NamespaceConfig) (*namespace, error) {
	n := &namespace{sub: s, id: cfg.NSID, cfg: *cfg, dev: cfg.Volume, faults: loglimit.Limit{Every: time.Second}, ended: make(chan struct{}), copies: make(chan struct{}, volume.DefaultWorkers)}
	if n.id < 1 || n.id > maxNSID {
		return nil, fmt.Errorf("the identifier is not between 1 and %d", maxNSID)
	}
	if n.dev == nil {
		return nil, errors.New("there is no volume")
	}
	if info := n.dev.Info(); info.BlockSize > maxBlock {
		return nil, fmt.Errorf("blocks of %d bytes; hosts take up to %d", info.BlockSize, maxBlock)
	}
	var err error
	n.vol, err = s.fe.cfg.Volumes.Map(volume.Config{
		Device: n.dev, Identity: cfg.Identity, StateDir: s.fe.cfg.StateDir, Store: cfg.Store, Placement: cfg.Placement,
		Workers: cfg.Workers, QoS: cfg.QoS, Staging: s.fe.cfg.Staging,
		Fault: func(err error) {
			s.fe.log.Error("a mistake of this program was found and contained; please report it: " + err.Error())
		},
	}, &n.place, volume.PlaceConfig{
		Name: fmt.Sprintf("namespace %d of %s", n.id, s.cfg.NQN), Seed: fmt.Sprintf("%s %d", s.cfg.NQN, n.id),
		ReadOnly: cfg.ReadOnly, Face: n,
	})
	if err != nil {
		return nil, err
	}
	n.names = identifiers(n.vol.Identity())
	if cfg.Access != nil {
		for _, p := range s.fe.cfg.Portals {
			n.vol.SetPath(p.Config().Group, cfg.state(p.Config().Group))
		}
	}
	return n, nil
}

// tell logs what the volume could not do for a command that ends with s, which it returns: what an operator
// should see to, as no host tells him.
func (n *namespace) tell(err error, s nvme.Status) nvme.Status {
	switch s &^ nvme.DoNotRetry {
	case nvme.WriteFault, nvme.UnrecoveredRead, nvme.InternalError, nvme.CapacityExceeded:
		if _, marked := errors.AsType[*volume.MarkedError](err); !marked {
			n.faults.Warn(n.sub.fe.log, "a volume failed a command", zap.String("subsystem", n.sub.cfg.NQN), zap.Uint32("namespace", n.id), zap.Error(err))
		}
	}
	return s
}

// state is that through a portal group at the start.
func (c *NamespaceConfig) state(group uint16) volume.PathState {
	if s, ok := c.Access[group]; ok {
		return s
	}
	return c.Access[0]
}

// maxBlock is the largest block that Linux takes.
const maxBlock = 4096

// identifiers are the names of a volume, from the same source as those of SCSI: NGUID is
// the NAA name, which has 16 bytes of its own, EUI-64 the EUI.
func identifiers(id *volume.Identity) nvme.Identifiers {
	var n nvme.Identifiers
	if len(id.NAA) == len(n.NGUID) {
		copy(n.NGUID[:], id.NAA)
	}
	if len(id.EUI) == len(n.EUI64) {
		copy(n.EUI64[:], id.EUI)
	}
	// A UUID of version 8 (RFC 9562 §5.8), which says that its bits mean nothing.
	sum := sha256.Sum256([]byte("softiser volume\x00" + id.Key()))
	copy(n.UUID[:], sum[:16])
	n.UUID[6] = n.UUID[6]&0x0F | 0x80
	n.UUID[8] = n.UUID[8]&0x3F | 0x80
	return n
}

// Notify implements volume.Face.
func (n *namespace) Notify(e volume.Event) {
	switch e.Kind {
	case volume.GeometryChanged, volume.ProtectionChanged:
		n.sub.namespaceChanged(n.id)
	case volume.PathChanged:
		n.sub.anaChanges.Add(1)
		for _, c := range n.sub.all() {
			if c.group == e.Group {
				c.events.report(eventANA)
			}
		}
	case volume.RewriteEnded:
		if kind, _ := n.vol.Rewriter.Progress(); kind != volume.Format {
			n.sub.tell(eventSanitize)
		}
	case volume.ReservationReleased, volume.ReservationPreempted, volume.RegistrationPreempted:
		for _, c := range n.sub.all() {
			if e.Who == nil || e.Who(&c.client) {
				c.events.reservation(n.id, e.Kind)
			}
		}
	}
}

// end waits until nothing uses the volume at this place any more and it has been flushed.
// If ctx ends first it is not over, and the error says what is waited for; else it is what
// went wrong. It may be called again.
func (n *namespace) end(ctx context.Context) (over bool, err error) {
	n.ending.Do(func() {
		go func() {
			defer close(n.ended)
			n.err = n.place.Drain(context.Background())
			if n.place.Writable() {
				if err := n.dev.Flush(); !errors.Is(err, blockdev.ErrInactive) { // flushed when it was given up
					n.err = errors.Join(n.err, err)
				}
			}
		}()
	})
	select {
	case <-n.ended:
	case <-ctx.Done():
	}
	select {
	case <-n.ended:
		if n.err != nil {
			return true, fmt.Errorf("nvmf: subsystem %s, namespace %d: %w", n.sub.cfg.NQN, n.id, n.err)
		}
		return true, nil
	default:
		return false, fmt.Errorf("nvmf: subsystem %s, namespace %d: %w: %s the volume: %w",
			n.sub.cfg.NQN, n.id, portal.ErrVolumesHeld, english.Plural(int(n.place.Users()), "command still holds", "commands still hold"), ctx.Err())
	}
}

// Left implements volume.Face.
func (n *namespace) Left() {}

// gates are the conditions of the volume that refuse commands at this place.
func (n *namespace) gates() volume.Gate {
	g := n.vol.Gates()
	if n.cfg.ReadOnly {
		g |= volume.ReadOnly
	}
	return g
}

// identify fills the namespace's structure.
func (n *namespace) identify() *nvme.Namespace {
	g := n.vol.Geo()
	bs := g.Info.BlockSize
	page := uint16(max(g.Info.PhysBlockSize, bs)/bs - 1)
	d := &nvme.Namespace{
		Size: g.Blocks, Capacity: g.Blocks, Use: g.Blocks,
		NSFEAT: nvme.FeatGranularity | nvme.FeatOwnAtomics, NACWU: uint16(int64(maxFusedBytes)>>g.Shift - 1), NMIC: nvme.NamespaceShared,
		NPWG: page, NPWA: page, NPDG: page, NPDA: page, NOWS: page,
		Bytes: uint64(g.Info.Size), ANAGroup: n.id, NGUID: n.names.NGUID, EUI64: n.names.EUI64, CacheEpoch: n.vol.Epoch(),
		RESCAP:  nvme.ReservationTypes | nvme.ReservationIEK13,
		Formats: []nvme.LBAFormat{{Shift: g.Shift}},
	}
	d.FPI = nvme.FormatProgress
	if n.gates()&volume.Formatting != 0 {
		_, progress := n.vol.Rewriter.Progress()
		d.FPI |= uint8((65536 - int(progress)) * 100 / 65536)
	}
	d.MSSRL, d.MCL = copyLimits(g)
	d.MSRC = maxCopyRanges - 1
	if n.vol.Keeps() {
		d.RESCAP |= nvme.ReservationPTPL
	}
	if g.Info.Discard {
		d.NSFEAT |= nvme.FeatThin
		if g.Info.ZeroesOnTrim {
			d.DLFEAT = nvme.DeallocatedZeroes | nvme.ZeroesDeallocate
		}
	}
	if n.gates()&volume.Protections != 0 {
		d.NSATTR = nvme.NamespaceProtected
	}
	return d
}
