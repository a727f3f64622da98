package multipath

import (
	"context"

	"softiser/initiator/blockio"
	"softiser/initiator/nvmf"
)

// Namespace is a path over NVMe.
func Namespace(cfg nvmf.Config) Dialer {
	return Dialer{Name: cfg.URL(), Open: func(ctx context.Context, h Hooks) (blockio.Path, error) {
		c := cfg
		c.Path, c.Cache = true, h.Cache
		c.OnEvent = func(e nvmf.Event) {
			if cfg.OnEvent != nil {
				cfg.OnEvent(e)
			}
			h.Changed()
		}
		n, err := nvmf.Open(ctx, c)
		if err != nil {
			return nil, err
		}
		return n, nil
	}}
}
