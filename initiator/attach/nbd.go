package attach

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"net"
	"time"

	"softiser/initiator/nbd"
)

// makeNBD makes /dev/nbdN.
func (a *Attachment) makeNBD(index int) error {
	info := a.lun.Info()
	mark := make([]byte, 8)
	rand.Read(mark) // never fails
	a.Record.Mark = "softiser-" + hex.EncodeToString(mark)
	d, err := nbd.ConnectKernel(nbd.KernelConfig{
		Index: index, Size: info.Size, BlockSize: info.BlockSize, Flags: a.export.Flags(),
		Connections: a.opt.Connections, DeadConn: 30 * time.Second, Mark: a.Record.Mark,
	})
	if err != nil {
		if a.opt.Device == "auto" {
			return nil // the socket is there
		}
		return err
	}
	return a.useNBD(d, d.Path, info.Size, d.Conns)
}

// deviceOfNBD is a /dev/nbdN: nbd.KernelDevice.
type deviceOfNBD interface {
	WaitReady(time.Duration) error
	Resize(int64) error
	Disconnect() error
	Forget()
}

// What is with /dev/nbdN. Whoever changes nbdServed first says how it ends.
//
//	nbdServed ──▶ nbdEnding   this process disconnects it
//	     └──────▶ nbdGone     somebody else has: the number is anybody's
const (
	nbdServed int32 = iota // or there is none
	nbdEnding
	nbdGone
)

// disconnected is told that a device is being disconnected.
func (a *Attachment) disconnected() {
	if a.nbd.CompareAndSwap(nbdServed, nbdGone) {
		a.parted <- struct{}{}
	}
}

// useNBD serves the sockets of a device that has just been made, of size bytes.
func (a *Attachment) useNBD(d deviceOfNBD, path string, size int64, conns []net.Conn) error {
	client := a.lun.NewFlusher()
	for _, c := range conns {
		go func() {
			if err := a.srv.ServeKernel(c, a.export, client); err != nil {
				a.opt.tellError(err)
			}
		}()
	}
	err := d.WaitReady(10 * time.Second)
	if err == nil {
		a.keepNBD(d, path, size)
		return nil
	}
	ended := a.endNBD(d)
	if a.opt.Device == "auto" && ended == nil {
		return nil // a container, say, whose /dev has no place for it: the socket is there
	}
	return errors.Join(err, ended)
}

// keepNBD sees to the device at path, which has size bytes and whose sockets are served.
func (a *Attachment) keepNBD(d deviceOfNBD, path string, size int64) {
	end := a.follow(size, func(size int64) error {
		if a.nbd.Load() == nbdGone {
			return nil
		}
		return d.Resize(size)
	})
	a.later(func() error {
		end()
		var err error
		if a.nbd.Load() == nbdServed {
			err = a.writeBack(path, nbd.WriteBack)
		}
		return errors.Join(err, a.endNBD(d))
	})
	a.Record.Device = path
}

// endNBD disconnects a device, unless somebody else has.
func (a *Attachment) endNBD(d deviceOfNBD) error {
	if !a.nbd.CompareAndSwap(nbdServed, nbdEnding) {
		d.Forget()
		return nil
	}
	return d.Disconnect()
}
