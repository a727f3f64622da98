package registry

import (
	"context"
	"errors"
	"sync"
	"time"

	"go.uber.org/zap"

	"softiser/config"
)

// addition makes a volume what the configuration says. That it cannot is logged.
type addition struct {
	volume string
	do     func(context.Context) error
}

// additions are those of volumes that want accepts. served is how many places have their volume already.
func (m *mapping) additions(cfg *config.Config, want func(config.Volume) bool) (all []addition, served int) {
	one := func(p place, volume string, what any, add func(context.Context, *coming, config.Volume) error, log func(error)) {
		v, _ := findVolume(cfg, volume)
		if m.volumes.at(p) != nil {
			served++
			return
		}
		if !want(v) {
			return
		}
		c := m.ask(p, what)
		all = append(all, addition{volume, func(ctx context.Context) error {
			if err := ctx.Err(); err != nil {
				m.ended(c, p, err)
				return err
			}
			err := add(ctx, c, v)
			if errors.Is(err, errOvertaken) {
				return nil
			}
			if err != nil {
				log(err)
			}
			return err
		}})
	}
	for _, t := range cfg.Targets {
		for _, l := range t.LUNs {
			one(place{t.IQN, uint32(l.LUN)}, l.Volume, l, func(ctx context.Context, c *coming, v config.Volume) error { return m.addLUN(ctx, c, cfg, t.IQN, l, v) }, func(err error) {
				m.log.Error("a LUN is not served", zap.String("target", t.IQN), zap.Int("lun", l.LUN),
					zap.String("volume", l.Volume), zap.Error(err))
			})
		}
	}
	for _, s := range cfg.Subsystems {
		for _, n := range s.Namespaces {
			one(place{s.NQN, uint32(n.NSID)}, n.Volume, n, func(ctx context.Context, c *coming, v config.Volume) error {
				return m.addNamespace(ctx, c, cfg, s.NQN, n, v)
			}, func(err error) {
				m.log.Error("a namespace is not served", zap.String("subsystem", s.NQN), zap.Int("nsid", n.NSID),
					zap.String("volume", n.Volume), zap.Error(err))
			})
		}
	}
	return all, served
}

// openPatience is how long a start waits for storage before it goes on with the volumes that are left, and
// how long it then waits for those.
const openPatience = 10 * time.Second

// addAll makes additions one after the other. When storage does not answer, all that are left are made
// beside each other, and the start goes on without those that take longer, which over tells the end of.
func (m *mapping) addAll(ctx context.Context, all []addition) (failed int, over <-chan struct{}) {
	type result struct {
		i   int
		err error
	}
	var wg sync.WaitGroup
	results, waits := make(chan result, len(all)), map[int]bool{}
	note := func(r result) {
		delete(waits, r.i)
		if r.err != nil {
			failed++
		}
	}
	orderly, cancel := context.WithTimeout(ctx, openPatience)
	defer cancel()
	for i, a := range all {
		waits[i] = true
		wg.Go(func() { results <- result{i, a.do(ctx)} })
		select {
		case r := <-results:
			note(r)
		case <-orderly.Done():
		}
	}
	done := make(chan struct{})
	go func() {
		wg.Wait()
		close(done)
	}()
	rest, cancel := context.WithTimeout(ctx, openPatience)
	defer cancel()
	for len(waits) > 0 && rest.Err() == nil {
		select {
		case r := <-results:
			note(r)
		case <-rest.Done():
		}
	}
	told := map[string]bool{}
	for i, a := range all {
		if waits[i] && ctx.Err() == nil && !told[a.volume] {
			told[a.volume] = true
			m.log.Warn("storage has not answered yet; the volume is served when it has", zap.String("volume", a.volume))
		}
	}
	return failed, done
}
