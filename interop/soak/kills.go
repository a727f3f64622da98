package main

import (
	"context"
	"fmt"
	"path/filepath"
)

// kills runs verified writers over each wire in turn while the target and the writers are
// killed and connections are cut. The page cache outlives them, so every write that was
// acknowledged has to be there, flushed or not.
func kills(ctx context.Context, r *run) (string, error) {
	img := filepath.Join(r.dir, "disk.img")
	volume := img + ",size=64MiB"
	targets, initiators, cuts := 0, 0, 0
	for i, scheme := range wires {
		t, err := r.target(ctx, volume)
		if err != nil {
			return "", err
		}
		defer func() { t.kill() }()
		relay, err := newRelay(t.addr, r.rnd.Uint64())
		if err != nil {
			return "", err
		}
		defer relay.close()
		l := load{scheme: scheme, addr: relay.addr(), ledger: filepath.Join(r.dir, scheme+".ledger"), size: 32 << 20, block: 4096 << (2 * (i % 2)), depth: 16, seed: r.rnd.Uint64()}
		for range max(r.rounds/2, 1) {
			relay.aim(t.addr, 0)
			// A first login that fails ends a program, as it should; those after it are
			// cut as well.
			p, err := r.start("iser-initiator", l.args("--do-verify=0", "--time-based", "--runtime=600", "--replacement-timeout=-1s", "--ctrl-loss-tmo=-1", "--reconnect-delay=1")...)
			if err != nil {
				return "", err
			}
			if err := l.wrote(ctx, p, 10+r.rnd.IntN(40)); err != nil {
				p.kill()
				return "", err
			}
			t.kill()
			targets++
			if t, err = r.target(ctx, volume); err != nil {
				p.kill()
				return "", err
			}
			relay.aim(t.addr, 2)
			err = l.wrote(ctx, p, 10+r.rnd.IntN(40))
			p.kill()
			initiators++
			if err != nil {
				return "", err
			}
			relay.aim(t.addr, 0)
			if err := r.verify(ctx, l); err != nil {
				return "", fmt.Errorf("after kills of both ends, over %s: %w", scheme, err)
			}
			// The next writer goes on with the ledger: what it takes over is verified again.
		}
		t.kill()
		relay.close()
		cuts += relay.cuts
	}
	return fmt.Sprintf("%d targets and %d initiators killed, %d connections cut, every acknowledged write there", targets, initiators, cuts), nil
}
