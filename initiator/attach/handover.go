package attach

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/dustin/go-humanize/english"

	"softiser/blockdev"
	"softiser/initiator"
	"softiser/initiator/blockio"
	"softiser/initiator/multipath"
	"softiser/initiator/nbd"
	"softiser/initiator/nvmf"
	"softiser/internal/handover"
)

// stateVersion is that of handedOver. One that a process of this version reads differs from
// it by one at most; whoever changes the struct so that an older process would misread it
// counts on, and keeps reading what the version before wrote.
const stateVersion = 3

// handedOver is what a process tells the one that takes its place. Files are indices of the
// descriptors that come with it.
type handedOver struct {
	Began   time.Time    `json:"began"` // when the old process stopped
	Record  Record       `json:"record"`
	Lock    int          `json:"lock"` // the record's file, with its lock
	Control int          `json:"control"`
	Unix    int          `json:"unix"`
	TCP     int          `json:"tcp"` // -1: there is none
	Volume  handedVolume `json:"volume"`
	NBD     nbd.Carried  `json:"nbd"`
	Ublk    *handedUblk  `json:"ublk,omitempty"`
	Closed  []string     `json:"closed"` // what does not go over, for people
}

// handedVolume is what the volume has to be when the next process opens it.
type handedVolume struct {
	Names []string             `json:"names"`
	Info  blockdev.Info        `json:"info"`
	ISID  [6]byte              `json:"isid"`
	Cache blockio.CarriedCache `json:"cache"`
	Wait  time.Duration        `json:"wait"` // before it is opened without a session, Options.Time2Wait
	// Paths are all of them, if one of them goes on.
	Paths []*multipath.Carried `json:"paths,omitempty"`

	// What version 2 has in the place of Paths: the only one.
	Session     *initiator.CarriedSession `json:"session,omitempty"`
	Association *nvmf.CarriedAssociation  `json:"association,omitempty"`
}

// handedUblk is what goes of an ublk device that the driver does not keep. Processes of older versions do not
// tell it.
type handedUblk struct {
	Told uint32 `json:"told"` // losses of a cache of which flushes from the device have been told
}

// client is whose requests come from the device: the one who was it in the process before, if that has told.
func (u *handedUblk) client(lun LUN) *blockio.Flusher {
	if u == nil {
		return lun.NewFlusher()
	}
	return lun.NewFlusher().Resume(u.Told)
}

// goesOn reports whether there is something that nobody has to log in for.
func (v *handedVolume) goesOn() bool { return len(v.Paths) > 0 }

// maxPaths bounds the paths of a volume that come from another process.
const maxPaths = 256

// check says what is wrong with the way to the target, and makes it one without descriptors.
func (v *handedVolume) check(files int) error {
	if v.Session != nil || v.Association != nil {
		k := &multipath.Carried{Association: v.Association}
		if v.Session != nil {
			k.Sessions = []*initiator.CarriedSession{v.Session}
		}
		v.Paths, v.Session, v.Association = []*multipath.Carried{k}, nil, nil
	}
	if n := len(v.Paths); n > maxPaths {
		return fmt.Errorf("%d paths; %d is the limit", n, maxPaths)
	}
	for _, k := range v.Paths {
		if k == nil {
			return errors.New("a path to the volume is missing")
		}
		if err := k.Check(files); err != nil {
			return err
		}
	}
	return nil
}

// receive takes the descriptors of the way to the target.
func (v *handedVolume) receive(file func(int) (int, error)) error {
	for _, k := range v.Paths {
		if err := k.Receive(file); err != nil {
			return err
		}
	}
	return nil
}

// close gives back what nobody has taken of the way to the target.
func (v *handedVolume) close() {
	for _, k := range v.Paths {
		k.Close()
	}
	v.Paths = nil
}

// sessions says which sessions to the target are handed over, and which paths log in.
func (v *handedVolume) sessions() (carried string, login []string) {
	n, paths := 0, 0
	for _, k := range v.Paths {
		if !k.GoesOn() {
			login = append(login, "the path "+k.Name+", which logs in again")
			continue
		}
		n += max(len(k.Sessions), 1)
		paths++
	}
	switch {
	case n == 0:
	case len(v.Paths) > 1:
		carried = fmt.Sprintf("the sessions of %d of %d paths to the target", paths, len(v.Paths))
	case n > 1:
		carried = fmt.Sprintf("%d sessions to the target", n)
	default:
		carried = "the session to the target"
	}
	return carried, login
}

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

// maxWait is the longest DefaultTime2Wait (RFC 7143 §13.15).
const maxWait = time.Hour

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
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if a.ublk != nil {
		a.ublk.Hold()
	}
	under, err := a.srv.Rest(ctx)
	if err != nil {
		return nil, err
	}
	if a.ublk != nil {
		under += a.ublk.Rest(ctx)
	}
	if under > 0 && !a.opt.Replays {
		return nil, fmt.Errorf("%s not ended within %v, and by this way to the volume (several paths, NVMe) cannot be repeated by another process: try again when the target answers", english.Plural(under, "request has", "requests have"), patience)
	}
	if c := a.carrier(); under == 0 && c != nil {
		still, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if c.Rest(still) == nil {
			a.still = c
		}
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

// parseState reads what a process has handed over, files descriptors, and says why this one, which
// serves with opt, cannot go on with it.
func parseState(b []byte, files int, opt *Options) (*handedOver, error) {
	s := &handedOver{TCP: -1}
	if err := json.Unmarshal(b, s); err != nil {
		return nil, fmt.Errorf("the state that was offered: %w", err)
	}
	for _, f := range []struct {
		name     string
		at, from int
	}{{"lock of the record", s.Lock, 0}, {"control socket", s.Control, 0}, {"NBD socket", s.Unix, 0}, {"TCP", s.TCP, -1}} {
		if f.at < f.from || f.at >= files {
			return nil, fmt.Errorf("the state that was offered: %s: no descriptor has come with it", f.name)
		}
	}
	r, i := &s.Record, &s.Volume.Info
	if i.Size < 0 || i.BlockSize < 1 || i.BlockSize > 1<<20 || i.BlockSize&(i.BlockSize-1) != 0 {
		return nil, fmt.Errorf("the state that was offered: a volume of %d bytes in blocks of %d", i.Size, i.BlockSize)
	}
	if w := s.Volume.Wait; w < 0 || w > maxWait {
		return nil, fmt.Errorf("the state that was offered: %v before the next login; %v is the limit", w, maxWait)
	}
	if err := s.Volume.check(files); err != nil {
		return nil, fmt.Errorf("the state that was offered: %w", err)
	}
	if _, _, err := parseDevice(deviceOf(r)); err != nil {
		return nil, fmt.Errorf("the state that was offered: %w", err)
	}
	return s, r.differs(opt)
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
