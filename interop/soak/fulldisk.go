package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// fullDisks writes durably, many at a time, to a loop device whose file is on a file
// system that runs full. The kernel tells of a failed write-back once per open file;
// what was acknowledged nevertheless has to be in the file.
func fullDisks(ctx context.Context, r *run) (string, error) {
	if os.Geteuid() != 0 {
		return "", fmt.Errorf("%w: loop devices need root", errNoMeans)
	}
	if _, err := os.Stat("/dev/loop-control"); err != nil {
		return "", fmt.Errorf("%w: %v", errNoMeans, err)
	}
	for range r.rounds {
		if err := fullDisk(ctx, r); err != nil {
			return "", err
		}
	}
	return fmt.Sprintf("%d disks filled, every acknowledged durable write is on them", r.rounds), nil
}

// fullDisk: many write with FUA and flush on a file system that fills up; what was
// acknowledged must be there when it is opened again.
func fullDisk(ctx context.Context, r *run) (err error) {
	dir, err := os.MkdirTemp(r.dir, "full-")
	if err != nil {
		return err
	}
	if err := unix.Mount("none", dir, "tmpfs", 0, fmt.Sprintf("size=%dk", 2048+r.rnd.IntN(2048))); err != nil {
		return fmt.Errorf("%w: a tmpfs cannot be mounted: %v", errNoMeans, err)
	}
	defer func() { err = errors.Join(err, unix.Unmount(dir, unix.MNT_DETACH)) }()
	file := filepath.Join(dir, "disk.img")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		return err
	}
	if err := os.Truncate(file, 16<<20); err != nil {
		return err
	}
	out, err := exec.CommandContext(ctx, "losetup", "--find", "--show", file).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: losetup: %v: %s", errNoMeans, err, out)
	}
	loop := strings.TrimSpace(string(out))
	detach := func() error {
		if loop == "" {
			return nil
		}
		out, err := exec.Command("losetup", "--detach", loop).CombinedOutput()
		if err != nil {
			return fmt.Errorf("losetup --detach %s: %w: %s", loop, err, out)
		}
		loop = ""
		return nil
	}
	defer func() { err = errors.Join(err, detach()) }()

	t, err := r.target(ctx, loop)
	if err != nil {
		return err
	}
	defer func() { t.kill() }()
	l := load{scheme: "iser", addr: t.addr, ledger: filepath.Join(r.dir, filepath.Base(dir)+".ledger"), size: 16 << 20, block: 4096, depth: 16, seed: r.rnd.Uint64()}
	p, err := r.start("iser-initiator", l.args("--do-verify=0", "--fua", "--continue-on-error=all")...)
	if err != nil {
		return err
	}
	if err := p.wait(ctx); err == nil {
		return fmt.Errorf("16 MiB of durable writes fit on a file system of less than 4 MiB")
	} else if ctx.Err() != nil {
		return ctx.Err()
	}
	t.kill()
	if n, err := l.durable(); err != nil || n == 0 {
		return fmt.Errorf("no durable write was acknowledged before the disk was full: %v\n%s", err, p.tail())
	}
	if err := detach(); err != nil {
		return err
	}
	// What is left is the file: what only a cache held is gone.
	if t, err = r.target(ctx, file); err != nil {
		return err
	}
	l.addr = t.addr
	if err := r.verify(ctx, l, "--verify-durable"); err != nil {
		return fmt.Errorf("durable writes to a disk that ran full: %w", err)
	}
	return nil
}
