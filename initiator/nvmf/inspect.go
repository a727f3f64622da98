package nvmf

import (
	"context"
	"fmt"

	"softiser/initiator/blockio"
	"softiser/internal/nvme"
)

// Namespaces returns the identifiers of the active namespaces, ascending.
func (a *Association) Namespaces(ctx context.Context) ([]uint32, error) {
	var all []uint32
	b := make([]byte, nvme.IdentifyLen)
	for after := uint32(0); ; {
		if err := a.admin.identify(ctx, nvme.CNSActiveNamespaces, after, b, "Identify Active Namespaces"); err != nil {
			return nil, err
		}
		ids, err := nvme.ParseNSIDs(b)
		if err != nil {
			return nil, err
		}
		if len(ids) > 0 && ids[0] <= after {
			return nil, fmt.Errorf("nvmf: namespace %d in the list behind %d", ids[0], after)
		}
		if all = append(all, ids...); len(all) > maxNamespaces {
			return nil, fmt.Errorf("nvmf: more than %d namespaces", maxNamespaces)
		}
		if len(ids) < nvme.MaxActive {
			return all, nil
		}
		after = ids[len(ids)-1]
	}
}

// inspect asks the controller what the namespace is.
func (n *Namespace) inspect(ctx context.Context) (g *geometry, ids nvme.Identifiers, epoch [16]byte, err error) {
	b := make([]byte, nvme.IdentifyLen)
	if err = n.a.admin.identify(ctx, nvme.CNSNamespace, n.id, b, "Identify Namespace"); err != nil {
		return nil, ids, epoch, err
	}
	d, err := nvme.ParseNamespace(b)
	if err != nil {
		return nil, ids, epoch, err
	}
	if d.Size == 0 {
		return nil, ids, epoch, fmt.Errorf("%w: it is not active", blockio.ErrNoLUN)
	}
	if err = n.a.admin.identify(ctx, nvme.CNSDescriptors, n.id, b, "Identify Namespace Descriptors"); err == nil {
		if ids, err = nvme.ParseIdentifiers(b); err != nil {
			return nil, ids, epoch, err
		}
	} else if !unknown(err) {
		return nil, ids, epoch, err // without its names it would be taken for another one
	}
	if ids.NGUID == [16]byte{} {
		ids.NGUID = d.NGUID
	}
	if ids.EUI64 == [8]byte{} {
		ids.EUI64 = d.EUI64
	}
	g, err = n.a.geometry(d)
	if err == nil {
		g.info.ID = n.name(&ids)
		if n.zeroless.Load() {
			g.maxZeroes = 0
		}
	}
	return g, ids, d.CacheEpoch, err
}

// name is the stable name of a namespace, for whoever looks for it again.
func (n *Namespace) name(ids *nvme.Identifiers) string {
	if names := namesOf(ids); len(names) > 0 {
		return names[0]
	}
	return fmt.Sprintf("%s/%d", n.a.cfg.Subsystem, n.id)
}

func namesOf(ids *nvme.Identifiers) (names []string) {
	if ids.NGUID != [16]byte{} {
		names = append(names, fmt.Sprintf("eui.%x", ids.NGUID))
	}
	if ids.EUI64 != [8]byte{} {
		names = append(names, fmt.Sprintf("eui.%x", ids.EUI64))
	}
	if ids.UUID != [16]byte{} {
		names = append(names, "uuid."+nvme.HostID(ids.UUID).String())
	}
	return names
}

// refresh looks at the namespace again: it must be the same volume. A new size is told to
// whoever has asked for it.
func (n *Namespace) refresh(ctx context.Context) error {
	g, ids, epoch, err := n.inspect(ctx)
	old := n.geo.Load()
	switch {
	case err != nil:
		return err
	case ids != n.ids:
		return fmt.Errorf("%w: namespace %d is %s, it was %s", ErrChanged, n.id, n.name(&ids), n.name(&n.ids))
	case g.info.BlockSize != old.info.BlockSize:
		return fmt.Errorf("%w: namespace %d has blocks of %d bytes, they had %d", ErrChanged, n.id, g.info.BlockSize, old.info.BlockSize)
	}
	n.geo.Store(g)
	n.mu.Lock()
	now, gone := n.epoch.Load().Look(epoch)
	n.epoch.Store(now)
	n.mu.Unlock()
	if gone {
		n.a.event(Event{Kind: EventCacheLost, Detail: fmt.Sprintf("namespace %d; the next flush fails", n.id)})
	}
	if g.info.Size != old.info.Size {
		n.a.event(Event{Kind: EventResized, Detail: fmt.Sprintf("namespace %d has %d bytes", n.id, g.info.Size)})
		n.hooks.Report(n.Info)
	}
	return nil
}
