package attach

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"time"

	"github.com/dustin/go-humanize/english"

	"softiser/initiator/blockio"
	"softiser/initiator/multipath"
	"softiser/internal/handover"
)

// carrier is a volume whose session may go over: what it is not has another process log in.
type carrier interface {
	Rest(context.Context) error
	Resume()
}

// carry adds to what is offered the session that c has brought to rest.
func (o *offering) carry(c carrier) (err error) {
	v := &o.state.Volume
	switch c := c.(type) {
	case blockio.Path:
		k := new(multipath.Carried)
		err = k.Carry(c)
		v.Paths = []*multipath.Carried{k}
	case *multipath.Volume:
		v.Paths, err = c.Carry()
	}
	if err != nil {
		return err
	}
	for _, k := range v.Paths {
		k.Send(o.Add)
	}
	return nil
}

// carrier is the volume, if its session can go over.
func (a *Attachment) carrier() carrier {
	lun := a.lun
	if r, ok := lun.(*reopened); ok {
		v := r.vol.Load()
		if v == nil {
			return nil
		}
		lun = *v
	}
	c, _ := lun.(carrier)
	return c
}

// How long the steps of a handover may take, where --patience does not say more.
const (
	restPatience  = 2 * time.Second  // for requests under way, and then for sessions without any
	maxPatience   = time.Minute      // the longest --patience
	startPatience = 30 * time.Second // for a new process, from its start until it is ready
	readyPatience = 10 * time.Second // for one that has been offered everything
)

// offering is what is collected for an offer.
type offering struct {
	handover.Offer
	state handedOver
	under int // requests under way, which the next process is to repeat
}

// freeze brings the attachment to rest and collects what it has. With an error it goes on. Requests
// and then sessions get so much time for it.
func (a *Attachment) freeze(began time.Time, patience time.Duration) (_ *offering, err error) {
	if a.ublk != nil && !a.opt.Recover {
		return nil, fmt.Errorf("%s would end with this process: the way to its volume (NVMe, --all-portals) gives no device that outlives it", a.Record.Device)
	}
	a.hold()
	defer func() {
		if err != nil {
			a.thaw()
		}
	}()
	// A flush that fails from here on may be repeated by the next process before the driver knows: that must not
	// take it for told.
	told := a.client.Told()
	under, err := a.restRequests(patience)
	if err != nil {
		return nil, err
	}
	if under > 0 && !a.opt.Replays {
		return nil, fmt.Errorf("%s not ended within %v, and by this way to the volume (several paths, NVMe) cannot be repeated by another process: try again when the target answers", english.Plural(under, "request has", "requests have"), patience)
	}
	if under == 0 {
		a.restSessions(patience)
	}
	o := &offering{under: under, state: handedOver{Began: began, Record: a.Record, TCP: -1}}
	if a.client != nil {
		o.state.Ublk = &handedUblk{Told: told}
	}
	if err := a.collect(o); err != nil {
		o.Discard()
		return nil, err
	}
	return o, nil
}

// restRequests has no request begin any more, and returns how many have not ended in time.
func (a *Attachment) restRequests(patience time.Duration) (under int, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if a.ublk != nil {
		a.ublk.Hold()
	}
	under, err = a.srv.Rest(ctx)
	if err == nil && a.ublk != nil {
		under += a.ublk.Rest(ctx)
	}
	return under, err
}

// restSessions brings the way to the target to rest, if it can be carried and that comes about in time.
// Preconditions: no request is under way.
func (a *Attachment) restSessions(patience time.Duration) {
	c := a.carrier()
	if c == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if c.Rest(ctx) == nil {
		a.still = c
	}
}

// hold keeps everybody from beginning anything.
func (a *Attachment) hold() {
	a.giving.writing.Lock()
	a.giving.control.Hold()
	for _, l := range a.listeners() {
		l.Hold()
	}
}

// thaw lets the attachment go on as if nothing had happened.
func (a *Attachment) thaw() {
	for _, l := range a.listeners() {
		l.Release()
	}
	a.giving.control.Release()
	if a.still != nil {
		a.still.Resume()
		a.still = nil
	}
	a.srv.Resume()
	if a.ublk != nil {
		a.ublk.Resume()
	}
	a.giving.writing.Unlock()
}

// collect adds to what is offered all that the attachment has.
func (a *Attachment) collect(o *offering) error {
	s := &o.state
	info := a.lun.Info()
	s.Volume = handedVolume{Names: a.lun.Names(), Info: info, ISID: a.nexus.ISID, Cache: a.nexus.Cache.Carry()}
	if r, ok := a.lun.(*reopened); ok && r.vol.Load() == nil {
		s.Volume.Wait = r.was.Wait // this process has not logged in yet
	} else if f := a.opt.Time2Wait; f != nil {
		s.Volume.Wait = f()
	}
	s.Record.Size = info.Size
	if a.nbd.Load() == nbdGone {
		s.Record.Device = ""
	}
	lock, err := handover.Dup(a.record)
	if err != nil {
		return err
	}
	s.Lock = o.Add(lock)
	for _, l := range []struct {
		ln *handover.Listener
		at *int
	}{{a.giving.control, &s.Control}, {a.unix, &s.Unix}, {a.tcp, &s.TCP}} {
		if l.ln == nil {
			continue
		}
		fd, err := l.ln.Dup()
		if err != nil {
			return err
		}
		*l.at = o.Add(fd)
	}
	if a.still != nil {
		if err := o.carry(a.still); err != nil {
			return err
		}
	}
	carried, left, err := a.srv.Carry()
	if err != nil {
		return err
	}
	carried.Files(func(fd, index *int) { *index = o.Add(*fd) })
	_, login := s.Volume.sessions()
	s.NBD, s.Closed = carried, append(left, login...)
	return nil
}

// carried says what is handed over.
func (o *offering) carried() (all []string) {
	s := &o.state
	for _, what := range []string{s.Record.Socket, s.Record.TCP, s.Record.Device} {
		if what != "" {
			all = append(all, what)
		}
	}
	if n := len(s.NBD.Conns); n > 0 {
		all = append(all, english.Plural(n, "NBD connection", ""))
	}
	if what, _ := s.Volume.sessions(); what != "" {
		all = append(all, what)
	}
	if o.under > 0 {
		all = append(all, english.Plural(o.under, "request", "")+", to be done once more")
	}
	return all
}

// give offers what the attachment has to the process at the other end of a connection. If
// given is false, this process goes on with it.
func (g *giving) give(c unixConn) (up Upgraded, given bool, err error) {
	up.Old, up.New = os.Getpid(), handover.Peer(c)
	var began time.Time
	patience := time.Duration(g.patience.Load())
	given, err = handover.Give(c, stateVersion, handover.Patience{Hello: wordPatience, Ready: max(readyPatience, patience)}, func() (*handover.Offer, error) {
		began = time.Now()
		o, err := g.a.freeze(began, patience)
		if err != nil {
			return nil, err
		}
		up.Carried, up.Closed = o.carried(), o.state.Closed
		o.Thaw = g.a.thaw
		if o.State, err = json.Marshal(&o.state); err != nil {
			o.Discard()
			o.Thaw()
			return nil, err
		}
		return &o.Offer, nil
	})
	up.Pause = time.Since(began)
	return up, given, err
}
