package multipath

import (
	"errors"
	"fmt"
	"net"

	"softiser/initiator"
	"softiser/initiator/blockio"
	"softiser/initiator/nvmf"
)

// Carried is a path that another process has had, with its sessions if they were at rest.
type Carried struct {
	Name   string `json:"name"` // Dialer.Name
	Portal Portal `json:"portal"`

	Sessions    []*initiator.CarriedSession `json:"sessions,omitempty"`
	Association *nvmf.CarriedAssociation    `json:"association,omitempty"`
}

// Portal is where a path over iSCSI or iSER leads, which for those of Portals no URL says.
type Portal struct {
	Address string  `json:"address,omitempty"`
	ISID    [6]byte `json:"isid"` // zero: another one at each login
}

// GoesOn reports whether there is something that nobody has to log in for.
func (k *Carried) GoesOn() bool { return len(k.Sessions) > 0 || k.Association != nil }

// maxSessions bounds the sessions of one path that come from another process.
const maxSessions = 256

// Check says what is wrong with a path that has come from another process with files
// descriptors of all kinds, and makes it one without descriptors.
func (k *Carried) Check(files int) error {
	if a := k.Portal.Address; a != "" {
		if _, _, err := net.SplitHostPort(a); err != nil {
			return fmt.Errorf("multipath: a path of another process: %w", err)
		}
	}
	if n := len(k.Sessions); n > maxSessions || n > 0 && k.Association != nil {
		return fmt.Errorf("multipath: %d sessions of one path; want up to %d, and none beside an association", n, maxSessions)
	}
	for _, s := range k.Sessions {
		if s == nil {
			return errors.New("multipath: a session of another process is missing")
		}
		if err := s.Check(files); err != nil {
			return err
		}
		s.FD = -1
	}
	if k.Association != nil {
		return k.Association.Check(files)
	}
	return nil
}

// Receive takes the descriptors, which file has.
func (k *Carried) Receive(file func(int) (int, error)) (err error) {
	for _, s := range k.Sessions {
		if s.FD, err = file(s.File); err != nil {
			return err
		}
	}
	if a := k.Association; a != nil {
		for _, at := range a.Files {
			fd, err := file(at)
			if err != nil {
				return err
			}
			a.FDs = append(a.FDs, fd)
		}
	}
	return nil
}

// Send gives the descriptors to add, which returns their indices on their way.
func (k *Carried) Send(add func(fd int) int) {
	for _, s := range k.Sessions {
		s.File = add(s.FD)
	}
	if a := k.Association; a != nil {
		for _, fd := range a.FDs {
			a.Files = append(a.Files, add(fd))
		}
	}
}

// Close gives the descriptors back that nobody has taken.
func (k *Carried) Close() {
	for _, s := range k.Sessions {
		s.Close()
	}
	if k.Association != nil {
		k.Association.Close()
	}
}

// Carry adds the sessions or the association of a path that is at rest.
func (k *Carried) Carry(p blockio.Path) (err error) {
	switch p := p.(type) {
	case *initiator.LUN:
		k.Sessions, err = p.Carry()
	case *nvmf.Namespace:
		k.Association, err = p.Carry()
	default:
		err = errNoRest
	}
	return err
}

// errNoRest is why no path of a volume can go to another process.
var errNoRest = errors.New("multipath: no path is in a state to be carried")
