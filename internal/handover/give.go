package handover

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// hello is what the new process says first.
type hello struct {
	Program string `json:"program"` // for messages
	Oldest  int    `json:"oldest"`  // version of the state that it reads
	Newest  int    `json:"newest"`
}

// Offer is what the old process hands over.
type Offer struct {
	State []byte // in the version that Give was told
	// Files are descriptors that State refers to by their index; they are closed in the old
	// process when they have been sent.
	Files []int
	// Thaw lets the old process go on.
	Thaw func()
}

// Add puts a descriptor among Files, and returns its index.
func (o *Offer) Add(fd int) int {
	o.Files = append(o.Files, fd)
	return len(o.Files) - 1
}

// Discard closes the descriptors of an offer that is not made.
func (o *Offer) Discard() { closeAll(o.Files) }

// Patience is how long the old process waits at each step.
type Patience struct {
	Hello time.Duration // for the first word of the new one
	Ready time.Duration // until the new one has received everything and is ready
}

// ErrRefused is how a handover ends that the other end does not want, for the reason that is
// in the message.
var ErrRefused = errors.New("refused")

// Give is the part of the old process: freeze is called once it is known that the new one
// understands the version of the state. given says that everything is the new one's: the
// caller ends the process without touching anything of it any more. Otherwise Offer.Thaw has
// been called, if there was an Offer, and the error says why.
func Give(c *net.UnixConn, version int, p Patience, freeze func() (*Offer, error)) (given bool, err error) {
	if err := c.SetDeadline(time.Now().Add(p.Hello)); err != nil {
		return false, err
	}
	f, err := receive(c)
	if err != nil {
		return false, err
	}
	defer closeAll(f.files)
	if err := f.is(kindHello); err != nil {
		return false, err
	}
	var h hello
	if err := json.Unmarshal(f.payload, &h); err != nil {
		return false, fmt.Errorf("handover: hello: %w", err)
	}
	if version < h.Oldest || version > h.Newest {
		err := fmt.Errorf("this process hands its state over in version %d; %s reads %s", version, h.Program, versions(h.Oldest, h.Newest))
		return false, refuse(c, err)
	}
	o, err := freeze()
	if err != nil {
		_ = c.SetDeadline(time.Now().Add(refusePatience)) // freezing may have taken longer than the one there was
		return false, refuse(c, err)
	}
	defer func() {
		if !given {
			o.Thaw()
		}
	}()
	if err := c.SetDeadline(time.Now().Add(p.Ready)); err != nil {
		closeAll(o.Files)
		return false, err
	}
	err = o.send(c)
	closeAll(o.Files)
	if err != nil {
		return false, err
	}
	if f, err = receive(c); err != nil {
		return false, err
	}
	defer closeAll(f.files)
	if err := f.is(kindReady); err != nil {
		return false, err
	}
	// One write of a few bytes: it is in the other's socket as a whole, or it is not.
	if err := send(c, frame{kind: kindYours}); err != nil {
		return false, err
	}
	return true, nil
}

// Refuse is the part of an old process that has nothing to offer now, for the reason why.
func Refuse(c *net.UnixConn, why error) {
	if c.SetDeadline(time.Now().Add(refusePatience)) != nil {
		return
	}
	if f, err := receive(c); err == nil { // what is not read would take the answer along
		closeAll(f.files)
		_ = refuse(c, why)
	}
}

// refusePatience is how long a new process that is refused may take to say what it wants.
const refusePatience = time.Second

func versions(oldest, newest int) string {
	if oldest == newest {
		return fmt.Sprintf("version %d", newest)
	}
	return fmt.Sprintf("versions %d to %d", oldest, newest)
}

// refuse tells the other end why nothing comes of it, and returns that.
func refuse(c *net.UnixConn, why error) error {
	text := why.Error()
	_ = send(c, frame{kind: kindRefuse, payload: []byte(text[:min(len(text), maxReason)])}) // it may be gone
	return why
}

func (o *Offer) send(c *net.UnixConn) error {
	if len(o.State) > maxState || len(o.Files) > maxFiles {
		return refuse(c, fmt.Errorf("handover: a state of %d bytes and %d descriptors is too much", len(o.State), len(o.Files)))
	}
	for rest := o.Files; len(rest) > 0; {
		n := min(len(rest), perFrame)
		if err := send(c, frame{kind: kindFiles, files: rest[:n]}); err != nil {
			return err
		}
		rest = rest[n:]
	}
	last := frame{kind: kindState, payload: o.State}
	if self, err := unix.PidfdOpen(os.Getpid(), 0); err == nil { // Linux 5.3
		last.files = []int{self}
		defer closeAll(last.files)
	}
	return send(c, last)
}

// is refuses a frame that is not of kind k.
func (f *frame) is(k kind) error {
	switch f.kind {
	case k:
		return nil
	case kindRefuse:
		return fmt.Errorf("%w by the other process: %s", ErrRefused, f.payload)
	}
	return fmt.Errorf("%w: %v in the place of %v", errFrame, f.kind, k)
}
