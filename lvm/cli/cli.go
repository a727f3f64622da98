// Package cli has lvm2's commands for volume groups that this program serves
// or that lie in files: `iser-target lvm lvcreate …`. Names, options, size
// syntax, messages and report columns are lvm2's; diff, export, import and
// clone are additions.
//
// A command works on devices that it opens itself, or, where a target serves
// the group, inside that target: its admin socket takes the same arguments
// ([Env] with a Manager). What is served is changed on line.
//
// Devices are given by --devices, LVM_DEVICES, or are all block devices of the
// machine. Reports only read them; changes open those of the group exclusively.
package cli

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

	"softiser/blockdev"
	"softiser/internal/usage"
	"softiser/lvm"
	"softiser/lvm/vg"
)

// Env is where commands run.
type Env struct {
	// Manager has the groups of a running target; nil: devices are opened.
	Manager *lvm.Manager
	// Config is used for groups that are opened.
	Config lvm.Config
	// Remote, if not nil, offers the command to a running target first. It
	// returns false when no target answers or the group is not its own.
	Remote func(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) (handled bool, err error)
	// Disks, if not nil, returns the disks of a group that a running target has; none: it has no such group.
	Disks func(ctx context.Context, group string) ([]string, error)
	// Ask puts a question to the user, see [Prompt]; nil: nobody is there, and
	// what would be asked is an error.
	Ask func(ctx context.Context, question string) (yes bool, err error)
}

// app is one command line being executed: what every command has. The commands are
// families of their own around it (pvCommands, vgCommands, lvCommands …).
type app struct {
	env     Env
	devices []string
	yes     bool
	force   int
	agreed  []string // questions that were answered with yes
	args    []string // as given, for descriptions

	in       io.Reader
	out, err io.Writer

	opened []*lvm.Group // to be closed at the end
	disks  []*lvm.Disks
	files  []*os.File // of reports
}

// Command returns the command "lvm" with all its subcommands, for a process that runs one: cobra
// never forgets a flag with completions, nor what its command holds.
func Command(env Env) *cobra.Command {
	root, a := commands(env)
	for _, c := range root.Commands() {
		a.complete(c)
	}
	return root
}

// commands returns what Command does, without completions.
func commands(env Env) (*cobra.Command, *app) {
	root := &cobra.Command{Use: "lvm", Short: "Logical volumes in LVM2's format", SilenceUsage: true, SilenceErrors: true,
		Long: `The commands of lvm2, with its options, sizes and columns, in user space, and some of
their own. Disks may be block devices or files; files have to be named, by --devices or
by LVM_DEVICES. A command for a group that a running target serves is done by that
target, through its admin socket (--socket). See docs/lvm.md.`}
	exemplify(root)
	a := &app{env: env}
	f := root.PersistentFlags()
	f.StringSliceVar(&a.devices, "devices", nil, "files and block devices to use (default $LVM_DEVICES, else all block devices)")
	f.BoolVarP(&a.yes, "yes", "y", false, "answer every question with yes")
	f.StringArrayVar(&a.agreed, agreedFlag, nil, "questions that are answered with yes")
	f.Lookup(agreedFlag).Hidden = true
	for _, c := range slices.Concat(pvCommands{a}.all(), vgCommands{a}.all(), lvCommands{a}.all(), reports{a}.all(), displayCommands{reports{a}}.all(), transfers{a}.all()) {
		if c.Flags().ShorthandLookup("f") == nil { // lvm2's -f is a file of some commands
			c.Flags().CountVarP(&a.force, "force", "f", "override checks, as lvm2 does")
		}
		a.wrap(c)
		exemplify(c)
		root.AddCommand(c)
	}
	return root, a
}

// wrap sets the frame of a command: where it runs, and what is closed after it.
func (a *app) wrap(c *cobra.Command) {
	run := c.RunE
	c.RunE = func(cmd *cobra.Command, args []string) (err error) {
		a.in, a.out, a.err = cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr()
		a.args = slices.Concat([]string{cmd.Name()}, flagsOf(cmd), args)
		if len(a.devices) == 0 && a.env.Manager == nil && os.Getenv("LVM_DEVICES") != "" {
			a.devices = strings.Split(os.Getenv("LVM_DEVICES"), ",")
		}
		if err := notToTerminal(cmd); err != nil {
			return err
		}
		endInput, err := a.takeInput(cmd)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, endInput()) }()
		if done, err := a.remote(cmd); done || err != nil {
			return err
		}
		defer func() { err = errors.Join(err, a.close()) }()
		return a.lookedAt(run(cmd, args))
	}
}

// lookedAt adds to the error about a name that was not found that files are looked at only
// where they are named.
func (a *app) lookedAt(err error) error {
	if len(a.devices) > 0 || a.env.Manager != nil || !errors.Is(err, vg.ErrNotFound) {
		return err
	}
	return fmt.Errorf("%w; only block devices were looked at: name files by --devices or LVM_DEVICES", err)
}

// remote offers the command to a running target. Files named by --input and
// --output are those of this process.
func (a *app) remote(cmd *cobra.Command) (done bool, err error) {
	if a.env.Remote == nil {
		return false, nil
	}
	a.absolute(cmd.Name(), len(a.args)-cmd.Flags().NArg())
	in, out, args := io.Reader(nil), a.out, slices.DeleteFunc(slices.Clone(a.args), func(s string) bool { return strings.HasPrefix(s, "--devices=") })
	for _, d := range a.devices { // from --devices or from the environment
		if abs, err := filepath.Abs(d); err == nil {
			d = abs
		}
		args = append(args, "--devices="+d)
	}
	input := standardInput
	for _, name := range []string{"input", "output"} {
		f := cmd.Flags().Lookup(name)
		if f == nil {
			continue
		}
		if name == "input" {
			in = a.in
		}
		if f.Value.String() == "-" {
			continue
		}
		args = slices.DeleteFunc(args, func(s string) bool { return strings.HasPrefix(s, "--"+name+"=") })
		if name == "input" {
			r, err := openInput(cmd.Context(), f.Value.String())
			if err != nil {
				return false, err
			}
			defer r.Close()
			in = r
			input = f.Value.String()
			continue
		}
		if err := a.checkOutput(cmd, f.Value.String()); err != nil {
			return false, err
		}
		// Made only when a target runs the command: direct export makes its own.
		w := &output{ctx: cmd.Context(), name: f.Value.String()}
		defer func() { err = w.end(err) }()
		out = w
	}
	for {
		done, err := a.env.Remote(cmd.Context(), args, in, out, a.err)
		var q *Question
		if !errors.As(err, &q) || a.env.Ask == nil || in != nil { // an input cannot be read twice
			return done, nameInput(err, input)
		}
		if err := a.pose(cmd.Context(), q); err != nil {
			return true, err
		}
		args = append(args, "--"+agreedFlag+"="+q.Text)
	}
}

// absolute gives the devices among the arguments, which begin at first, and the
// file of a backup paths that do not depend on where the target was started.
func (a *app) absolute(command string, first int) {
	for i, arg := range a.args[:first] {
		if file, ok := strings.CutPrefix(arg, "--file="); ok && file != "" {
			if abs, err := filepath.Abs(file); err == nil {
				a.args[i] = "--file=" + abs
			}
		}
	}
	switch {
	case strings.HasPrefix(command, "pv"):
	case strings.HasPrefix(command, "vg"), command == "lvcreate", command == "lvextend", command == "lvresize":
		first++ // the first argument is the name of a volume or group
	default:
		return
	}
	for i := first; i < len(a.args); i++ {
		path, extents, cut := strings.Cut(a.args[i], ":")
		if _, err := os.Stat(path); err != nil || filepath.IsAbs(path) {
			continue
		}
		if abs, err := filepath.Abs(path); err == nil {
			a.args[i] = abs
			if cut {
				a.args[i] += ":" + extents
			}
		}
	}
}

// flagsOf rebuilds the flags that were given.
func flagsOf(cmd *cobra.Command) []string {
	var out []string
	cmd.Flags().Visit(func(f *pflagFlag) {
		if f.Name == agreedFlag { // answers to questions are added by whoever runs the command
			return
		}
		if s, ok := f.Value.(interface{ GetSlice() []string }); ok {
			for _, v := range s.GetSlice() {
				out = append(out, "--"+f.Name+"="+v)
			}
			return
		}
		out = append(out, "--"+f.Name+"="+f.Value.String())
	})
	return out
}

// Run executes one command line inside a running target.
func Run(ctx context.Context, env Env, args []string, stdin io.Reader, stdout, stderr io.Writer) error {
	c, _ := commands(env)
	c.SetFlagErrorFunc(usage.FlagError)
	usage.Tree(c)
	c.SetArgs(args)
	c.SetIn(stdin)
	c.SetOut(stdout)
	c.SetErr(stderr)
	return c.ExecuteContext(ctx)
}

// close gives up what the command opened.
func (a *app) close() error {
	var errs []error
	for _, g := range a.opened {
		errs = append(errs, g.Close())
	}
	for _, d := range a.disks {
		errs = append(errs, d.Close())
	}
	for _, f := range a.files {
		f.Close()
	}
	a.opened, a.disks, a.files = nil, nil, nil
	return errors.Join(errs...)
}

// why describes the command for the metadata and its archive.
func (a *app) why() string { return "executing '" + strings.Join(a.args, " ") + "'" }

// say prints a line as lvm2 does, indented by two.
func (a *app) say(format string, args ...any) { fmt.Fprintf(a.out, "  "+format+"\n", args...) }

func (a *app) config() lvm.Config {
	c := a.env.Config
	if c.Notice == nil {
		c.Notice = func(s string) { fmt.Fprintln(a.err, "  WARNING: "+s) }
	}
	return c
}

// paths are the devices to look at.
func (a *app) paths() []string {
	if len(a.devices) == 0 {
		return blockDevices()
	}
	return a.named()
}

// named are the devices that were given, each by the first of its names: a link to a disk is no copy of it.
func (a *app) named() (out []string) {
	var seen []os.FileInfo
	for _, p := range a.devices {
		if abs, err := filepath.Abs(p); err == nil {
			p = abs
		}
		if st, err := os.Stat(p); err == nil {
			if slices.ContainsFunc(seen, func(x os.FileInfo) bool { return os.SameFile(x, st) }) {
				continue
			}
			seen = append(seen, st)
		}
		out = append(out, p)
	}
	return out
}

// scan reads labels and metadata of all devices, without opening them for
// writing. Devices that cannot be read are passed over, as long as others can.
func (a *app) scan() (*vg.Scan, error) {
	if a.env.Manager != nil {
		return a.scanLive()
	}
	var ds []*vg.Disk
	for _, p := range a.paths() {
		d, err := a.reader(p)
		if err != nil {
			if len(a.devices) > 0 {
				return nil, err
			}
			continue
		}
		ds = append(ds, d)
	}
	return vg.ScanDisks(a.config().Config, ds), nil
}

// scanLive is scan inside a target: its groups as it has them, and what else is
// on the given devices.
func (a *app) scanLive() (*vg.Scan, error) {
	var live []*vg.Group
	var served []os.FileInfo
	for _, name := range a.env.Manager.Groups() {
		if g := a.env.Manager.Group(name); g != nil {
			v := g.View()
			live = append(live, v)
			for _, d := range v.Disks {
				if st, err := os.Stat(d.Path); err == nil {
					served = append(served, st)
				}
			}
		}
	}
	var others []*vg.Disk
	for _, p := range a.named() {
		st, err := os.Stat(p)
		if err == nil && slices.ContainsFunc(served, func(x os.FileInfo) bool { return os.SameFile(x, st) }) {
			continue
		}
		d, err := a.reader(p)
		if err != nil {
			return nil, err
		}
		others = append(others, d)
	}
	s := vg.ScanDisks(a.config().Config, others)
	s.Groups = append(live, s.Groups...)
	return s, nil
}

func (a *app) reader(path string) (*vg.Disk, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a pipe is an error below, and not waited for
	if err != nil {
		return nil, err
	}
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	a.files = append(a.files, f)
	return vg.NewReader(path, f, size)
}

// group opens a group for changes, or returns the running target's.
func (a *app) group(name string) (*lvm.Group, error) {
	if a.env.Manager != nil {
		if g := a.env.Manager.Group(name); g != nil {
			return g, nil
		}
		return nil, fmt.Errorf("volume group %q is not open in this target", name)
	}
	for _, g := range a.opened {
		if g.Metadata().Name == name {
			return g, nil
		}
	}
	s, err := a.scan()
	if err != nil {
		return nil, err
	}
	x, err := s.Find(name)
	if err != nil {
		return nil, err
	}
	var paths []string
	for _, pv := range x.VG.PVs {
		if d := x.Disks[pv.ID]; d != nil {
			paths = append(paths, d.Path)
		}
	}
	g, err := lvm.Open(a.config(), paths, name)
	if errors.Is(err, blockdev.ErrInUse) {
		return nil, fmt.Errorf("%w; a running iser-target does this on line, through its admin socket: --socket names it", err)
	}
	if err != nil {
		return nil, err
	}
	a.opened = append(a.opened, g)
	return g, nil
}

// splitLV splits VG/LV, or /dev/VG/LV.
func splitLV(arg string) (group, lv string, err error) {
	group, lv, ok := strings.Cut(strings.TrimPrefix(arg, "/dev/"), "/")
	if !ok || group == "" || lv == "" || strings.Contains(lv, "/") {
		return "", "", usage.Errorf("%q: a logical volume is named VG/LV", arg)
	}
	return group, lv, nil
}

// nameIn is the name of a volume that is in a group: of NAME, or VG/NAME.
func nameIn(group, name string) (string, error) {
	if name != "" && !strings.Contains(name, "/") {
		return name, nil
	}
	other, name, err := splitLV(name)
	if err == nil && other != group {
		err = usage.Errorf("use a single volume group name (%q or %q)", group, other)
	}
	return name, err
}
