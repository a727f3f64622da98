package initiator

import (
	"context"
	"errors"

	"softiser/internal/iscsi"
)

// dialDatamover makes the connection that cfg asks for.
func dialDatamover(ctx context.Context, cfg *Config, addr string, s *Session) (iscsi.Datamover, error) {
	if cfg.dial != nil {
		return cfg.dial(ctx, cfg, addr)
	}
	return nil, errors.New("no transport")
}
