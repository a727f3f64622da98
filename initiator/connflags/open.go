package connflags

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"softiser/initiator"
	"softiser/initiator/blockio"
	"softiser/initiator/multipath"
	"softiser/initiator/nvmf"
)

// Check reads the URL of a volume and the options without connecting to anything.
func (o *Options) Check(url string) error {
	_, err := o.ways(url)
	if err == nil {
		_, err = o.path.config()
	}
	return err
}

// ways returns the configuration of each path of url.
func (o *Options) ways(url string) ([]way, error) {
	var ws []way
	urls := Paths(url)
	several := len(urls) > 1 || o.path.all
	iscsi, nvme := false, false
	for i, u := range urls {
		w, err := parseWay(u)
		if err != nil {
			return nil, err
		}
		switch {
		case w.host != nil && o.path.all:
			return nil, fmt.Errorf("%s: --all-portals finds portals of iSCSI targets; give the paths to a namespace as URLs with commas between", u)
		case w.host != nil:
			err = o.NVMe(w.host)
		default:
			if err = o.Apply(w.lun); err == nil && several {
				o.alongside(w.lun, i)
			}
		}
		if err != nil {
			return nil, err
		}
		ws = append(ws, w)
		iscsi, nvme = iscsi || w.lun != nil, nvme || w.host != nil
	}
	if err := o.CheckSecrets(iscsi, nvme); err != nil {
		return nil, err
	}
	return ws, nil
}

// alongside makes the i-th session one that has other paths beside it.
func (o *Options) alongside(c *initiator.Config, i int) {
	if !o.path.fs.Changed("noop-interval") {
		c.NopInterval = pathNopInterval
	}
	if !o.path.fs.Changed("noop-timeout") {
		c.NopTimeout = pathNopTimeout
	}
	if c.ISID != [6]byte{} {
		c.ISID = initiator.ISIDAfter(c.ISID, i*max(c.Sessions, 1)) // a session of its own
	}
}

// UsageError is a URL or an option that cannot be used; nothing has been connected.
type UsageError struct{ err error }

func (e *UsageError) Error() string { return e.err.Error() }
func (e *UsageError) Unwrap() error { return e.err }

// Tuning is what a command wants of its volume, whatever the wire.
type Tuning struct {
	Depth    int           // requests outstanding at once, at least; 0: as the options say
	BusyPoll time.Duration // spin so long for an answer; 0: as the options say
	// KeepTrying goes on looking for a target that was away for too long.
	KeepTrying bool
	Logout     time.Duration // bound on the end of a session; 0: the default
	// ISID names the sessions of iSCSI paths, the last byte but one counting these, unless an
	// option does. Zero: random ones.
	ISID [6]byte
	// Carried are the paths of another process to go on with, all that it had; none: there is
	// nothing to go on with. Open takes them. The other paths log in when After is closed.
	Carried []*multipath.Carried
	After   <-chan struct{}
	Cache   *blockio.Cache // the account of what the volume has acknowledged; nil: a new one
	Changed func()         // called when the way to the volume may have changed; must not block
}

func (t *Tuning) apply(w way) {
	if c := w.host; c != nil {
		if t.Depth > 0 {
			// Each queue has its share.
			c.QueueDepth = min(max(c.QueueDepth, (t.Depth+c.Queues-1)/c.Queues), maxNVMeDepth)
		}
		c.BusyPoll = cmp.Or(t.BusyPoll, c.BusyPoll)
		c.OnEvent, c.Cache = also(c.OnEvent, t.Changed), t.Cache
		return
	}
	c := w.lun
	if t.Depth > 0 {
		c.QueueDepth = min(max(c.QueueDepth, t.Depth), 4096)
	}
	c.BusyPoll = cmp.Or(t.BusyPoll, c.BusyPoll)
	c.KeepTrying = t.KeepTrying
	c.LogoutTimeout = cmp.Or(t.Logout, c.LogoutTimeout)
	c.OnEvent, c.Cache = also(c.OnEvent, t.Changed), t.Cache
}

// name gives the sessions of the path with number i their names.
func (t *Tuning) name(w way, i int) {
	if w.lun == nil || w.lun.ISID != ([6]byte{}) || t.ISID == ([6]byte{}) {
		return
	}
	w.lun.ISID = t.ISID
	w.lun.ISID[4] += byte(i)
}

// also has changed called after each event.
func also[E any](told func(E), changed func()) func(E) {
	if changed == nil {
		return told
	}
	return func(e E) {
		if told != nil {
			told(e)
		}
		changed()
	}
}

// Reinstates reports whether another Open of the same url with the same Tuning.ISID
// reinstates the sessions of this one at the target: all paths are iSCSI, and known by their
// URLs.
func (o *Options) Reinstates(url string) bool {
	ws, err := o.ways(url)
	if err != nil || o.path.all {
		return false
	}
	return !slices.ContainsFunc(ws, func(w way) bool { return w.lun == nil })
}

// Patience is how long requests wait while the volume at url cannot be reached; 0: for ever.
func (o *Options) Patience(url string) time.Duration {
	ws, err := o.ways(url)
	if err != nil {
		return 0
	}
	w := ws[0]
	switch mp, _ := o.path.config(); {
	case len(ws) > 1 || o.path.all:
		return max(mp.NoPathRetry, 0)
	case w.host != nil:
		return max(w.host.CtrlLossTimeout, 0)
	case w.lun.FailNow:
		return 1
	}
	return max(w.lun.ReplacementTimeout, 0)
}

// Open opens the volume at url: over one path as a session does that waits for its target
// to come back, over several as package multipath does.
func (o *Options) Open(ctx context.Context, url string, t Tuning) (blockio.Volume, error) {
	left := t.Carried
	defer func() {
		for _, k := range left {
			k.Close()
		}
	}()
	ws, err := o.ways(url)
	mp, perr := o.path.config()
	if err := errors.Join(err, perr); err != nil {
		return nil, &UsageError{err}
	}
	for i, w := range ws {
		t.apply(w)
		t.name(w, i)
	}
	if n := len(t.Carried); n > 0 && n != len(ws) && !o.path.all {
		return nil, fmt.Errorf("%d paths of another process lead to the volume, and %d from here", n, len(ws))
	}
	switch w := ws[0]; {
	case len(ws) > 1 || o.path.all:
	case w.lun != nil:
		if len(t.Carried) > 0 {
			w.lun.Carried = t.Carried[0].Sessions
		}
		l, err := initiator.Open(ctx, *w.lun)
		if err != nil {
			return nil, err
		}
		return l, nil
	case !t.KeepTrying:
		if len(t.Carried) > 0 {
			w.host.Carried = t.Carried[0].Association
		}
		n, err := nvmf.Open(ctx, *w.host)
		if err != nil {
			return nil, err
		}
		return n, nil
	default:
		// An association that has failed does not come back; the only path to a volume does.
		mp.NoPathRetry = w.host.CtrlLossTimeout
	}
	if mp.Paths, err = o.dialers(ctx, ws, t.Carried); err != nil {
		return nil, err
	}
	mp.After, left = t.After, nil
	// A path's own events come before the volume has drawn its conclusions from them.
	mp.OnEvent, mp.Changed = o.tell, t.Changed
	mp.Cache = t.Cache
	v, err := multipath.Open(ctx, mp)
	if err != nil {
		return nil, err
	}
	return v, nil
}

// told reports whether another process has said of all of its paths where they lead: an earlier
// version did not.
func told(carried []*multipath.Carried) bool {
	return len(carried) > 0 && !slices.ContainsFunc(carried, func(k *multipath.Carried) bool { return k.Portal.Address == "" })
}

// dialers are those of the paths to a volume, with what another process had of them.
func (o *Options) dialers(ctx context.Context, ws []way, carried []*multipath.Carried) (all []multipath.Dialer, err error) {
	switch {
	case !o.path.all:
		for _, w := range ws {
			all = append(all, w.dialer())
		}
	case len(ws) == 1 && told(carried): // its target has been asked for its portals
		for _, k := range carried {
			all = append(all, multipath.Found(*ws[0].lun, k))
		}
	default:
		var errs []error
		more := 0 // found
		for i, w := range ws {
			found, err := multipath.Portals(ctx, *w.lun, all, len(ws)-i+more) // behind the sessions of the URLs
			more += len(found)
			if err != nil { // the target may tell another one of the URLs of its portals
				errs, found = append(errs, err), []multipath.Dialer{w.dialer()}
			}
			for _, d := range found { // the targets of several URLs may be one
				if !slices.ContainsFunc(all, func(o multipath.Dialer) bool { return o.Name == d.Name }) {
					all = append(all, d)
				}
			}
		}
		if len(errs) == len(ws) {
			return nil, errors.Join(errs...)
		}
		for _, err := range errs {
			o.tell(err.Error())
		}
	}
	for i, k := range carried {
		if o.path.all && k.Name != "" { // the target may tell of its portals in another order than it did to the other process
			i = slices.IndexFunc(all, func(d multipath.Dialer) bool { return d.Name == k.Name })
		}
		if i >= 0 && len(all) == len(carried) && all[i].Carried == nil && k.GoesOn() {
			all[i].Carried = k
		} else {
			k.Close()
		}
	}
	return all, nil
}
