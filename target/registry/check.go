package registry

import (
	"context"

	"softiser/blockdev"
	"softiser/blockdev/null"
	"softiser/config"
	"softiser/target"
)

// Check makes what New and OpenVolumes would make, on a server that does not listen and
// with empty volumes in the places of those, which may be in use.
func Check(cfg *config.Config) (err error) {
	tc, err := ServerConfig(cfg)
	if err != nil {
		return err
	}
	if err := checkStateDir(cfg); err != nil {
		return err
	}
	tc.StateDir = "" // nothing is to be changed there
	srv, err := target.New(tc)
	if err != nil {
		return err
	}
	defer srv.Shutdown(context.Background()) //nolint:errcheck // it has no session and no volume
	devs := map[string]blockdev.Device{}
	standIn := func(v config.Volume) (blockdev.Device, error) {
		var err error
		if devs[v.Name] == nil {
			devs[v.Name], err = null.Open(null.Config{Name: v.Name, Size: 1 << 20, BlockSize: int(v.BlockSize)})
		}
		return devs[v.Name], err
	}
	for i := range cfg.Targets {
		t, err := targetConfig(cfg, &cfg.Targets[i])
		if err == nil {
			err = srv.AddTarget(t)
		}
		if err != nil {
			return err
		}
		for _, l := range cfg.Targets[i].LUNs {
			v, _ := findVolume(cfg, l.Volume)
			lc, err := lunConfig(cfg, v, l)
			if err == nil {
				lc.Volume, err = standIn(v)
			}
			if err == nil {
				err = srv.AddLUN(t.Name, target.LUN{Name: v.Name, LUConfig: lc})
			}
			if err != nil {
				return err
			}
		}
	}
	for i := range cfg.Subsystems {
		s := &cfg.Subsystems[i]
		if err := srv.AddSubsystem(subsystemConfig(s)); err != nil {
			return err
		}
		for _, n := range s.Namespaces {
			v, _ := findVolume(cfg, n.Volume)
			nc, err := namespaceConfig(cfg, v, n)
			if err == nil {
				nc.Volume, err = standIn(v)
			}
			if err == nil {
				err = srv.AddNamespace(s.NQN, nc)
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}
