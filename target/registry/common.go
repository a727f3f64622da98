package registry

import (
	"sync/atomic"

	"go.uber.org/zap"

	"softiser/config"
	"softiser/target"
)

// common is what the parts of a registry have in common.
type common struct {
	srv     *target.Server
	log     *zap.Logger
	volumes *volumes
	// inForce is the configuration in force. It is not changed, but replaced by a reload.
	inForce atomic.Pointer[config.Config]
}

func (c *common) config() *config.Config { return c.inForce.Load() }
