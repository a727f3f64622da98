package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"go.uber.org/zap"

	"softiser/blockdev"
	"softiser/config"
	"softiser/internal/handover"
	"softiser/internal/systemd"
	"softiser/internal/usage"
	"softiser/target"
	"softiser/target/admin"
	"softiser/target/registry"
	"softiser/target/scsi"
)

type serveFlags struct {
	config  string
	listen  []string
	exports []string
	socket  string
	metrics string
	level   string
	drain   time.Duration
	storage time.Duration
	readyFD int

	takeover bool
}

const serveName = "serve"

// serveCommand builds the command that runs the target.
func serveCommand() *cobra.Command {
	var f serveFlags
	cmd := &cobra.Command{
		Use:   serveName,
		Short: "Serve volumes until SIGINT or SIGTERM",
		Long: `Serves volumes until SIGINT or SIGTERM, which drain: initiators are asked to log
out, running commands end, volumes are flushed. Storage that does not answer is given up
after --storage-timeout: the log names the volume, and the exit code is 1. Another
signal, a second or more after the first, ends the process at once.
SIGHUP reads the configuration file again, as iser-target reload does.

Without --config each --export NAME=VOLUME is served over all wires: as LUN 0 of the
target iqn.2026-11.softiser:NAME (iSER, iSCSI) and as namespace 1 of the subsystem
nqn.2026-11.softiser:NAME (NVMe). With neither, a demo volume in memory is served on the
loopback. A volume in memory ends with the process: after a restart initiators find
another, empty disk in its place.`,
		Example: `  iser-target serve
  iser-target serve --config /etc/softiser/iser-target.yaml
  iser-target serve --listen 127.0.0.1:3260 --export disk0=./disk0.img,size=1GiB \
      --export ram0=memory,size=1GiB --export null0=null,size=1TiB
  iser-target serve --listen 127.0.0.2:3260 --listen roce://127.0.0.2 --export ram0=memory,size=1GiB
  iser-target serve --listen '[::]:3260' --export backup=/dev/vg0/backup,ro`,
		Args: exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if f.config == "" && cmd.Flags().Changed("config") { // a variable that is not set, say: no wish for a demo
				return usage.Errorf("--config is empty; name the file, or leave the flag out")
			}
			return serve(cmd.Context(), &f, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	fl := cmd.Flags()
	fl.StringVarP(&f.config, "config", "c", "", "configuration file (YAML)")
	fl.StringArrayVarP(&f.listen, "listen", "l", nil, "address to listen on, host:port, or roce://address[:port] for RDMA over UDP; may be repeated (default 127.0.0.1:3260)")
	fl.StringArrayVarP(&f.exports, "export", "e", nil, "NAME=VOLUME; VOLUME is a path, \"memory\" or \"null\", then options: ,size=1GiB ,ro ,block=4096 ,phys=4096 ,writethrough ,prealloc ,hugepages ,placement=verified")
	fl.StringVar(&f.socket, "socket", "", "admin socket (default: $SOFTISER_ADMIN_SOCKET, then admin.socket of the configuration; else none)")
	fl.StringVar(&f.metrics, "metrics", "", "host:port for the status page, Prometheus' /metrics, /healthz and /readyz (default: admin.metrics of the configuration)")
	fl.StringVar(&f.level, "log-level", "", "debug, info, warn or error (default: logging.level of the configuration)")
	fl.IntVar(&f.readyFD, "ready-fd", 0, "descriptor to which a newline is written, and which is then closed, when volumes and portals are served and no group with start: active is still waiting")
	fl.BoolVar(&f.takeover, takeoverName, false, "take the place of the target that serves the admin socket, and go on with what it has open (see iser-target upgrade)")
	fl.DurationVar(&f.drain, "drain", 5*time.Second, "how long a shutdown waits for initiators to log out; 0s: not at all")
	fl.DurationVar(&f.storage, "storage-timeout", 50*time.Second, "how long a shutdown then waits for volumes that do not answer")
	cmd.MarkFlagsMutuallyExclusive("config", "export")
	completeFlag(cmd, "export", exports)
	completeFlag(cmd, "listen", oneOf("127.0.0.1:3260", "0.0.0.0:3260", "[::]:3260", "roce://127.0.0.2:3260"))
	completeFlag(cmd, "log-level", oneOf("debug", "info", "warn", "error"))
	return cmd
}

// resolve makes the configuration that the flags ask for.
func (f *serveFlags) resolve() (*config.Config, error) {
	var cfg *config.Config
	var err error
	switch {
	case f.drain < 0:
		return nil, exit(exitUsage, fmt.Errorf("--drain %v is negative; 0s waits for nobody", f.drain))
	case f.storage <= 0: // the process would end beside a flush
		return nil, exit(exitUsage, fmt.Errorf("--storage-timeout %v: volumes need time to be flushed; the default is 50s", f.storage))
	case f.config != "":
		cfg, err = config.Load(f.config)
	case len(f.exports) > 0:
		cfg, err = exportConfig(f.exports)
	default:
		cfg, err = exportConfig([]string{"demo=memory,size=256MiB"})
	}
	if err != nil {
		return nil, exit(exitUsage, err)
	}
	if len(f.listen) > 0 {
		if i := slices.IndexFunc(cfg.Portals, func(p config.Portal) bool { return p.TLS != nil }); i >= 0 {
			return nil, exit(exitUsage, fmt.Errorf("--listen would put portals without TLS in the place of %s, which has it; change portals in %s instead", cfg.Portals[i].Listen, f.config))
		}
		cfg.Portals = cfg.Portals[:0:0]
		for _, l := range f.listen {
			cfg.Portals = append(cfg.Portals, config.Portal{Listen: withPort(l), Group: 1})
		}
		if err := cfg.CheckPortals(); err != nil {
			return nil, exit(exitUsage, fmt.Errorf("--listen: %w", err))
		}
		// Targets that name portals of the file are offered on these instead.
		for i := range cfg.Targets {
			cfg.Targets[i].Portals = nil
		}
	}
	defaultPortal(cfg)
	override(&cfg.Admin.Socket, f.socket)
	override(&cfg.Admin.Metrics, f.metrics)
	override(&cfg.Logging.Level, f.level)
	if err := cfg.Admin.Check(cfg.Portals); err != nil {
		return nil, exit(exitUsage, fmt.Errorf("with the flags: %w", err))
	}
	return cfg, nil
}

// defaultPortal is the loopback where no portal is named.
func defaultPortal(cfg *config.Config) {
	if len(cfg.Portals) == 0 {
		cfg.Portals = []config.Portal{{Listen: net.JoinHostPort("127.0.0.1", target.DefaultPort), Group: 1}}
	}
}

func override(p *string, v string) {
	if v != "" {
		*p = v
	}
}

// withPort adds the registered port where there is none.
func withPort(a string) string {
	if isRoCE(a) {
		return a // portals for RoCE have a default of their own
	}
	if _, _, err := net.SplitHostPort(a); err != nil {
		return net.JoinHostPort(a, target.DefaultPort)
	}
	return a
}

// app is a server with what it serves, and the services beside it.
type app struct {
	log  *zap.Logger
	srv  *target.Server
	reg  *registry.Registry
	pool *blockdev.Pool

	stateDir string            // where volumes keep what survives a restart; "": nowhere
	taken    *target.TakenOver // set before services run; nil: from nobody

	changes  changeGate
	services sync.WaitGroup // admin socket and metrics
}

// timeouts are those of a shutdown. The library takes zero for its default; --drain 0s means
// that nobody is waited for.
func (f *serveFlags) timeouts(t *target.Timeouts) {
	t.Drain, t.Storage, t.Rest = max(f.drain, 1), f.storage, restPatience
}

// longestEnd is how long an end takes that waits for everything: a handover under way (giving.end),
// initiators, storage.
func (f *serveFlags) longestEnd() time.Duration {
	return f.drain + freezeTime + f.drain + f.storage
}

// build makes the server of a configuration, with its targets.
func (a *app) build(cfg *config.Config, f *serveFlags, c registry.Config) error {
	tc, err := registry.ServerConfig(cfg)
	if err != nil {
		return err
	}
	f.timeouts(&tc.Timeouts)
	if a.pool, err = blockdev.NewPool(int64(cfg.Limits.StagingMemory)); err != nil {
		return fmt.Errorf("limits.staging_memory: %w", err)
	}
	tc.Log, tc.Staging = a.log, a.pool
	if a.stateDir = tc.StateDir; a.stateDir != "" {
		if a.stateDir, err = filepath.Abs(a.stateDir); err != nil {
			return fmt.Errorf("admin.state_dir: %w", err)
		}
	}
	if a.srv, err = target.New(tc); err != nil {
		return err
	}
	c.Server, c.Log, c.Pool = a.srv, a.log, a.pool
	if a.reg, err = registry.New(cfg, c); err != nil {
		return errors.Join(err, a.srv.Shutdown(context.Background()))
	}
	return nil
}

// serve runs until ctx ends or a signal says so, and then drains. Its error carries the
// exit code.
func serve(ctx context.Context, f *serveFlags, out, logTo io.Writer) error {
	if err := checkReady(f.readyFD); err != nil {
		return err
	}
	cfg, err := f.resolve()
	if err != nil {
		return err
	}
	log, level, err := newLogger(cfg.Logging, logTo)
	if err != nil {
		return exit(exitUsage, err)
	}
	defer usage.OutliveReaders()()
	ctx, sig := takeSignals(ctx, f.config != "")
	defer sig.stop()
	a := &app{log: log}
	c := registry.Config{Program: version, SetLevel: func(name string) error { return level.UnmarshalText([]byte(name)) }}
	if f.config != "" {
		c.Load = f.resolve
	}
	if err := a.build(cfg, f, c); err != nil {
		return exit(exitUsage, err)
	}
	spareProcessors(cfg.Volumes)
	defer a.boundEnd(ctx, f.longestEnd())()
	defer a.reg.Close()
	var ls listeners
	taken, err := a.begin(ctx, f, cfg, &ls)
	if err != nil {
		return err
	}
	// From here on the process holds sockets; background services end with it.
	defer ls.close()
	bg, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer func() {
		cancel()
		a.services.Wait() // the socket is gone when serve returns
	}()
	go a.endWhenInsisted(ctx, bg, sig.again)
	if err := a.openVolumes(ctx, taken); err != nil {
		return err
	}
	g := newGiving(a, &ls, cfg.Admin.Metrics)
	a.serveAdmin(bg, ls.admin, g)
	a.serveMetrics(bg, ls.metrics)
	printBanner(out, a, cfg.Portals)
	if err := a.tellServing(bg, f.readyFD, taken != nil); err != nil {
		return err
	}
	a.services.Go(func() { a.watch(bg) })
	a.services.Go(func() {
		a.reg.TakeSnapshots(bg, func(what string) (func(), error) { return a.changes.enter(bg, what) })
	})
	defer systemd.Notify(systemd.Stopping) //nolint:errcheck // systemd sees the end in any case
	go a.reloadOn(bg, sig.hup)
	go g.upgradeOn(bg, sig.usr2)
	serving, stopServing := context.WithCancel(bg)
	defer stopServing()
	context.AfterFunc(ctx, func() {
		g.end(f.drain)
		stopServing()
	})
	if err := a.srv.Serve(serving); err != nil && !errors.Is(err, target.ErrServerClosed) {
		return err
	}
	return nil
}

// begin takes what the process needs of the host, or what another process has of it; taken
// is nil without one.
func (a *app) begin(ctx context.Context, f *serveFlags, cfg *config.Config, ls *listeners) (taken *taking, err error) {
	if !f.takeover {
		return nil, ls.open(a.srv, cfg)
	}
	if taken, err = a.takeOver(ctx, cfg); err != nil {
		return nil, err
	}
	return taken, ls.adopt(a, taken, cfg)
}

// openVolumes serves the volumes: those that have been handed over at once, the others when
// the old process has ended.
func (a *app) openVolumes(ctx context.Context, taken *taking) error {
	if taken == nil {
		return a.reg.OpenVolumes(ctx)
	}
	if err := taken.open(a); err != nil {
		return err
	}
	taken.tell(a)
	a.changes.opened = make(chan struct{})
	go taken.finish(ctx, a)
	return nil
}

// serveAdmin answers on the admin socket, if one is configured.
func (a *app) serveAdmin(ctx context.Context, ln *handover.Listener, g *giving) {
	if ln == nil {
		return
	}
	a.log.Info("admin socket", zap.Stringer("path", ln.Addr()))
	a.services.Go(func() {
		if err := admin.Serve(ctx, ln, a.backend(g)); err != nil {
			a.log.Error("admin socket failed", zap.Error(err))
		}
	})
}

// backend is what the admin socket controls.
func (a *app) backend(g *giving) admin.Backend {
	return admin.Backend{
		LVM:          a.lvmBackend(),
		Status:       a.status,
		Kill:         a.srv.KillSession,
		Release:      a.srv.ReleaseInitiator,
		AddLUN:       a.addLUN,
		RemoveLUN:    a.reg.RemoveLUN,
		Resize:       a.reg.ResizeLUN,
		ResizeVolume: a.reg.ResizeVolume,
		AddNamespace: a.addNamespace, RemoveNamespace: a.reg.RemoveNamespace,
		SetAccess: a.setAccess,
		Promote:   a.reg.Promote, Demote: a.reg.Demote,
		Reload: a.reload,
		Log:    a.log.Named("audit"),
		Trace:  a.reg.Trace,
		Change: a.changes.enter, Upgrade: g.upgrade, HandOver: g.serve,
	}
}

// status is that of what is served, and of this process.
func (a *app) status() target.Status {
	st := a.reg.Status()
	st.TakenOver = a.taken
	return st
}

func (a *app) addLUN(ctx context.Context, iqn string, r admin.LUNRequest) error {
	v, err := a.volumeOf(r.Name, r.Spec)
	if err != nil {
		return err
	}
	if err := a.reg.AddLUN(ctx, iqn, r.LUN, v); err != nil {
		return err
	}
	spareProcessors([]config.Volume{v})
	return nil
}

func (a *app) addNamespace(ctx context.Context, nqn string, r admin.NamespaceRequest) error {
	v, err := a.volumeOf(r.Name, r.Spec)
	if err != nil {
		return err
	}
	if err := a.reg.AddNamespace(ctx, nqn, r.NSID, v); err != nil {
		return err
	}
	spareProcessors([]config.Volume{v})
	return nil
}

// volumeOf returns the volume that a request is about: one that it describes, or one that
// is served or configured already, by its name.
func (a *app) volumeOf(name, spec string) (config.Volume, error) {
	if spec != "" {
		if err := config.CheckVolumeName(name); err != nil {
			return config.Volume{}, err
		}
		return exportVolume(name, spec)
	}
	return a.reg.Volume(name)
}

// setAccess changes an access state that no group of volumes stands for.
func (a *app) setAccess(node string, number, group uint16, s scsi.AccessState) error {
	if g := a.reg.GroupAt(node, uint32(number)); g != "" {
		return fmt.Errorf("the volume moves between nodes with group %s; iser-target promote %s and demote change its access states", g, g)
	}
	if err := a.reg.Unserved(node, uint32(number)); err != nil {
		return err
	}
	return a.srv.SetAccessState(node, number, group, s)
}

func (a *app) reload(ctx context.Context, dry bool) ([]admin.Change, []string, error) {
	changes, warnings, err := a.reg.Reload(ctx, dry)
	if file, ok := errors.AsType[*registry.FileError](err); ok {
		return nil, nil, &admin.FileError{Message: file.Error()}
	}
	if err != nil {
		return nil, nil, err
	}
	if !dry {
		spareProcessors(a.reg.Volumes())
	}
	all := make([]admin.Change, len(changes))
	for i, c := range changes {
		all[i] = admin.Change(c)
	}
	return all, warnings, nil
}
