package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"softiser/interop/internal/poll"
)

// powerCuts runs the target on a recorded file and looks, at moments of no choice, at
// what a power cut would have left.
func powerCuts(ctx context.Context, r *run) (string, error) {
	cuts, states := 0, 0
	first := r.rnd.IntN(len(allWires)) // a turn may have fewer rounds than there are wires
	for i := range r.rounds {
		n, err := powerCut(ctx, r, allWires[(first+i)%len(allWires)])
		if err != nil {
			return "", err
		}
		cuts, states = cuts+1, states+n
	}
	return fmt.Sprintf("%d power cuts, %d states of the disk, every flushed write in each", cuts, states), nil
}

// powerCut writes over a wire through a recording device in a real kernel, and opens every state
// that a power cut could have left. It returns how many were checked.
func powerCut(ctx context.Context, r *run, scheme string) (states int, err error) {
	const size = 8 << 20
	rec, err := newRecorder(r.dir, size, r.dropFlushes)
	if err != nil {
		return 0, err
	}
	defer rec.close()
	t, err := r.target(ctx, rec.path())
	if err != nil {
		return 0, err
	}
	defer func() { t.kill() }()
	l := load{scheme: scheme, addr: t.at(scheme), ledger: filepath.Join(r.dir, "power.ledger"), size: size, block: 4096, depth: 8, seed: r.rnd.Uint64()}
	if err := os.RemoveAll(l.ledger); err != nil {
		return 0, err
	}
	p, err := r.start("iser-initiator", l.args("--do-verify=0", "--time-based", "--runtime=600", "--fsync=16")...)
	if err != nil {
		return 0, err
	}
	err = l.wrote(ctx, p, 10+r.rnd.IntN(60))
	if err == nil {
		err = poll.Until(ctx, patience, "something is flushed", func() (bool, error) {
			n, err := l.durable()
			return n > 0, err
		})
	}
	p.kill()
	if err != nil {
		return 0, err
	}
	// The writer is gone: what it was promised, it was promised before now.
	point := rec.disk.Now()
	for image := range rec.disk.States(point, r.stateSamples, r.rnd.Uint64()) {
		img := filepath.Join(r.dir, "cut.img")
		if err := os.WriteFile(img, image.Bytes(), 0o600); err != nil {
			return states, err
		}
		after, err := r.target(ctx, img)
		if err != nil {
			return states, err
		}
		l.addr = after.at(scheme)
		err = r.verify(ctx, l, "--verify-durable")
		after.kill()
		if err != nil {
			return states, fmt.Errorf("state %d of a power cut after %d events: %w", states, point, err)
		}
		states++
	}
	return states, nil
}
