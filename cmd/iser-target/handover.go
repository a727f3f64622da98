package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/dustin/go-humanize/english"
	"go.uber.org/zap"

	"softiser/internal/handover"
	"softiser/internal/systemd"
	"softiser/lvm"
	"softiser/target"
	"softiser/target/admin"
	"softiser/target/registry"
)

// stateVersion is that of handedOver. One that a process of this version reads differs from
// it by one at most; whoever changes the struct so that an older process would misread it
// counts on, and keeps reading what the version before wrote.
const stateVersion = 6

// handedOver is what a process tells the one that takes its place. Files are indices of the
// descriptors that come with it.
type handedOver struct {
	Began   time.Time        `json:"began"` // when the old process stopped
	PID     int              `json:"pid"`
	Portals []handedListener `json:"portals"`
	Admin   int              `json:"admin"`
	Kept    bool             `json:"admin_kept,omitempty"` // see listeners
	Metrics *handedListener  `json:"metrics,omitempty"`
	Volumes []handedVolume   `json:"volumes"`
	Groups  []lvm.Handed     `json:"groups,omitempty"` // of logical volumes; since version 5
	Carried target.Carried   `json:"carried"`          // since version 2; NVMe since version 3, iSER and NVMe/RDMA since version 4
	Closed  []string         `json:"closed"`           // what does not go over, for people
	// StateDir is where volumes keep what survives a restart; "": nowhere, or not told.
	StateDir string `json:"state_dir,omitempty"`
	// StateLock is the descriptor that keeps other processes from that folder; nil: there is none.
	StateLock *int `json:"state_lock,omitempty"`
	// Active are the groups of volumes that move between nodes and are this node's.
	Active []string `json:"active_groups,omitempty"`
	// Standby are those that are not, and are not to become so at the start.
	Standby []string `json:"standby_groups,omitempty"`
}

type handedListener struct {
	Listen string `json:"listen"` // as the configuration says
	File   int    `json:"file"`
}

type handedVolume struct {
	registry.Handed
	File int `json:"file"` // -1: it is in a group
}

// freezeTime is freezePatience outside tests; it is in the bound of how long a process takes to end.
const freezeTime = 3 * time.Second

// How long the steps of a handover may take. Tests on loaded machines allow more.
var (
	restPatience    = time.Second      // for sessions to stand still
	freezePatience  = freezeTime       // for commands that have begun
	settlePatience  = 2 * time.Second  // for what is written beforehand
	copyPatience    = 5 * time.Second  // for steps of rewrites, and copies that run, before anything stops
	changePatience  = 5 * time.Second  // for requests of administrators
	startPatience   = 30 * time.Second // for a new process, from its start until it is ready
	readyPatience   = 10 * time.Second // for one that has been offered everything
	promotePatience = 10 * time.Second // for groups that were the old process's
	answerPatience  = time.Second      // for an answer, when the old process has closed the connection that asks
)

// giving is the part of a process that another one takes the place of.
type giving struct {
	app     *app
	ls      *listeners
	metrics string // address in the configuration
	exit    func(int)

	others *handover.Succession[admin.Upgraded]

	mu     sync.Mutex
	takers map[*net.UnixConn]struct{} // guarded by mu: connections to those who would take over
	ending bool                       // guarded by mu: nobody takes over any more
}

func newGiving(a *app, ls *listeners, metrics string) *giving {
	return &giving{app: a, ls: ls, metrics: metrics, exit: os.Exit, others: handover.NewSuccession[admin.Upgraded](), takers: map[*net.UnixConn]struct{}{}}
}

// offering is what is collected for an offer.
type offering struct {
	handover.Offer
	state handedOver
}

// serve gives everything to the process at the other end of c, unless that does not want
// it; then this one goes on.
func (g *giving) serve(c *net.UnixConn) {
	defer c.Close()
	if !g.enter(c) {
		handover.Refuse(c, handover.ErrBusy)
		return
	}
	defer g.leave(c)
	given, err := g.others.Serve(c, func() (admin.Upgraded, bool, error) { return g.give(c) })
	if given {
		g.exit(0)
		return
	}
	g.app.log.Warn("nothing was handed over; this process goes on", zap.Error(err))
}

// enter notes the connection of a process that would take over; it reports false when nobody does
// any more.
func (g *giving) enter(c *net.UnixConn) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.ending {
		g.takers[c] = struct{}{}
	}
	return !g.ending
}

func (g *giving) leave(c *net.UnixConn) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.takers, c)
}

// end has no handover begin any more, and one that is under way come to its end, whichever it is,
// before this process touches anything as one that ends does. One that has not come to it by
// itself within patience is given up: closing its connection takes away the word that everything is
// the other's, unless that has been sent.
func (g *giving) end(patience time.Duration) {
	late := time.AfterFunc(patience, func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.ending = true
		for c := range g.takers {
			c.Close()
		}
	})
	defer late.Stop()
	g.others.End()
}

// give offers what this process has to the one at the other end of c. If given is false, this process goes on with it.
func (g *giving) give(c *net.UnixConn) (up admin.Upgraded, given bool, err error) {
	up.Old, up.New = os.Getpid(), handover.Peer(c)
	var began time.Time
	prepareState()
	given, err = handover.Give(c, stateVersion, handover.Patience{Hello: startPatience, Ready: readyPatience}, func() (*handover.Offer, error) {
		if err := g.settle(); err != nil {
			return nil, err
		}
		collects := holdCollector()
		o, err := g.freeze()
		if err != nil {
			collects()
			return nil, err
		}
		began = o.state.Began
		up.Carried, up.Closed = o.carried(), o.state.Closed
		o.Thaw = func() { g.thaw(); collects() }
		if o.State, err = json.Marshal(&o.state); err != nil {
			o.Discard()
			o.Thaw()
			return nil, err
		}
		return &o.Offer, nil
	})
	if given {
		up.Pause = time.Since(began)
		// systemd takes the new process for the service before it sees this one end.
		_ = systemd.Notify(fmt.Sprintf("MAINPID=%d", up.New))
		g.app.log.Info("handed over", zap.Int("to", up.New), zap.Strings("carried", up.Carried), zap.Strings("closed", up.Closed))
	}
	return up, given, err
}

// prepareState has package json look at the types of the state before anybody waits for it.
func prepareState() { _, _ = json.Marshal(new(handedOver)) }

// holdCollector keeps garbage from being collected until release is called: while sessions
// stand still every processor is theirs. What is made meanwhile is a few kilobytes for each.
func holdCollector() (release func()) {
	percent := debug.SetGCPercent(-1)
	return func() { debug.SetGCPercent(percent) }
}

// settle finds what refuses a handover, has rewrites stand still, waits for copies, and writes down beforehand, while everybody goes
// on, what a handover has to have on disk. Without an error freeze is to follow.
func (g *giving) settle() error {
	if err := g.app.reg.CheckRewrites(); err != nil {
		return err
	}
	copies, end := context.WithTimeout(context.Background(), copyPatience)
	defer end()
	if err := g.app.srv.Settle(copies); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), settlePatience)
	defer cancel()
	g.app.reg.Settle(ctx)
	return nil
}

// freeze brings this process to rest and collects what it has.
func (g *giving) freeze() (*offering, error) {
	if err := g.app.changes.close(changePatience); err != nil {
		g.app.srv.Unsettle()
		return nil, err
	}
	began := time.Now() // nobody has waited so far
	ctx, cancel := context.WithTimeout(context.Background(), freezePatience)
	defer cancel()
	if err := g.app.srv.Freeze(ctx); err != nil {
		g.app.changes.open()
		return nil, err
	}
	g.ls.hold()
	o := &offering{state: handedOver{Began: began, PID: os.Getpid(), StateDir: g.app.stateDir, Active: g.app.reg.ActiveGroups(), Standby: g.app.reg.StandbyGroups()}}
	if err := g.collect(ctx, o); err != nil {
		o.Discard()
		g.thaw()
		return nil, err
	}
	return o, nil
}

func (g *giving) thaw() {
	g.app.reg.GoOn()
	g.ls.release()
	g.app.srv.Thaw()
	g.app.changes.open()
}

// collect adds listeners, volumes and sessions to what is offered, with their descriptors.
func (g *giving) collect(ctx context.Context, o *offering) error {
	listeners, err := g.app.srv.Listeners()
	if err != nil {
		return err
	}
	for listen, fd := range listeners {
		o.state.Portals = append(o.state.Portals, handedListener{listen, o.Add(fd)})
	}
	fd, err := g.ls.admin.Dup()
	if err != nil {
		return err
	}
	o.state.Admin, o.state.Kept = o.Add(fd), g.ls.kept
	if g.ls.metrics != nil {
		if fd, err = g.ls.metrics.Dup(); err != nil {
			return err
		}
		o.state.Metrics = &handedListener{g.metrics, o.Add(fd)}
	}
	handed, err := g.app.reg.HandOver(ctx)
	if err != nil {
		return err
	}
	if handed.StateDir >= 0 {
		file := o.Add(handed.StateDir)
		o.state.StateLock = &file
	}
	for _, v := range handed.Volumes {
		file := -1
		if v.Group == "" {
			file = o.Add(v.Store.FD)
		}
		o.state.Volumes = append(o.state.Volumes, handedVolume{v, file})
	}
	for _, h := range handed.Groups {
		for i := range h.Disks {
			h.Disks[i].File = o.Add(h.Disks[i].Store.FD)
		}
		o.state.Groups = append(o.state.Groups, h)
	}
	left := handed.Left
	for _, name := range left {
		o.state.Closed = append(o.state.Closed, "volume "+name+": it is opened anew")
	}
	carried, stay, err := g.app.srv.Carry(func(volume string) bool { return slices.Contains(left, volume) })
	if err != nil {
		return err
	}
	for fd, index := range carried.Files() {
		*index = o.Add(*fd)
	}
	o.state.Carried = carried
	o.state.Closed = append(append(o.state.Closed, stay...), g.app.closing()...)
	return nil
}

// closing tells of the other peers that have to come again.
func (a *app) closing() (all []string) {
	if n := a.srv.Pending(); n > 0 {
		all = append(all, english.Plural(n, "connection", "")+" before the login")
	}
	return all
}

// carried says what is handed over.
func (o *offering) carried() (all []string) {
	for _, p := range o.state.Portals {
		all = append(all, "portal "+p.Listen)
	}
	for _, v := range o.state.Volumes {
		all = append(all, "volume "+v.Name)
	}
	for _, h := range o.state.Groups {
		all = append(all, fmt.Sprintf("volume group %s with %s", h.Name, english.Plural(len(h.Disks), "disk", "")))
	}
	slices.Sort(all)
	k, iser, rdma := &o.state.Carried, 0, 0
	for i := range k.ISCSI.Sessions {
		if k.ISCSI.Sessions[i].OverRDMA() {
			iser++
		}
	}
	for i := range k.NVMe.Controllers {
		if k.NVMe.Controllers[i].OverRDMA() {
			rdma++
		}
	}
	for _, l := range []struct {
		n    int
		what string
	}{
		{len(k.ISCSI.Sessions) - iser, "sessions of iSCSI over TCP"}, {iser, "sessions of iSER"}, {len(k.NVMe.Controllers) - rdma, "controllers of NVMe over TCP"}, {rdma, "controllers of NVMe over RDMA"},
	} {
		if l.n > 0 {
			all = append(all, fmt.Sprintf("%d %s", l.n, l.what))
		}
	}
	return all
}
