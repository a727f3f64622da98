package attach

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/dustin/go-humanize/english"

	"softiser/initiator/blockio"
	"softiser/initiator/nbd"
	"softiser/internal/handover"
)

// taking is what a process has been offered of an attachment.
type taking struct {
	*handover.Taken
	a     *Attachment
	offer *handedOver
	conns *nbd.Prepared
	nbd   *nbd.KernelDevice // nil: there is none
	vol   *reopened
	ln    net.Listener // the control socket
}

// TakeOver takes the place of the process that serves the attachment of opt.URL. program is for
// messages. Nothing is touched before it is this process's, which it is when there is no error.
func TakeOver(ctx context.Context, opt Options, program string) (_ *Attachment, err error) {
	path := recordPath(opt.Dir, opt.URL)
	limit, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	c, err := dialControl(limit, controlPath(path), wordTakeover)
	if err != nil {
		return nil, fmt.Errorf("--takeover: no process that could be asked serves an attachment of %s; without --takeover it is attached: %w", opt.URL, err)
	}
	offered, err := handover.Take(c, program, stateVersion, 2*maxPatience+readyPatience)
	if err != nil {
		return nil, fmt.Errorf("--takeover: %w", err)
	}
	t := &taking{Taken: offered, a: newAttachment(opt)}
	if err := t.prepare(path); err != nil {
		offered.Refuse(err)
		t.discard()
		return nil, fmt.Errorf("--takeover: %w", err)
	}
	if err := offered.Accept(); err != nil {
		t.discard()
		return nil, fmt.Errorf("--takeover: %w", err)
	}
	if err := t.begin(ctx, path); err != nil {
		return nil, errors.Join(err, t.a.undo())
	}
	return t.a, nil
}

// prepare makes everything that there will be, and touches nothing.
func (t *taking) prepare(path string) (err error) {
	if t.offer, err = parseState(t.State, t.Files(), &t.a.opt); err != nil {
		return err
	}
	s, a := t.offer, t.a
	if err := s.Volume.receive(t.File); err != nil {
		return err
	}
	a.nexus = Nexus{ISID: s.Volume.ISID, Cache: blockio.ResumeCache(s.Volume.Cache)}
	t.vol = newReopened(a, &s.Volume)
	a.lun = t.vol
	if err := a.makeServer(); err != nil {
		return err
	}
	if err := t.receiveFiles(path); err != nil {
		return err
	}
	if err := t.findDevice(); err != nil {
		return err
	}
	return t.connections()
}

// receiveFiles takes the record's file and the sockets that are listened on.
func (t *taking) receiveFiles(path string) (err error) {
	s, a := t.offer, t.a
	lock, err := t.File(s.Lock)
	if err != nil {
		return err
	}
	a.record = os.NewFile(uintptr(lock), path)
	if t.ln, err = t.listener(s.Control); err != nil {
		return fmt.Errorf("control socket: %w", err)
	}
	for _, l := range []struct {
		at int
		ln **handover.Listener
	}{{s.Unix, &a.unix}, {s.TCP, &a.tcp}} {
		if l.at < 0 {
			continue
		}
		ln, err := t.listener(l.at)
		if err != nil {
			return fmt.Errorf("NBD socket: %w", err)
		}
		*l.ln = handover.Pausable(ln)
	}
	return nil
}

// findDevice finds the kernel's device, and who its requests come from.
func (t *taking) findDevice() (err error) {
	s, a := t.offer, t.a
	kind := kindOf(deviceOf(&s.Record))
	switch {
	case kind == deviceNBD:
		if t.nbd, err = nbd.FindKernel(s.Record.Device); err != nil {
			return err
		}
	case kind == deviceUblk && !a.opt.Recover:
		return fmt.Errorf("%s cannot be taken over: the way to its volume (NVMe, --all-portals) gives no device that outlives its process", s.Record.Device)
	}
	if kind == deviceUblk || s.Ublk != nil {
		a.client = s.Ublk.client(a.lun)
	}
	return nil
}

// listener is one that has been handed over; its name in the file system is the old process's yet.
func (t *taking) listener(file int) (net.Listener, error) {
	fd, err := t.File(file)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "handed over")
	defer f.Close()
	return net.FileListener(f)
}

// connections makes those of NBD clients.
func (t *taking) connections() (err error) {
	k := &t.offer.NBD
	if err := t.a.srv.Check(k, t.Files()); err != nil {
		return err
	}
	for i := range k.Conns {
		c := &k.Conns[i]
		c.FD, c.Bulk = -1, -1
	}
	for i := range k.Conns {
		c := &k.Conns[i]
		if c.FD, err = t.File(c.File); err == nil && c.Bytes > 0 {
			c.Bulk, err = t.File(c.Bytes - 1)
		}
		if err != nil {
			k.Discard()
			return err
		}
	}
	t.conns, err = t.a.srv.Prepare(k)
	return err
}

// discard gives back what is not this process's.
func (t *taking) discard() {
	a := t.a
	if t.conns != nil {
		t.conns.Discard()
	}
	if t.nbd != nil {
		t.nbd.Forget()
	}
	if t.offer != nil {
		t.offer.Volume.close()
	}
	_ = a.closeListeners()
	if t.ln != nil {
		_ = t.ln.Close()
	}
	if a.record != nil {
		_ = a.record.Close()
	}
	t.Taken.Close()
}

// begin goes on with what has been taken over.
func (t *taking) begin(ctx context.Context, path string) (err error) {
	a, r := t.a, &t.offer.Record
	a.Record, a.protected = *r, r.ReadOnly
	a.Record.path, a.Record.PID, a.Record.Taken, a.Record.Recovered = path, os.Getpid(), time.Now().Truncate(time.Second), false
	a.later(func() error { return a.endRecord(path) })
	a.later(a.closeVolume)
	for _, l := range a.listeners() {
		l.Owned()
	}
	a.later(a.closeListeners)
	a.later(a.stop)
	t.conns.Begin()
	a.accept()
	if t.nbd != nil {
		a.keepNBD(t.nbd, t.nbd.Path, t.offer.Volume.Info.Size)
	}
	t.vol.open()
	go t.awaitGone()
	if kindOf(r.Device) == deviceUblk {
		if err := t.recoverUblk(ctx); err != nil {
			_ = t.ln.Close()
			return err
		}
	}
	a.giving.serve(t.ln)
	a.giving.control.Owned()
	a.noteState(&a.Record)
	a.noteCaches(&a.Record)
	if err := a.Record.write(a.record); err != nil {
		a.opt.tellError(err) // what has been taken over is in use: it goes on, and --list shows what was
	}
	a.keepRecord()
	a.opt.notice(fmt.Sprintf("took over from process %d within %v: %s", r.PID, time.Since(t.offer.Began).Round(time.Microsecond), english.Plural(len(t.offer.NBD.Conns), "NBD connection", "")))
	return nil
}

// awaitGone tells everybody when the other process has ended, or takes too long for it.
func (t *taking) awaitGone() {
	defer close(t.vol.gone)
	if err := t.Gone(readyPatience); err != nil {
		t.a.opt.tellError(err)
	}
	t.Close()
}

// recoverUblk takes the device from the driver, which gives it to nobody before the other process has ended.
func (t *taking) recoverUblk(ctx context.Context) error {
	<-t.vol.gone
	a := t.a
	size := a.lun.Info().Size
	d, err := drivers.recovery(ctx, t.offer.Record.Device, exported{a.lun, a}, a.client, false) // parseState has compared that
	if err != nil {
		return err
	}
	a.keepUblk(d, size)
	return nil
}

func kindOf(device string) deviceKind {
	kind, _, _ := parseDevice(device)
	return kind
}
