package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"softiser/lvm"
	"softiser/lvm/cli"
	"softiser/lvm/vg"
	"softiser/target/admin"
)

// lvmCommand is lvm2's commands. What concerns a volume group that a running
// target has open is done there; everything else on devices opened here.
func lvmCommand() *cobra.Command {
	var s socketFlag
	var cmd *cobra.Command
	env := cli.Env{Remote: func(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) (bool, error) {
		c, err := s.open()
		if err != nil {
			return true, err
		}
		defer c.Close()
		gs, err := c.Groups(ctx)
		if errors.Is(err, admin.ErrNoTarget) || err == nil && !concerns(gs, args) {
			return false, nil
		}
		if errors.Is(err, syscall.EACCES) {
			err = fmt.Errorf("%w; --socket /dev/null works on devices that no target serves", err)
		}
		if err != nil {
			return true, err
		}
		// The socket is this side's business.
		args = slices.DeleteFunc(slices.Clone(args), func(a string) bool { return strings.HasPrefix(a, "--socket=") })
		err = c.LVM(ctx, args, stdin, stdout, stderr)
		var q *admin.Question
		if errors.As(err, &q) {
			err = &cli.Question{Text: q.Text}
		}
		return true, err
	}, Disks: func(ctx context.Context, group string) ([]string, error) {
		c, err := s.open()
		if err != nil {
			return nil, err
		}
		defer c.Close()
		gs, err := c.Groups(ctx)
		if err != nil {
			return nil, nil //nolint:nilerr // no target, or Remote finds what is wrong
		}
		for _, g := range gs {
			if g.Name == group {
				return g.Devices, nil
			}
		}
		return nil, nil
	}}
	if _, err := unix.IoctlGetTermios(int(os.Stdin.Fd()), unix.TCGETS); err == nil {
		env.Ask = func(ctx context.Context, question string) (bool, error) {
			return cli.Prompt(os.Stdin, cmd.ErrOrStderr())(ctx, question)
		}
	}
	cmd = cli.Command(env)
	s.add(cmd)
	return cmd
}

// lvmExitCode is the exit code of a command below lvm that failed, 0 if cmd is
// none.
func lvmExitCode(cmd *cobra.Command, err error) int {
	switch {
	case cmd.Name() == "lvm":
		return cli.ExitNoCommand
	case cmd.HasParent() && cmd.Parent().Name() == "lvm":
		return cli.ExitCode(err)
	}
	return 0
}

// concerns reports whether a command line is about a group in gs: it names the
// group, a volume or a device of it, or is a report about everything, or about
// devices some of which are the target's.
func concerns(gs []admin.VolumeGroup, args []string) bool {
	named, devices, served := false, false, false
	for _, arg := range args[1:] {
		if strings.HasPrefix(arg, "-") {
			path, is := strings.CutPrefix(arg, "--devices=")
			devices = devices || is
			served = served || is && slices.ContainsFunc(gs, func(g admin.VolumeGroup) bool { return isAmong(path, g.Devices) })
			continue
		}
		named = true
		group, _, _ := strings.Cut(strings.TrimPrefix(arg, "/dev/"), "/")
		path, err := filepath.Abs(strings.SplitN(arg, ":", 2)[0])
		for _, g := range gs {
			if g.Name == group || err == nil && isAmong(path, g.Devices) {
				return true
			}
		}
	}
	return !named && (served || !devices && len(gs) > 0)
}

// isAmong reports whether a path leads to one of the devices, by its own name or another one.
func isAmong(path string, devices []string) bool {
	if slices.Contains(devices, path) {
		return true
	}
	is, err := os.Stat(path)
	return err == nil && slices.ContainsFunc(devices, func(d string) bool {
		other, err := os.Stat(d)
		return err == nil && os.SameFile(is, other)
	})
}

// lvmBackend offers the target's groups on the admin socket.
func (a *app) lvmBackend() admin.LVM {
	return admin.LVM{
		Groups: func() []admin.VolumeGroup {
			out := []admin.VolumeGroup{}
			for _, name := range a.reg.Groups().Groups() {
				g := admin.VolumeGroup{Name: name}
				if x := a.reg.Groups().Group(name); x != nil {
					x.VG(func(v *vg.Group) error {
						for _, d := range v.Disks {
							g.Devices = append(g.Devices, d.Path)
						}
						return nil
					})
				}
				slices.Sort(g.Devices)
				out = append(out, g)
			}
			return out
		},
		Run: func(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) error {
			lvs := a.reg.Groups()
			err := cli.Run(ctx, cli.Env{Manager: lvs, Config: lvm.Config{Pool: a.pool, Open: lvs.Config.Open}}, args, stdin, stdout, stderr)
			var q *cli.Question
			if errors.As(err, &q) {
				err = &admin.Question{Text: q.Text}
			}
			return err
		},
	}
}
