package multipath

import (
	"context"

	"softiser/initiator"
	"softiser/initiator/blockio"
)

// LUN is a path over iSER or iSCSI.
func LUN(cfg initiator.Config) Dialer {
	return Dialer{Name: cfg.URL(), Open: func(ctx context.Context, h Hooks) (blockio.Path, error) {
		c := cfg
		c.Path, c.Cache = true, h.Cache
		c.OnEvent = func(e initiator.Event) {
			if cfg.OnEvent != nil {
				cfg.OnEvent(e)
			}
			h.Changed()
		}
		l, err := initiator.Open(ctx, c)
		if err != nil {
			return nil, err
		}
		return l, nil
	}}
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
