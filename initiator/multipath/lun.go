package multipath

import (
	"context"

	"softiser/initiator"
	"softiser/initiator/blockio"
)

// LUN is a path over iSER or iSCSI.
func LUN(cfg initiator.Config) Dialer {
	d := dialer(cfg.URL(), cfg.OnEvent, func(ctx context.Context, h Hooks, told func(initiator.Event)) (blockio.Path, error) {
		c := cfg
		c.Path, c.Cache, c.OnEvent = true, h.Cache, told
		if h.Carried != nil {
			c.Carried = h.Carried.Sessions
		}
		return opened(initiator.Open(ctx, c))
	})
	d.portal = Portal{Address: cfg.Address, ISID: cfg.ISID}
	return d
}

// Found is LUN for a path of which another process has said where Portals had found it.
func Found(cfg initiator.Config, k *Carried) Dialer {
	cfg.Address, cfg.ISID = k.Portal.Address, k.Portal.ISID
	return LUN(cfg)
}

// Portals returns a path through every portal that the target of cfg tells of
// (SendTargets), that of cfg first.
func Portals(ctx context.Context, cfg initiator.Config) ([]Dialer, error) {
	ts, err := initiator.Discover(ctx, cfg)
	if err != nil {
		return nil, err
	}
	paths := []Dialer{LUN(cfg)}
	for _, t := range ts {
		for _, p := range t.Portals {
			if t.Name != cfg.TargetName || p.Address == cfg.Address {
				continue
			}
			c := cfg
			c.Address = p.Address
			if c.ISID != [6]byte{} {
				c.ISID[5] += byte(len(paths) * max(c.Sessions, 1)) // a session of its own
			}
			paths = append(paths, LUN(c))
		}
	}
	return paths, nil
}
