package multipath

import (
	"context"

	"softiser/initiator/blockio"
	"softiser/initiator/nvmf"
)

// Namespace is a path over NVMe.
func Namespace(cfg nvmf.Config) Dialer {
	return dialer(cfg.URL(), cfg.OnEvent, func(ctx context.Context, cache *blockio.Cache, told func(nvmf.Event)) (blockio.Path, error) {
		c := cfg
		c.Path, c.Cache, c.OnEvent = true, cache, told
		return opened(nvmf.Open(ctx, c))
	})
}
