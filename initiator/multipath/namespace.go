package multipath

import (
	"context"

	"softiser/initiator/blockio"
	"softiser/initiator/nvmf"
)

// Namespace is a path over NVMe.
func Namespace(cfg nvmf.Config) Dialer {
	return dialer(cfg.URL(), cfg.OnEvent, func(ctx context.Context, h Hooks, told func(nvmf.Event)) (blockio.Path, error) {
		c := cfg
		c.Path, c.Cache, c.OnEvent = true, h.Cache, told
		if h.Carried != nil {
			c.Carried = h.Carried.Association
		}
		return opened(nvmf.Open(ctx, c))
	})
}
