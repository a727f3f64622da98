package attach

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"softiser/blockdev"
	"softiser/initiator"
	"softiser/initiator/blockio"
	"softiser/initiator/multipath"
	"softiser/initiator/nbd"
	"softiser/initiator/nvmf"
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

// maxWait is the longest DefaultTime2Wait (RFC 7143 §13.15).
const maxWait = time.Hour

// parseState reads what a process has handed over, files descriptors, and says why this one, which
// serves with opt, cannot go on with it.
func parseState(b []byte, files int, opt *Options) (*handedOver, error) {
	s := &handedOver{TCP: -1}
	err := json.Unmarshal(b, s)
	if err == nil {
		err = s.check(files)
	}
	if err != nil {
		return nil, fmt.Errorf("the state that was offered: %w", err)
	}
	return s, s.Record.differs(opt)
}

// check says what no attachment can be, or has not come. It leaves the way to the target without descriptors.
func (s *handedOver) check(files int) error {
	for _, f := range []struct {
		name     string
		at, from int
	}{{"lock of the record", s.Lock, 0}, {"control socket", s.Control, 0}, {"NBD socket", s.Unix, 0}, {"TCP", s.TCP, -1}} {
		if f.at < f.from || f.at >= files {
			return fmt.Errorf("%s: no descriptor has come with it", f.name)
		}
	}
	if i := &s.Volume.Info; i.Size < 0 || i.BlockSize < 1 || i.BlockSize > 1<<20 || i.BlockSize&(i.BlockSize-1) != 0 {
		return fmt.Errorf("a volume of %d bytes in blocks of %d", i.Size, i.BlockSize)
	}
	if w := s.Volume.Wait; w < 0 || w > maxWait {
		return fmt.Errorf("%v before the next login; %v is the limit", w, maxWait)
	}
	if err := s.Volume.check(files); err != nil {
		return err
	}
	_, _, err := parseDevice(deviceOf(&s.Record))
	return err
}
