package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"softiser/config"
	"softiser/internal/handover"
	"softiser/lvm"
	"softiser/target"
	"softiser/target/admin"
	"softiser/target/registry"
)

// taking is what another process has given to this one.
type taking struct {
	*handover.Taken
	state    handedOver
	volumes  []registry.Handed
	metrics  *handover.Listener // where the old process had none at this address
	collects func()             // of holdCollector
}

// takeOver asks the process that serves the admin socket for what it has. Nothing of it is
// touched before it is this process's, which it is when there is no error.
func (a *app) takeOver(ctx context.Context, cfg *config.Config) (_ *taking, err error) {
	if cfg.Admin.Socket == "" {
		return nil, exit(exitUsage, errors.New("--takeover: no admin socket is configured, by which the running target could be asked (admin.socket, --socket)"))
	}
	ctx, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	prepareState()
	c, err := admin.TakeOver(ctx, cfg.Admin.Socket)
	if err != nil {
		return nil, fmt.Errorf("--takeover: %w", err)
	}
	offered, err := handover.Take(c, "iser-target "+version, stateVersion, settlePatience+copyPatience+changePatience+freezePatience+readyPatience)
	if err != nil {
		return nil, fmt.Errorf("--takeover: %w", err)
	}
	t := &taking{Taken: offered, collects: holdCollector()}
	defer func() {
		if err != nil {
			t.giveBack()
		}
	}()
	if err := t.understand(a, cfg); err != nil {
		offered.Refuse(err)
		return nil, fmt.Errorf("--takeover: %w", err)
	}
	if err := t.reserve(cfg); err != nil {
		offered.Refuse(err)
		return nil, fmt.Errorf("--takeover: %w", err)
	}
	if err := offered.Accept(); err != nil {
		return nil, fmt.Errorf("--takeover: %w", err)
	}
	return t, nil
}

// giveBack ends a takeover that has come to nothing.
func (t *taking) giveBack() {
	t.Close()
	if t.metrics != nil {
		t.metrics.Close()
	}
	t.collects()
}

// reserve takes what this process needs of the host beside what is handed over, as far as the old
// one has not got it: what is missing is found while that can go on.
func (t *taking) reserve(cfg *config.Config) (err error) {
	for _, p := range cfg.Portals {
		if isRoCE(p.Listen) {
			if err := localAddress(strings.TrimPrefix(p.Listen, roceScheme)); err != nil {
				return fmt.Errorf("portal %s: %w", p.Listen, err)
			}
		}
	}
	if m := t.state.Metrics; cfg.Admin.Metrics != "" && (m == nil || m.Listen != cfg.Admin.Metrics) {
		t.metrics, err = listenMetrics(cfg.Admin.Metrics)
	}
	return err
}

// localAddress says why nothing can listen at an address of UDP on this host, its port aside, which
// the old process may have.
func localAddress(addr string) error {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		host = strings.Trim(addr, "[]")
	}
	c, err := net.ListenPacket("udp", net.JoinHostPort(host, "0"))
	if err != nil {
		return err
	}
	return c.Close()
}

// checkFiles says which descriptor has not come, or is to be two things.
func (t *taking) checkFiles() error {
	s := &t.state
	owners := make([]string, t.Files())
	var errs []error
	own := func(what string, i int) {
		switch {
		case i < 0 || i >= len(owners):
			errs = append(errs, fmt.Errorf("%s: no descriptor has come with it", what))
		case owners[i] != "":
			errs = append(errs, fmt.Errorf("%s has come with the descriptor of %s", what, owners[i]))
		default:
			owners[i] = what
		}
	}
	own("the admin socket", s.Admin)
	if s.Metrics != nil {
		own("the metrics address", s.Metrics.File)
	}
	if s.StateLock != nil {
		own("the state folder", *s.StateLock)
	}
	for _, p := range s.Portals {
		own("portal "+p.Listen, p.File)
	}
	for i := range s.Volumes {
		if v := &s.Volumes[i]; v.Group == "" {
			own("volume "+v.Name, v.File)
		}
	}
	for i := range s.Groups {
		for _, d := range s.Groups[i].Disks {
			own("volume group "+s.Groups[i].Name, d.File)
		}
	}
	for _, index := range s.Carried.Files() {
		own("a connection", *index)
	}
	return errors.Join(errs...)
}

// checkStateDir refuses a folder of this process in which volumes would not find what they have kept in
// that of the old one: rewrites under way, registrations, marks, mode pages.
func (t *taking) checkStateDir(mine string) error {
	theirs := t.state.StateDir
	if theirs == "" || theirs == mine {
		return nil
	}
	if a, err := os.Stat(theirs); err == nil {
		if b, err := os.Stat(mine); err == nil && os.SameFile(a, b) {
			return nil
		}
	}
	return fmt.Errorf("the running target has admin.state_dir %s, the configuration of the new process %s; another folder takes a restart, with the files moved into it", theirs, cmp.Or(mine, "none"))
}

// understand reads the state and says whether this process can go on with it.
func (t *taking) understand(a *app, cfg *config.Config) error {
	if err := json.Unmarshal(t.State, &t.state); err != nil {
		return fmt.Errorf("the state that was offered: %w", err)
	}
	var mine, theirs []string
	for _, p := range cfg.Portals {
		if !isRoCE(p.Listen) {
			mine = append(mine, p.Listen)
		}
	}
	for _, p := range t.state.Portals {
		theirs = append(theirs, p.Listen)
	}
	slices.Sort(mine)
	slices.Sort(theirs)
	if !slices.Equal(mine, theirs) {
		return fmt.Errorf("the running target has the portals %v, the configuration of the new process %v; other portals take a restart", theirs, mine)
	}
	for i := range t.state.Volumes {
		v := &t.state.Volumes[i]
		if v.Group != "" {
			if !slices.ContainsFunc(t.state.Groups, func(h lvm.Handed) bool { return h.Name == v.Group }) {
				return fmt.Errorf("volume %s: its group %s has not come with it", v.Name, v.Group)
			}
		}
		t.volumes = append(t.volumes, v.Handed)
	}
	return errors.Join(t.checkFiles(), t.checkStateDir(a.stateDir), a.reg.CheckHanded(t.volumes), a.srv.CheckCarried(&t.state.Carried, t.Files()))
}

// adopt takes the sockets over. Portals for RoCE and a metrics address that is new are
// opened as at any start.
func (l *listeners) adopt(a *app, t *taking, cfg *config.Config) (err error) {
	defer func() {
		if err != nil {
			l.close()
		}
	}()
	for _, p := range t.state.Portals {
		fd, err := t.File(p.File)
		if err != nil {
			return err
		}
		if err := a.srv.Inherit(p.Listen, fd); err != nil {
			return err
		}
	}
	if slices.ContainsFunc(cfg.Portals, func(p config.Portal) bool { return isRoCE(p.Listen) }) {
		if err := t.Gone(readyPatience); err != nil {
			return err
		}
	}
	if err := a.srv.Listen(); err != nil {
		return err
	}
	if l.admin, err = t.listener(t.state.Admin); err != nil {
		return fmt.Errorf("admin socket: %w", err)
	}
	if l.kept = t.state.Kept; !l.kept {
		l.admin.Owned()
	}
	switch m := t.state.Metrics; {
	case cfg.Admin.Metrics == "":
	case m != nil && m.Listen == cfg.Admin.Metrics:
		l.metrics, err = t.listener(m.File)
	default:
		l.metrics, t.metrics = t.metrics, nil
	}
	return err
}

func (t *taking) listener(file int) (*handover.Listener, error) {
	fd, err := t.File(file)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "handed over")
	defer f.Close()
	ln, err := net.FileListener(f)
	if err != nil {
		return nil, err
	}
	return handover.Pausable(ln), nil
}

// open serves the volumes that have been handed over.
func (t *taking) open(a *app) (err error) {
	for i := range t.volumes {
		if t.volumes[i].Group != "" {
			continue
		}
		fd, err := t.File(t.state.Volumes[i].File)
		if err != nil {
			return err
		}
		t.volumes[i].Store.FD = fd
	}
	for i := range t.state.Groups {
		for j := range t.state.Groups[i].Disks {
			d := &t.state.Groups[i].Disks[j]
			if d.Store.FD, err = t.File(d.File); err != nil {
				return err
			}
		}
	}
	if file := t.state.StateLock; file != nil {
		fd, err := t.File(*file)
		if err != nil {
			return err
		}
		a.reg.InheritStateDir(fd)
	}
	if err := a.reg.OpenHanded(t.volumes, t.state.Groups); err != nil {
		return err
	}
	t.adopt(a)
	t.collects()
	return nil
}

// adopt goes on with sessions and controllers. One that cannot be had ends: its peer comes again.
func (t *taking) adopt(a *app) {
	for fd, index := range t.state.Carried.Files() {
		var err error
		if *fd, err = t.File(*index); err != nil {
			a.log.Error("a connection was not taken over; its peer connects again", zap.Error(err))
		}
	}
	if err := a.srv.Adopt(&t.state.Carried); err != nil {
		a.log.Error("some sessions and controllers were not taken over; their peers connect again", zap.Error(err))
	}
}

// finish opens, when the old process has ended, what it had not handed over.
func (t *taking) finish(ctx context.Context, a *app) {
	defer t.Close()
	defer close(a.changes.opened)
	if err := t.Gone(readyPatience); err != nil {
		a.log.Error("the process before has not ended; what it has not handed over may be in use", zap.Error(err))
	}
	// The lock of groups has ended with the old process: another node may have been faster.
	if err := a.reg.OpenVolumes(ctx, t.state.Standby...); err != nil {
		a.log.Error("what was not handed over could not be opened", zap.Error(err))
	}
	soon, cancel := context.WithTimeout(context.Background(), promotePatience)
	defer cancel()
	for _, name := range t.state.Active {
		if err := a.reg.Promote(soon, name); err != nil {
			a.log.Error("a group that was active before the takeover is not any more; iser-target promote makes it that", zap.String("group", name), zap.Error(err))
		}
	}
}

// tell says what has been taken over, and how long everybody has waited for it.
func (t *taking) tell(a *app) {
	now := time.Now()
	a.taken = &target.TakenOver{PID: t.state.PID, At: now, Pause: now.Sub(t.state.Began)}
	a.log.Info("took over", zap.Int("from", a.taken.PID), zap.Duration("pause", a.taken.Pause),
		zap.Int("portals", len(t.state.Portals)), zap.Int("volumes", len(t.volumes)),
		zap.Int("sessions", len(t.state.Carried.ISCSI.Sessions)), zap.Int("controllers", len(t.state.Carried.NVMe.Controllers)), zap.Strings("closed", t.state.Closed))
}
