package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"softiser/blockdev"
	"softiser/lvm"
	"softiser/lvm/cli"
	"softiser/lvm/vg"
)

// side is one implementation with its volumes. write and read may be called
// concurrently; p is page-aligned.
type side interface {
	group() string
	device() string
	lvm(args ...string) error
	open(volumes ...string) error
	write(volume string, p []byte, off int64) error // durable
	read(volume string, p []byte, off int64) error
	close() error
}

// kernel is lvm2 and device-mapper.
type kernel struct {
	disk string
	vols map[string]*os.File
}

func (k *kernel) group() string  { return "theirs" }
func (k *kernel) device() string { return k.disk }

func (k *kernel) lvm(args ...string) error {
	out, err := exec.Command("lvm", append(args, "-y")...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("lvm %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return nil
}

func (k *kernel) open(volumes ...string) error {
	k.vols = map[string]*os.File{}
	for _, v := range volumes {
		f, err := os.OpenFile(filepath.Join("/dev", k.group(), v), os.O_RDWR|syscall.O_DIRECT|syscall.O_DSYNC, 0)
		if err != nil {
			return err
		}
		k.vols[v] = f
	}
	return nil
}

func (k *kernel) write(v string, p []byte, off int64) error {
	_, err := k.vols[v].WriteAt(p, off)
	return err
}

func (k *kernel) read(v string, p []byte, off int64) error {
	_, err := k.vols[v].ReadAt(p, off)
	return err
}

func (k *kernel) close() error {
	var errs []error
	for _, f := range k.vols {
		errs = append(errs, f.Close())
	}
	k.vols = nil
	return errors.Join(errs...)
}

// user is this project's package lvm.
type user struct {
	disk string
	g    *lvm.Group
	vols map[string]*lvm.Volume
}

func (u *user) group() string  { return "ours" }
func (u *user) device() string { return u.disk }

func (u *user) config() lvm.Config {
	return lvm.Config{Config: vg.Config{ArchiveDir: "-", BackupDir: "-"}}
}

func (u *user) lvm(args ...string) error {
	args = append(args, "--yes", "--devices", u.disk)
	return cli.Run(context.Background(), cli.Env{Config: u.config()}, args, os.Stdin, os.Stderr, os.Stderr)
}

func (u *user) open(volumes ...string) (err error) {
	u.vols = map[string]*lvm.Volume{}
	if u.g, err = lvm.Open(u.config(), []string{u.disk}, u.group()); err != nil {
		return err
	}
	for _, v := range volumes {
		if u.vols[v], err = u.g.Volume(v); err != nil {
			return err
		}
	}
	return nil
}

func (u *user) write(v string, p []byte, off int64) error {
	var l blockdev.Lease
	if err := u.vols[v].LeaseWrite(&l, off, len(p), blockdev.Wait); err != nil {
		return err
	}
	defer l.Release()
	for _, s := range l.Segs {
		p = p[copy(s, p):]
	}
	return l.Commit(true)
}

func (u *user) read(v string, p []byte, off int64) error {
	var l blockdev.Lease
	if err := u.vols[v].LeaseRead(&l, off, len(p), blockdev.Wait); err != nil {
		return err
	}
	defer l.Release()
	for _, s := range l.Segs {
		p = p[copy(p, s):]
	}
	return nil
}

func (u *user) close() error {
	var errs []error
	for _, v := range u.vols {
		errs = append(errs, v.Close())
	}
	if u.g != nil {
		errs = append(errs, u.g.Close())
	}
	u.g, u.vols = nil, nil
	return errors.Join(errs...)
}
