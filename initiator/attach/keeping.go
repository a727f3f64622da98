package attach

import (
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"time"

	"softiser/blockdev"
)

// The record of an attachment, as its process keeps it.

func (a *Attachment) fillRecord(path string) {
	info := a.lun.Info()
	r := &a.Record
	r.path, r.URL, r.Volume, r.Export = path, a.opt.URL, a.opt.Describe, a.opt.Export
	r.Size, r.BlockSize, r.ReadOnly = info.Size, info.BlockSize, info.ReadOnly || a.opt.ReadOnly
	r.PID, r.Started = os.Getpid(), time.Now().Truncate(time.Second)
	a.noteState(r)
	a.noteCaches(r)
	r.URI = uriOf(r.Export, r.Socket)
}

// keepRecord writes the record again whenever the size or the way to the target
// changes, so that --list shows what is.
func (a *Attachment) keepRecord() {
	rec := a.Record // the caller's stays as it is
	cancel := a.lun.OnResize(func(blockdev.Info) {
		select {
		case a.size <- struct{}{}:
		default:
		}
	})
	quit, ended := make(chan struct{}), make(chan struct{})
	a.later(func() error {
		cancel()
		close(quit)
		<-ended
		return nil
	})
	go func() {
		defer close(ended)
		for {
			select {
			case <-a.size:
				rec.Size = a.lun.Info().Size
			case <-a.opt.Changed:
			case <-a.parted:
				a.opt.tellError(fmt.Errorf("%s has been disconnected by somebody else; the NBD socket %s is served on, until attach --detach %s", rec.Device, rec.Socket, rec.URL))
				rec.Device = ""
			case <-quit:
				return
			}
			a.giving.writing.Lock() // not while another process may be writing it
			a.noteState(&rec)
			a.noteCaches(&rec)
			if err := rec.write(a.record); err != nil {
				a.opt.tellError(err)
			}
			a.giving.writing.Unlock()
		}
	}()
}

// noteState puts the way to the target into r.
func (a *Attachment) noteState(r *Record) {
	state, reason := stateConnected, ""
	if a.opt.State != nil {
		state, reason = a.opt.State()
	}
	if state != r.State {
		r.Since = time.Now().Truncate(time.Second)
	}
	r.State, r.Reason = state, reason
}

// endRecord removes the record, in which it leaves what has gone wrong to those who have it open (Detach).
func (a *Attachment) endRecord(path string) (err error) {
	if a.ended != nil && a.Record.PID != 0 { // else it is not this process's yet
		r := a.Record
		r.Failed = a.ended.Error()
		err = r.write(a.record)
	}
	return errors.Join(err, dropRecord(path), a.record.Close())
}

// uriOf is how NBD clients name an export behind a socket.
func uriOf(export, sock string) string {
	return "nbd+unix:///" + escaped(export) + "?socket=" + escaped(sock)
}

// escaped is a name in any part of a URI; there are clients to which + is no space.
func escaped(name string) string {
	return strings.NewReplacer("+", "%20", "%2F", "/").Replace(url.QueryEscape(name))
}
