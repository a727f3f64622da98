package main

import (
	"context"
	"fmt"
	"path/filepath"
	"time"
)

// killed counts what a stage of kills has done.
type killed struct{ targets, initiators, cuts, frozen int }

// kills runs verified writers over each wire in turn while the target and the writers are
// killed and connections are cut. The page cache outlives them, so every write that was
// acknowledged has to be there, flushed or not.
func kills(ctx context.Context, r *run) (string, error) {
	var n killed
	for i, scheme := range allWires {
		l := load{scheme: scheme, ledger: filepath.Join(r.dir, scheme+".ledger"), size: 32 << 20, block: 4096 << (2 * (i % 2)), depth: 16, seed: r.rnd.Uint64()}
		kill, rounds := r.killsOverTCP, max(r.rounds/2, 1)
		if overRoCE(scheme) {
			kill, rounds = r.killsOverRoCE, max(r.rounds/4, 1)
		}
		if err := kill(ctx, l, rounds, &n); err != nil {
			return "", fmt.Errorf("over %s: %w", scheme, err)
		}
	}
	return fmt.Sprintf("%d targets and %d initiators killed, %d connections cut, %d targets frozen until their peers gave up, every acknowledged write there",
		n.targets, n.initiators, n.cuts, n.frozen), nil
}

// killedVolume is what targets of this stage export.
func (r *run) killedVolume() string { return filepath.Join(r.dir, "disk.img") + ",size=64MiB" }

// killsOverTCP has a relay before the target, at an address that stays, which cuts connections.
func (r *run) killsOverTCP(ctx context.Context, l load, rounds int, n *killed) error {
	t, err := r.target(ctx, r.killedVolume())
	if err != nil {
		return err
	}
	defer func() { t.kill() }()
	relay, err := newRelay(t.addr, r.rnd.Uint64())
	if err != nil {
		return err
	}
	defer relay.close()
	l.addr = relay.addr()
	for range rounds {
		relay.aim(t.addr, 0)
		err := r.killBoth(ctx, l, n, func(*process) error {
			t.kill()
			if t, err = r.target(ctx, r.killedVolume()); err == nil {
				relay.aim(t.addr, 2)
			}
			return err
		}, func() error { relay.aim(t.addr, 0); return nil })
		if err != nil {
			return err
		}
	}
	relay.close()
	n.cuts += relay.cuts
	return nil
}

// silence is longer than peers over RoCE go on asking: their connections end by it.
const silence = 6 * time.Second

// killsOverRoCE has targets at the same address one after the other, as no relay can stand
// before one: the checksum of packets covers the addresses. Connections are cut by silence.
func (r *run) killsOverRoCE(ctx context.Context, l load, rounds int, n *killed) error {
	t, err := r.target(ctx, r.killedVolume())
	if err != nil {
		return err
	}
	defer func() { t.kill() }()
	l.addr = t.roce
	for range rounds {
		err := r.killBoth(ctx, l, n, func(writer *process) error {
			t.kill()
			if t, err = r.targetAt(ctx, l.addr, r.killedVolume()); err != nil {
				return err
			}
			if err := l.wrote(ctx, writer, 3); err != nil {
				return err
			}
			n.frozen++
			return t.freeze(ctx, silence)
		}, func() error { return nil })
		if err != nil {
			return err
		}
	}
	return nil
}

// killBoth runs a writer, has the target killed and another one put in its place, kills the
// writer and, when the wire is calm again, verifies. The next writer goes on with the
// ledger: what it takes over is verified again.
func (r *run) killBoth(ctx context.Context, l load, n *killed, replace func(writer *process) error, calm func() error) error {
	// A first login that fails ends a program, as it should; those after it are cut as well.
	p, err := r.start("iser-initiator", l.args("--do-verify=0", "--time-based", "--runtime=600", "--replacement-timeout=-1s", "--ctrl-loss-tmo=-1", "--reconnect-delay=1")...)
	if err != nil {
		return err
	}
	defer p.kill()
	if err := l.wrote(ctx, p, 10+r.rnd.IntN(40)); err != nil {
		return err
	}
	n.targets++
	if err := replace(p); err != nil {
		return err
	}
	if err := l.wrote(ctx, p, 10+r.rnd.IntN(40)); err != nil {
		return err
	}
	p.kill()
	n.initiators++
	if err := calm(); err != nil {
		return err
	}
	if err := r.verify(ctx, l); err != nil {
		return fmt.Errorf("after kills of both ends: %w", err)
	}
	return nil
}
