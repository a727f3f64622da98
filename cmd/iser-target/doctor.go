package main

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"softiser/config"
	"softiser/internal/doctor"
	"softiser/internal/usage"
	"softiser/target"
	"softiser/target/registry"
)

// defaultConfig is the configuration of the service.
const defaultConfig = "/etc/softiser/iser-target.yaml"

// serviceUnit is what the service is called.
const serviceUnit = "iser-target"

var errUnwell = errors.New("something does not work as it is; the errors above say what mends it")

// doctorCommand builds the command that says what this host allows.
func doctorCommand() *cobra.Command {
	p := &patient{}
	var asJSON bool
	var bundle, log string
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Say what this host allows a target, and what mends what it does not",
		Long: `Looks at what a target needs of this host: the kernel, limits of memory and of open
files, sysctls of the network, modules, ports, the clock, control groups, the state folder,
and the configuration. Each finding has a level:

  ok       nothing to do
  note     good to know
  warning  it works, and costs something
  error    something that is configured cannot work

and, where there is something to do, what it costs and the command that mends it. Nothing
is changed. Limits are those of the running target, where one answers, else those of the
shell that asks. The exit code is 1 if there is an error, else 0.

--bundle packs what helps to find out from afar what is wrong: the findings, version,
configuration, status, metrics, the end of the log, facts from /proc. Contents of the
files and variables that the configuration names as secrets are left out, wherever they
stand, and what looks like a secret. Read it before you give it away all the same: names,
addresses and serial numbers are in it.`,
		Example: `  iser-target doctor
  iser-target doctor --bundle support.tar.gz
  iser-target doctor --config iser-target.yaml --json | jq '.[] | select(.level == "error")'`,
		Args: exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if packed := cmd.Flags().Changed("bundle"); packed && bundle == "" {
				return usage.Errorf("--bundle is empty; name the file that is to be made")
			} else if log != "" && !packed {
				return usage.Errorf("--log goes with --bundle")
			}
			findings := p.examine(cmd.Context())
			if err := tellFindings(cmd, findings, asJSON); err != nil {
				return err
			}
			if bundle != "" {
				if err := p.bundle(cmd.Context(), bundle, log, findings); err != nil {
					return err
				}
			}
			if doctor.Worst(findings) == doctor.Error {
				return exit(exitFailure, errUnwell)
			}
			return nil
		},
	}
	p.sock.add(cmd)
	cmd.PersistentFlags().Lookup("socket").Usage = "admin socket (default $SOFTISER_ADMIN_SOCKET, then admin.socket of the configuration, then /run/softiser/iser-target.sock)"
	cmd.Flags().StringVarP(&p.file, "config", "c", "", "configuration file (default "+defaultConfig+", if it is there)")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.Flags().StringVar(&bundle, "bundle", "", "file for a support bundle (.tar.gz, mode 0600), which must not be there yet")
	cmd.Flags().StringVar(&log, "log", "", "with --bundle: the target's log (default: the journal of "+serviceUnit+")")
	return cmd
}

func tellFindings(cmd *cobra.Command, all []doctor.Finding, asJSON bool) error {
	if asJSON {
		return printJSON(cmd.OutOrStdout(), all)
	}
	return doctor.Print(cmd.OutOrStdout(), all)
}

// patient is the target that is looked at, and its host.
type patient struct {
	file string
	sock socketFlag
	host doctor.Host

	cfg     *config.Config // what it is to be; never nil after examine
	err     error          // why cfg is only the default
	status  *target.Status // of the one that runs; nil: none answers
	noReply error          // why
}

// examine makes the checks.
func (p *patient) examine(ctx context.Context) []doctor.Finding {
	p.load()
	p.ask(ctx)
	return doctor.Run(&p.host, p.checks())
}

// load reads the configuration. Without one, or with one that is wrong, the host is looked
// at for a target with defaults.
func (p *patient) load() {
	if _, err := os.Stat(defaultConfig); p.file == "" && !errors.Is(err, fs.ErrNotExist) {
		p.file = defaultConfig
	}
	if p.file != "" {
		if p.cfg, p.err = config.Load(p.file); p.err == nil {
			defaultPortal(p.cfg)
			p.err = registry.Check(p.cfg)
		}
	}
	if p.cfg == nil || p.err != nil {
		var err error
		if p.cfg, err = config.Default(); err != nil { // the environment is wrong
			p.cfg, p.err = &config.Config{}, err
		}
	}
	defaultPortal(p.cfg)
}

// ask asks a running target what it is, and the kernel which process that is.
func (p *patient) ask(ctx context.Context) {
	if p.sock.path == "" {
		p.sock.path = p.cfg.Admin.Socket
	}
	c, err := p.sock.open()
	if err != nil {
		p.noReply = err
		return
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(ctx, askPatience)
	defer cancel()
	st, err := c.Status(ctx)
	if err != nil {
		p.noReply = err
		return
	}
	p.status = &st
	if pid := c.PID(ctx); pid > 0 {
		p.host.PID = strconv.Itoa(pid)
	}
}

// checks are those that matter to this target.
func (p *patient) checks() []doctor.Check {
	cfg := p.cfg
	all := []doctor.Check{{Name: "configuration", Look: p.configuration}, {Name: "target", Look: p.running}}
	all = append(all, p.portals()...)
	var congestion []string
	roce := false
	for i := range cfg.Portals {
		congestion = append(congestion, cfg.Portals[i].Congestion)
		roce = roce || cfg.Portals[i].RoCE()
	}
	var locked, memory int64
	huge := false
	for i := range cfg.Volumes {
		v := &cfg.Volumes[i]
		huge = huge || v.HugePages
		if v.Lock {
			locked += volumeSize(v)
		}
		if v.Type == config.VolumeMemory {
			memory += int64(v.Size)
		}
	}
	return append(all,
		doctor.Kernel,
		doctor.OpenFiles(serviceUnit, cfg.Limits.Sessions+cfg.Limits.PendingLogins+len(cfg.Volumes)),
		doctor.Memlock(serviceUnit, locked), doctor.HugePages(huge),
		doctor.GroupMemory(memory+int64(cfg.Limits.StagingMemory)), doctor.GroupCPU, doctor.GroupTasks,
		doctor.Congestion(congestion...), doctor.Backlog, doctor.Windows, doctor.DatagramBuffers, doctor.Rxe(roce),
		doctor.Clock, doctor.Folder(cfg.Admin.StateDir, func() (start, save error) { return registry.ProbeStateDir(cfg) }))
}

// volumeSize is what there is of a volume, or what there is to be.
func volumeSize(v *config.Volume) int64 {
	n := int64(v.Size)
	if fi, err := os.Stat(v.Path); err == nil && v.Path != "" {
		n = max(n, fi.Size())
	}
	return n
}

// configuration is the check of the file.
func (p *patient) configuration(*doctor.Host) doctor.Finding {
	switch {
	case errors.Is(p.err, fs.ErrPermission): // of the file itself: perhaps only whoever asks may not read it
		return doctor.Finding{Level: doctor.Warning, Found: p.err.Error(), Cost: "what follows is about the defaults; a target of this user does not start",
			Mend: "sudo iser-target doctor --config " + p.file}
	case p.err != nil:
		f := doctor.Finding{Level: doctor.Error, Found: strings.ReplaceAll(p.err.Error(), "\n", "; "), Cost: "serve does not start, and a reload changes nothing; what follows is about the defaults"}
		if p.file != "" { // else the environment is wrong, and the error names the variable
			f.Mend = "iser-target check --config " + p.file
		}
		return f
	case p.file == "":
		return doctor.Finding{Level: doctor.Note, Found: "there is no " + defaultConfig, Cost: "what follows is about the defaults",
			Mend: "install -D -m 640 -g softiser /usr/share/doc/iser-target/examples/production.yaml " + defaultConfig}
	}
	if w := p.cfg.Warnings(); len(w) > 0 {
		return doctor.Finding{Level: doctor.Warning, Found: strings.Join(w, "; "), Cost: "it is allowed, and hardly meant", Mend: "iser-target check --config " + p.file}
	}
	return doctor.Finding{Found: p.file}
}

// running is the check that a target answers and serves all that is configured.
func (p *patient) running(*doctor.Host) doctor.Finding {
	if p.status == nil {
		return doctor.Finding{Level: doctor.Note, Found: p.noReply.Error(), Cost: "nothing is served, or nobody can tell", Mend: "systemctl start " + serviceUnit}
	}
	var un []string
	for where, why := range p.status.Unserved() {
		un = append(un, where+": "+why)
	}
	if len(un) > 0 {
		return doctor.Finding{Level: doctor.Error, Found: "not served: " + strings.Join(un, "; "), Cost: "initiators find nothing there",
			Mend: "iser-target reload   # when the reason is mended"}
	}
	return doctor.Finding{Found: p.status.State}
}

// portals are the checks of the addresses that are listened on.
func (p *patient) portals() (all []doctor.Check) {
	beside := map[uint16]string{4420: "NVMe", 8009: "the discovery service of NVMe"}
	add := func(network, addr, listen string) {
		a, err := net.ResolveTCPAddr("tcp", addr)
		if err != nil || a.Port == 0 {
			return // who listens says why not; any port that is free will do
		}
		ap := a.AddrPort()
		if !ap.Addr().IsValid() {
			ap = netip.AddrPortFrom(netip.IPv6Unspecified(), ap.Port())
		}
		ap = netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
		delete(beside, ap.Port())
		all = append(all, doctor.Port(network, ap, p.listens(listen)))
	}
	for i := range p.cfg.Portals {
		l := p.cfg.Portals[i].Listen
		if !isRoCE(l) {
			add("tcp", l, l)
			continue
		}
		host := strings.TrimPrefix(l, roceScheme)
		if h, _, err := net.SplitHostPort(host); err == nil {
			host = h
		}
		add("udp", net.JoinHostPort(strings.Trim(host, "[]"), roceUDP), l)
	}
	if m := p.cfg.Admin.Metrics; m != "" {
		all = append(all, p.metricsPort(m)...)
	}
	for _, port := range []uint16{4420, 8009} {
		if what, ok := beside[port]; ok {
			all = append(all, doctor.Beside(port, what))
		}
	}
	return all
}

// roceUDP is the port of RoCE v2.
const roceUDP = "4791"

func (p *patient) metricsPort(m string) []doctor.Check {
	a, err := net.ResolveTCPAddr("tcp", m)
	if err != nil || a.Port == 0 || a.IP == nil {
		return nil
	}
	ap := a.AddrPort()
	return []doctor.Check{doctor.Port("tcp", netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port()), p.status != nil)}
}

// listens reports whether the running target has a portal.
func (p *patient) listens(listen string) bool {
	return p.status != nil && slices.ContainsFunc(p.status.Portals, func(s target.PortalStatus) bool { return s.Listen == listen && s.Bound != "" })
}
