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

// smallDisk is a loop device over a file that its file system has too little room for.
type smallDisk struct {
	dir, file string
	loop      string // the device; "" when it is detached
}

const smallDiskSize = 16 << 20 // the file system has a quarter of that at most

// newSmallDisk mounts a file system of 2 to 4 MiB, and makes the device on it.
func newSmallDisk(ctx context.Context, r *run) (_ *smallDisk, err error) {
	dir, err := os.MkdirTemp(r.dir, "full-")
	if err != nil {
		return nil, err
	}
	if err := unix.Mount("none", dir, "tmpfs", 0, fmt.Sprintf("size=%dk", 2048+r.rnd.IntN(2048))); err != nil {
		return nil, fmt.Errorf("%w: a tmpfs cannot be mounted: %v", errNoMeans, err)
	}
	d := &smallDisk{dir: dir, file: filepath.Join(dir, "disk.img")}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.close())
		}
	}()
	if err := os.WriteFile(d.file, nil, 0o600); err != nil {
		return nil, err
	}
	if err := os.Truncate(d.file, smallDiskSize); err != nil {
		return nil, err
	}
	out, err := exec.CommandContext(ctx, "losetup", "--find", "--show", d.file).CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("%w: losetup: %v: %s", errNoMeans, err, out)
	}
	d.loop = strings.TrimSpace(string(out))
	return d, nil
}

// detach takes the device away: what only a cache held is gone, the file is left.
func (d *smallDisk) detach() error {
	if d.loop == "" {
		return nil
	}
	out, err := exec.Command("losetup", "--detach", d.loop).CombinedOutput()
	if err != nil {
		return fmt.Errorf("losetup --detach %s: %w: %s", d.loop, err, out)
	}
	d.loop = ""
	return nil
}

func (d *smallDisk) close() error {
	return errors.Join(d.detach(), unix.Unmount(d.dir, unix.MNT_DETACH))
}

// fullDisk writes with FUA and flushes, at depth, to a disk whose file system fills up. What
// was acknowledged must be there when the disk is opened again.
func fullDisk(ctx context.Context, r *run) (err error) {
	d, err := newSmallDisk(ctx, r)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.close()) }()
	t, err := r.target(ctx, d.loop)
	if err != nil {
		return err
	}
	defer func() { t.kill() }()
	l := load{scheme: "iser", addr: t.addr, ledger: filepath.Join(r.dir, filepath.Base(d.dir)+".ledger"), size: smallDiskSize, block: 4096, depth: 16, seed: r.rnd.Uint64()}
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
	if err := d.detach(); err != nil {
		return err
	}
	if t, err = r.target(ctx, d.file); err != nil {
		return err
	}
	l.addr = t.addr
	if err := r.verify(ctx, l, "--verify-durable"); err != nil {
		return fmt.Errorf("durable writes to a disk that ran full: %w", err)
	}
	return nil
}
