package multipath

import (
	"context"

	"softiser/initiator"
	"softiser/initiator/blockio"
)

// LUN is a path over iSER or iSCSI.
func LUN(cfg initiator.Config) Dialer {
	return dialer(cfg.URL(), cfg.OnEvent, func(ctx context.Context, cache *blockio.Cache, told func(initiator.Event)) (blockio.Path, error) {
		c := cfg
		c.Path, c.Cache, c.OnEvent = true, cache, told
		return opened(initiator.Open(ctx, c))
	})
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
