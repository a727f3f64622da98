package nvmf

import (
	"context"
	"fmt"
	"net"
	"strings"

	"softiser/internal/nvme"
)

// Service is a discovery service, and what it knows.
type Service struct {
	Transport string `json:"trtype"`
	Address   string `json:"address"` // host:port
	NQN       string `json:"subnqn"`
	Log       *Log   `json:"log,omitempty"` // nil: it was not reached
	Error     string `json:"error,omitempty"`
}

// maxServices is how many discovery services Follow asks: a service that refers to new
// ones without end is not followed without end.
const maxServices = 32

// Follow asks the discovery service at cfg.Address, those that it refers to, those that
// these refer to and so on, each once: entries of the log with the type "discovery
// subsystem referral" (NVMe over Fabrics 1.1a §5.6; NVM Express 2.0 §5.16.1.23). The same
// keys and transport serve for all; a referral over another transport is told of in Error.
// What one of the others does not answer is its Error; that of the first is the result's.
func Follow(ctx context.Context, cfg Config) ([]Service, error) {
	if cfg.Subsystem == "" {
		cfg.Subsystem = nvme.DiscoveryNQN
	}
	list := []Service{{Transport: cfg.Transport.String(), Address: cfg.Address, NQN: cfg.Subsystem}}
	known := map[Service]bool{list[0]: true}
	for i := 0; i < len(list); i++ {
		s := &list[i]
		if s.Error != "" {
			continue
		}
		c := cfg
		c.Address, c.Subsystem = s.Address, s.NQN
		log, err := Discover(ctx, c)
		if err != nil {
			if i == 0 || ctx.Err() != nil {
				return nil, err
			}
			s.Error = err.Error()
			continue
		}
		s.Log = log
		for _, e := range log.Records {
			if e.Type != nvme.SubsystemReferral.String() {
				continue
			}
			r := Service{Transport: strings.TrimPrefix(e.Scheme(), "nvme+"), Address: net.JoinHostPort(e.Address, e.Service), NQN: e.Subsystem}
			if known[r] {
				continue
			}
			if len(list) == maxServices {
				return list, errTooManyServices
			}
			known[r] = true
			if r.Transport != cfg.Transport.String() {
				r.Error = fmt.Sprintf("over %s, asked over %s", r.Transport, cfg.Transport)
			}
			list = append(list, r)
		}
	}
	return list, nil
}

var errTooManyServices = fmt.Errorf("nvmf: referrals lead to more than %d discovery services: ask the others one by one", maxServices)
