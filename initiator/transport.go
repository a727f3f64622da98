package initiator

import (
	"context"
	"fmt"
	"net"

	"softiser/internal/iscsi"
	"softiser/internal/iscsitcp"
)

// dialDatamover makes the connection that cfg asks for.
func dialDatamover(ctx context.Context, cfg *Config, addr string, s *Session) (iscsi.Datamover, error) {
	if cfg.dial != nil {
		return cfg.dial(ctx, cfg, addr)
	}
	return dialTCP(ctx, addr)
}

// dialTCP connects for plain iSCSI.
func dialTCP(ctx context.Context, addr string) (iscsi.Datamover, error) {
	var d net.Dialer
	nc, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	dm, err := iscsitcp.New(nc, iscsi.RoleInitiator, iscsitcp.Config{})
	if err != nil {
		nc.Close()
		return nil, fmt.Errorf("%s: %w", addr, err)
	}
	return dm, nil
}
