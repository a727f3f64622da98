package registry

import (
	"context"
	"sync"

	"go.uber.org/zap"

	"softiser/config"
)

// apply makes the changes of a reload and records what holds afterwards: now, except for what
// has failed. The steps say afterwards what of them has.
func (b *common) apply(ctx context.Context, steps []step, now *config.Config) {
	b.volumes.want(wantedVolumes(now), now.Volumes)
	for i := range steps {
		if s := &steps[i]; s.take != nil && s.Error == "" {
			s.Error = text(s.take(ctx))
		}
	}
	for i := range steps {
		if s := &steps[i]; s.volume == "" {
			if s.do != nil && s.Error == "" {
				s.Error = text(s.do(ctx))
			}
			b.logChange(s.Change)
		}
	}
	b.applyToStorage(ctx, steps)
	for i := range steps {
		if s := &steps[i]; s.Error != "" && s.keep != nil {
			s.keep(now)
		}
	}
	b.inForce.Store(now)
	b.volumes.settle(ctx, func(name string, err error) {
		b.log.Error("closing a volume failed", zap.String("volume", name), zap.Error(err))
	})
}

// applyToStorage makes the changes that wait for storage: in order for each volume, and
// none for another volume's.
func (b *common) applyToStorage(ctx context.Context, steps []step) {
	var names []string
	lanes := map[string][]int{}
	for i := range steps {
		if s := &steps[i]; s.volume != "" {
			if lanes[s.volume] == nil {
				names = append(names, s.volume)
			}
			lanes[s.volume] = append(lanes[s.volume], i)
		}
	}
	var mu sync.Mutex
	over, patient := map[int]string{}, true // guarded by mu: what became of steps, and whether somebody waits for that
	var wg sync.WaitGroup
	for _, name := range names {
		indices, own := lanes[name], []step{} // a copy: the steps are the caller's once nobody waits
		for _, i := range indices {
			own = append(own, steps[i])
		}
		wg.Go(func() {
			for n, s := range own {
				if s.do != nil && s.Error == "" {
					s.Error = text(s.do(ctx))
				}
				b.logChange(s.Change)
				mu.Lock()
				if patient {
					over[indices[n]] = s.Error
				}
				mu.Unlock()
			}
		})
	}
	all := make(chan struct{})
	go func() { wg.Wait(); close(all) }()
	select {
	case <-all:
	case <-ctx.Done():
	}
	mu.Lock()
	defer mu.Unlock()
	patient = false
	for _, name := range names {
		for _, i := range lanes[name] {
			if err, ok := over[i]; ok {
				steps[i].Error = err
			} else if steps[i].Error == "" {
				steps[i].Error = "storage has not answered yet; it goes on, and the log tells what becomes of it"
			}
		}
	}
}

// wantedVolumes returns the volumes that LUNs and namespaces of c are made of.
func wantedVolumes(c *config.Config) map[string]config.Volume {
	m := map[string]config.Volume{}
	for _, t := range c.Targets {
		for _, l := range t.LUNs {
			if v, ok := findVolume(c, l.Volume); ok {
				m[v.Name] = v
			}
		}
	}
	for _, s := range c.Subsystems {
		for _, n := range s.Namespaces {
			if v, ok := findVolume(c, n.Volume); ok {
				m[v.Name] = v
			}
		}
	}
	return m
}

func (b *common) logChange(c Change) {
	f := []zap.Field{zap.String("action", c.Action), zap.String("object", c.Object)}
	if c.Error != "" {
		b.log.Warn("reload: not done", append(f, zap.String("reason", c.Error))...)
		return
	}
	b.log.Info("reload", f...)
}
